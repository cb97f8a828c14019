# SPDX-License-Identifier: Apache-2.0
"""Biases of INT8 convolutions that the target adds for less after a Transpose, and those that are added there already.

TensorRT for RTX writes the sums of an INT8 convolution, and adds the bias in the next kernel. If a Transpose follows
and then an operator that reduces the channels, bias and Transpose become a kernel of their own; if the bias is added
after the Transpose, one kernel adds, transposes and reduces. How the graph is edited is in `passes/late_bias.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qdqtool.graph.edit import traced_rule
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, attribute
from qdqtool.graph.weighted import pair_behind
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rule_kinds import LateBiasReader
from qdqtool.rulebook import RuleBook

LATE_BIAS = "late-bias"  # what the trace on an Add says that holds the bias of a convolution
_BIAS, _CHANNELS = 2, 1  # number of the input; axis of what a convolution makes
_MOVES = ("Transpose", "Reshape")
_Shapes = Mapping[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class LateBias:
    """A convolution and the way of its sums to where its bias is added, or may be.

    Attributes:
        product: the convolution.
        moves: what moves its sums, in the order of the data, the last of which gives the channels as the last axis.
        bias: the constant, one value per channel.
        add: the Add; None where the convolution itself adds the bias.
    """

    product: Node
    moves: tuple[Node, ...]
    bias: str
    add: Node | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of its nodes."""
        return (self.product, *self.moves, *(() if self.add is None else (self.add,)))


def late_biases(view: GraphView, rules: RuleBook) -> list[LateBias]:
    """The biases of a graph with pairs that its target adds for less after a Transpose, in file order."""
    readers = RuleIndex(rules.late_biases, rules)
    return [one for one in _candidates(view) if _is_read(view, one, readers)] if readers else []


def placed_biases(view: GraphView) -> list[LateBias]:
    """The biases that are added after a Transpose already: what `passes/late_bias.py` did to a graph."""
    adds = (node for node in view.nodes if node.op == "Add" and traced_rule(node) == LATE_BIAS)
    return [found for add in adds if (found := _behind(view, add)) is not None]


def _behind(view: GraphView, add: Node) -> LateBias | None:
    """What an Add that we made adds; None where the graph before it was changed since."""
    moves: list[Node] = []
    node = view.producers.get(add.inputs[0])
    while node is not None and node.op in _MOVES and _is_read_once(view, node):
        moves.insert(0, node)
        node = view.producers.get(node.inputs[0])
    if node is None or node.op != "Conv" or len(node.inputs) > _BIAS or not moves or not _is_read_once(view, node):
        return None
    return LateBias(node, tuple(moves), add.inputs[1], add)


def _candidates(view: GraphView) -> Iterator[LateBias]:
    """INT8 convolutions with a bias whose sums pass a Transpose alone."""
    for node in view.nodes:
        if node.op != "Conv" or len(node.inputs) <= _BIAS or not node.inputs[_BIAS] or not _is_int8(view, node):
            continue
        bias = node.inputs[_BIAS]
        shape = view.shape(bias)
        if shape is not None and len(shape) == 1 and pair_behind(view, bias) is None:
            moves = _moves(view, node, shape[0])
            if moves:
                yield LateBias(node, moves, bias)


def _is_int8(view: GraphView, node: Node) -> bool:
    """Whether both operands of a convolution come out of DequantizeLinears."""
    makers = [view.producers.get(name) for name in node.inputs[:_BIAS]]
    return all(maker is not None and maker.op == DEQUANTIZE for maker in makers)


def _moves(view: GraphView, product: Node, channels: int) -> tuple[Node, ...]:
    """What moves the sums of a convolution, up to the last Transpose that gives the channels as the last axis."""
    shapes, axis, found, last = known_shapes(view), _CHANNELS, list[Node](), 0
    node = product
    while _is_read_once(view, node):
        node = view.consumers(node.key)[0].node
        moved = _axis_behind(node, axis, channels, shapes)
        if moved is None or view.consumers(node.inputs[0])[0].index:
            break
        axis = moved
        found.append(node)
        rank = len(shapes.get(node.key, ()))
        if node.op == "Transpose" and rank and axis == rank - 1:
            last = len(found)
    return tuple(found[:last])


def _axis_behind(node: Node, axis: int, channels: int, shapes: _Shapes) -> int | None:
    """The axis on which channels lie after a Transpose or a Reshape; None after anything else, or where unknown."""
    if node.op == "Transpose":
        order = attribute(node, "perm", None)
        rank = len(shapes.get(node.inputs[0], ()))
        given = list(range(rank))[::-1] if order is None else list(order)  # type: ignore[call-overload]
        return given.index(axis) if axis in given else None
    if node.op != "Reshape" or axis != _CHANNELS:
        return None
    before, after = (shapes.get(name, ()) for name in (node.inputs[0], node.key))
    if len(after) <= _CHANNELS or after[_CHANNELS] != channels or None in (*before[1:], *after[1:]):
        return None
    same = math.prod(size or 0 for size in before[1:]) == math.prod(size or 0 for size in after[1:])
    return axis if before and same else None


def _is_read_once(view: GraphView, node: Node) -> bool:
    """Whether one node reads what another one makes, and nothing else does."""
    name = node.key
    if view.is_output(name) or name in view.captured or name in view.pairs:
        return False
    return len(view.consumers(name)) == 1


def _is_read(view: GraphView, one: LateBias, readers: RuleIndex[LateBiasReader]) -> bool:
    """Whether what moves the sums is read by an operator that a rule names, and is neither an output nor quantized."""
    name = one.moves[-1].key
    if view.is_output(name) or name in view.captured or name in view.pairs:
        return False
    return any(use.index == 0 and readers.first(view, use.node) is not None for use in view.consumers(name))
