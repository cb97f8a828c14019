# SPDX-License-Identifier: Apache-2.0
"""Whose constants can take the division of a tensor in: back through what a positive factor passes through."""

from __future__ import annotations

from qdqtool.conditioning.channel_map import ChannelRange
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import is_plain_constant
from qdqtool.passes.condition.layout import readable
from qdqtool.passes.condition.rescale import constant_side, has_plain_bias
from qdqtool.rule_files import operator_set


def absorbing_producers(context: ConditionContext, span: ChannelRange) -> tuple[str, ...]:
    """First outputs of the nodes that divide a tensor in their constants; empty where that cannot be proven exact.

    The last of them is a weighted operator, a BatchNormalization or a Mul with a constant; before it in the tuple stand
    Add nodes whose constants are divided too. Nobody but the point's own consumers may see any tensor on the way.
    """
    view, name = context.view, span.tensor
    point = next(point for point in context.plan.activations if point.tensor == name)
    through_pair = {(read.node, read.index) for read in point.reads}
    if not _hidden(view, name) or any((use.node.key, use.index) not in through_pair for use in view.consumers(name)):
        return ()
    found: list[str] = []
    while True:
        node = view.producers.get(name)
        if node is None or len([output for output in node.outputs if output]) != 1:
            return ()
        if _ends(view, node, span):
            return (*found, node.key)
        if node.op == "Add" and _per_channel(view, node, span):
            found.append(node.key)
            name = node.inputs[1 - (constant_side(view, node) or 0)]
        elif _passes(view, node, span):
            name = node.inputs[0]
        else:
            return ()
        if not _hidden(view, name) or len(view.consumers(name)) != 1 or name in context.ways:
            return ()


def _hidden(view: GraphView, name: str) -> bool:
    return not view.is_output(name) and name not in view.captured


def _passes(view: GraphView, node: Node, span: ChannelRange) -> bool:
    if node.op == "PRelu":
        return view.is_constant(node.inputs[1])  # a slope is the same for x and for a x
    pools = node.op in operator_set("pooling") and span.axis == 1  # windows of the second axis's channels
    return pools or node.op in operator_set("scaling")


def _ends(view: GraphView, node: Node, span: ChannelRange) -> bool:
    """Whether a node multiplies what it gives out, channel by channel, with constants of its own."""
    if node.op == "BatchNormalization":
        plain = all(is_plain_constant(view, node, index) for index in (1, 2))
        return plain and span.axis == 1 and not attribute(node, "training_mode", 0)
    if node.op == "Mul":
        return _per_channel(view, node, span)
    if weight_index(view, node) is None or not readable(view, node) or not has_plain_bias(view, node):
        return False
    # One scale for the whole weight of a ConvTranspose: dividing its channels would cost what it wins.
    return node.op != "ConvTranspose" and span.axis == (1 if node.op == "Conv" else span.rank - 1)


def _per_channel(view: GraphView, node: Node, span: ChannelRange) -> bool:
    """Whether a node's constant has one value, or one per channel of the span."""
    side = constant_side(view, node)
    tensor = None if side is None else view.constant_tensor(node.inputs[side])
    if tensor is None or len(tensor.dims) > span.rank:
        return False
    dims = (1,) * (span.rank - len(tensor.dims)) + tuple(tensor.dims)
    return all(size == 1 or (axis == span.axis and size == span.channels) for axis, size in enumerate(dims))
