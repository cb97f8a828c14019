# SPDX-License-Identifier: Apache-2.0
"""Operators of layers that read or give INT8 values: FP16 saves nothing inside of them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from qdqtool.graph.order import topological
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import value_names
from qdqtool.match.groups import find_groups
from qdqtool.match.late_bias import placed_biases
from qdqtool.precision.amp_rules import amp_rules
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
        elif only_moves(node) and (names := value_names(node)):
            before = {scales.get(name) for name in names}
            if len(before) == 1 and (scale_bits := before.pop()) is not None:
                found.append(node)
                scales.update((name, scale_bits) for name in node.outputs if name)
    return found


def int8_layers(view: GraphView) -> frozenset[str]:
    """First outputs of the operators that are FP32 in the file and cost no byte by it, for a layer reads or gives INT8.

    A layer is a product and what is fused behind it. It computes in registers, whose width nobody pays for; what it
    reads and writes is paid for. TensorRT for RTX 1.7.1 rounds inside of it where the file says so
    (MulCastAddReluCastMulMinMaxRounCast), which moves INT8 codes by a step. So these are FP32:

    - a product of DequantizeLinears with one scale per output channel of its weight, whose accumulators are written in
      FP32 in any case, and what is fused behind it, up to what reads another tensor in half. What reads the last tensor
      in half gets a Cast, in the same layer. Not a layer that a QuantizeLinear and operators in half read both: it
      writes one tensor for the two, and in FP32 (blazeface_front: 6 % more bytes). With one scale for a whole weight
      the product writes its accumulators in the type of the file, which is better half, and transposed convolutions
      are no INT8 products there;
    - behind any other product what is fused up to QuantizeLinears, from the first operator on that computes: the
      product is half, and the Cast to FP32 stands behind it in place of one in front of the QuantizeLinear;
    - what moves values of one scale in front of such products alone;
    - what moves the sums of such a convolution up to its bias, where that is added behind them, and its Add.
    """
    reads, groups = TensorReaders(view), [group.nodes for group in find_groups(view, load_rules("gpu"))]
    movers, layers = _movers(view), [nodes for nodes in groups if _is_int8_product(view, nodes[0])]
    while True:  # what goes takes those with it that it hands values to, or gets them from
        kept = {node.key for nodes in (movers, *layers) for node in nodes}
        moved = {node.key for node in movers}
        for node in reversed(movers):
            if not reads.end_in(node, kept):
                kept.remove(node.key)
        for node in movers:
            if not are_int8(view, value_names(node), kept):
                kept.discard(node.key)
        moved &= kept
        closed = {node.key for nodes in layers if all(reads.end_in(one, kept) for one in nodes) for node in nodes}
        shared = [any(reads.are_mixed(one, kept) for one in nodes) for nodes in layers]
        fit = [() if mixed else _fused(view, nodes, moved, closed) for mixed, nodes in zip(shared, layers, strict=True)]
        if len(moved) == len(movers) and fit == layers:
            break
        movers, layers = [node for node in movers if node.key in moved], [nodes for nodes in fit if nodes]
    ends = [_epilogue(reads, nodes, moved) for nodes in groups if nodes[0].key not in kept]
    ends += [one.nodes for one in placed_biases(view) if one.product.key in kept]
    return frozenset(kept.union(node.key for nodes in ends for node in nodes))


class TensorReaders:
    """Who reads the values of each tensor."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._of: dict[str, list[Node]] = {}
        for node in view.every:
            for place, name in enumerate(node.inputs):
                if not reads_any_type(node, place):
                    self._of.setdefault(name, []).append(node)

    def end_in(self, node: Node, keys: Collection[str]) -> bool:
        """Whether nothing but operators of `keys` and QuantizeLinears read what a node makes."""
        made = [name for name in node.outputs if name]
        if any(self.view.is_output(name) or name in self.view.captured for name in made):
            return False
        return all(one.key in keys or one.op == QUANTIZE for name in made for one in self._of.get(name, ()))

    def are_any(self, node: Node) -> bool:
        """Whether anything reads what a node makes."""
        return any(name in self._of for name in node.outputs)

    def are_mixed(self, node: Node, keys: Collection[str]) -> bool:
        """Whether a QuantizeLinear and an operator that is not of `keys` read what a node makes."""
        readers = [one for name in node.outputs if name for one in self._of.get(name, ())]
        quantized = any(one.op == QUANTIZE for one in readers)
        return quantized and any(one.op != QUANTIZE and one.key not in keys for one in readers)


def _fused(
    view: GraphView, nodes: tuple[Node, ...], moved: Collection[str], closed: Collection[str]
) -> tuple[Node, ...]:
    """The nodes of a layer up to the first that reads a half tensor; an INT8 layer may read another's output."""
    known = {*moved, *closed} if nodes[0].key in closed else set(moved)
    for at, node in enumerate(nodes):
        if not are_int8(view, node.inputs, known):
            return nodes[:at]
        known.add(node.key)
    return nodes


def _epilogue(reads: TensorReaders, nodes: tuple[Node, ...], moved: Collection[str]) -> tuple[Node, ...]:
    """What is fused behind a product in half, from the first operator on that computes; none where it gives no INT8."""
    behind = tuple(itertools.dropwhile(lambda node: amp_rules().list_of(node.op) == "clear", nodes[1:]))
    own = {node.key for node in behind}
    known = {*moved, *(node.key for node in nodes)}
    fits = all(reads.end_in(node, own) and are_int8(reads.view, node.inputs, known) for node in behind)
    return behind if fits else ()


def only_moves(node: Node) -> bool:
    """Whether nothing but values that an operator reads comes out of it."""
    return node.op in operator_set("unchanged") or node.op == "GlobalMaxPool"


def _is_int8_product(view: GraphView, node: Node) -> bool:
    """Whether the weight of a product comes out of a DequantizeLinear with a scale for each channel."""
    index = weight_index(view, node)
    maker = None if index is None else view.producers.get(node.inputs[index])
    if node.op == "ConvTranspose" or maker is None or maker.op != DEQUANTIZE:
        return False
    scale = view.array(maker.inputs[1])
    return scale is not None and scale.ndim == 1


def are_int8(view: GraphView, names: Iterable[str], keys: Collection[str]) -> bool:
    """Whether all of some tensors are constant, or made by a DequantizeLinear or by operators of `keys`."""
    makers = (view.producers.get(name) for name in names if name and not view.is_constant(name))
    return all(maker is not None and (maker.op == DEQUANTIZE or maker.key in keys) for maker in makers)
