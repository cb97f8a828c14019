# SPDX-License-Identifier: Apache-2.0
"""Operators between a DequantizeLinear and a QuantizeLinear whose layers move INT8 values: FP16 saves nothing there."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from qdqtool.graph.order import topological
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import value_names
from qdqtool.match.groups import find_groups
from qdqtool.precision.half_places import reads_any_type
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import load_rules


def int8_movers(view: GraphView) -> frozenset[str]:
    """First outputs of the operators that move values of one scale from DequantizeLinear to QuantizeLinear.

    In FP32 they are INT8 in the engine; with Casts around them TensorRT for RTX 1.7.1 builds kernels of their own
    (yolox_nano: 218 layers, 215 without). On the way to a product that is not FP32 (`int8_layers`) no operator needs
    this: the compiler moves a DequantizeLinear and the Cast directly behind it together, through MaxPool, Concat, Slice
    and their like. The Cast must stand there and not behind them: a Pad has to be next to its convolution (mobilenetv1:
    4 of 28 products in FP16 otherwise).
    """
    ends = {node.inputs[0] for node in view.every if node.op == QUANTIZE and node.inputs}
    kept = set()
    for node in reversed(_movers(view)):
        if not ends.isdisjoint(node.outputs):
            kept.add(node.key)
            ends.update(value_names(node))
    return frozenset(kept)


def _movers(view: GraphView) -> list[Node]:
    """The operators that move values of DequantizeLinears of one scale, in the order of the data."""
    scales: dict[str, bytes] = {}
    found: list[Node] = []
    for node in topological(view.every):
        if node.op == DEQUANTIZE and len(node.inputs) > 1:
            scale = view.array(node.inputs[1])
            scales[node.key] = node.key.encode() if scale is None else scale.tobytes()
        elif (node.op in operator_set("unchanged") or node.op == "GlobalMaxPool") and (names := value_names(node)):
            before = {scales.get(name) for name in names}
            if len(before) == 1 and (scale_bits := before.pop()) is not None:
                found.append(node)
                scales.update((name, scale_bits) for name in node.outputs if name)
    return found


def int8_layers(view: GraphView) -> frozenset[str]:
    """First outputs of the operators of fused groups that are INT8 from their inputs to their outputs.

    A product of two DequantizeLinears, with one scale per output channel of its weight, what is fused behind it up to
    QuantizeLinears, and what moves values of one scale in front of such groups alone. Its layers hand over integers
    and, between the product and what is fused, FP32 accumulators. So FP16 saves no byte there: TensorRT for RTX 1.7.1
    rounds to it and back inside of a kernel (MulCastAddReluCastMulMinMaxRounCast), which moves codes by one step. With
    one scale for a whole weight the product writes its accumulators in the type of the file, which is better half, and
    transposed convolutions are no INT8 products there.
    """
    readers: dict[str, list[Node]] = {}
    for node in view.every:
        for place, name in enumerate(node.inputs):
            if not reads_any_type(node, place):
                readers.setdefault(name, []).append(node)

    def ends_in(node: Node, keys: Collection[str]) -> bool:
        made = [name for name in node.outputs if name]
        if any(view.is_output(name) or name in view.captured for name in made):
            return False
        return all(one.key in keys or one.op == QUANTIZE for name in made for one in readers.get(name, ()))

    movers = _movers(view)
    groups = [group for group in find_groups(view, load_rules("gpu")) if _is_int8_product(view, group.start)]
    while True:  # what goes takes those with it that it hands values to, or gets them from
        kept = {node.key for one in (movers, *(group.nodes for group in groups)) for node in one}
        for node in reversed(movers):
            if not ends_in(node, kept):
                kept.remove(node.key)
        for node in movers:
            if not _are_int8(view, value_names(node), kept):
                kept.discard(node.key)
        left = [node for node in movers if node.key in kept]
        fit = [
            group
            for group in groups
            if all(ends_in(node, kept) and _are_int8(view, node.inputs, kept) for node in group.nodes)
        ]
        if len(fit) == len(groups) and len(left) == len(movers):
            return frozenset(kept)
        groups, movers = fit, left


def _is_int8_product(view: GraphView, node: Node) -> bool:
    """Whether the weight of a product comes out of a DequantizeLinear with a scale for each channel."""
    index = weight_index(view, node)
    maker = None if index is None else view.producers.get(node.inputs[index])
    if node.op == "ConvTranspose" or maker is None or maker.op != DEQUANTIZE:
        return False
    scale = view.array(maker.inputs[1])
    return scale is not None and scale.ndim == 1


def _are_int8(view: GraphView, names: Iterable[str], keys: Collection[str]) -> bool:
    """Whether all of some tensors are constant, or made by a DequantizeLinear or by operators of `keys`."""
    makers = (view.producers.get(name) for name in names if name and not view.is_constant(name))
    return all(maker is not None and (maker.op == DEQUANTIZE or maker.key in keys) for maker in makers)
