# SPDX-License-Identifier: Apache-2.0
"""Quantized weights whose channels can have one scale, with factors after the product, and those that have it already.

TensorRT for RTX multiplies the sums of a product by the scale of its operands before it writes them, if the weight has
one scale; it then writes FP16 where the file says so. With a scale per channel it writes the sums as they are, in FP32.
`s[c] = s * f[c]` with a power of two for `s` loses nothing: `W / f` has the same INT8 numbers at `s` as `W` at `s[c]`,
bit for bit. `s` is as large as FP16 allows for the largest sum that the weight can make of any INT8 input. FP8 is built
alike. How the graph is edited is in `passes/common_scale.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.formats import NumberFormat, format_of_element
from qdqtool.graph.edit import traced_rule
from qdqtool.graph.heads import nodes_before_weights
from qdqtool.graph.view import DEQUANTIZE, GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import output_axis, pair_behind, weight_index
from qdqtool.match.flow import value_names
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook

Float32 = npt.NDArray[np.float32]

COMMON_SCALE = "common-scale"  # what the trace on the nodes says that carry the factors
BIAS = 2  # number of a product's input
_MATRICES = frozenset({"Gemm", "MatMul"})
_PRODUCTS = _MATRICES | {"Conv"}
LARGEST_SUM = 2.0**15  # of a sum times its scale: half of what FP16 holds
_EXPONENTS = (-20, 8)  # of the scale of a weight: its largest code is an FP16 number
_MOST_HALF = 65504.0


@dataclass(frozen=True)
class ChannelScales:
    """A product whose weight has a scale for each channel, and what it can have instead.

    Attributes:
        node: the product.
        pair: of its weight.
        axis: of the weight, along which the channels lie.
        rank: of the weight.
        scale: the one scale, a power of two.
        factors: float32[C], of the channels.
        format: of the codes.
    """

    node: Node
    pair: Pair
    axis: int
    rank: int
    scale: np.float32
    factors: Float32
    format: NumberFormat

    def at(self, scale: np.float32) -> ChannelScales:
        """The same with another power of two."""
        return replace(self, scale=scale, factors=self.factors * (self.scale / scale))


def channel_scales(view: GraphView, rules: RuleBook) -> list[ChannelScales]:
    """The products of a graph with pairs whose weights profit from one scale on the target, in file order.

    Without those that no other product follows: what is after a head tells what it is, and in which type it computes.
    Of matrix products of one tensor all or none, and with one scale: they are built as one then, and not at all where
    their types differ.
    """
    profiting = RuleIndex(rules.common_scales, rules)
    behind = nodes_before_weights(view, lambda node: list(filter(None, node.inputs))) if profiting else set()
    nodes = [node for node, _ in profiting.nodes(view) if id(node) in behind]
    found = [one for node in nodes if (one := _channel_scales(view, node)) is not None]
    by_key = {one.node.key: one for one in found}
    for group in products_of_one_tensor(view):
        beside = [by_key.pop(key) for key in group if key in by_key]
        if len(beside) == len(group):
            least = min(one.scale for one in beside)
            by_key |= {one.node.key: one.at(least) for one in beside}
    return [by_key[one.node.key] for one in found if one.node.key in by_key]


def products_of_one_tensor(view: GraphView) -> list[dict[str, Node]]:
    """INT8 matrix products that read the same tensor, by their outputs, where there are several."""
    groups: dict[str, dict[str, Node]] = {}
    for node in view.nodes:
        index = weight_index(view, node) if node.op in _MATRICES else None
        if index is not None and pair_behind(view, node.inputs[index]) is not None:
            groups.setdefault(node.inputs[1 - index], {})[node.key] = node
    return [group for group in groups.values() if len(group) > 1]


def has_one_scale(view: GraphView, node: Node) -> bool:
    """Whether the weight of an INT8 product has one scale."""
    index = weight_index(view, node)
    pair = None if index is None else pair_behind(view, node.inputs[index])
    scale = None if pair is None else view.array(pair.dequantize.inputs[1])
    return scale is not None and scale.ndim == 0


def _channel_scales(view: GraphView, node: Node) -> ChannelScales | None:
    """Of one product; None where its weight has one scale already, or cannot have it."""
    index = weight_index(view, node) if node.op in _PRODUCTS else None
    pair = None if index is None else _pair_of(view, node, index)
    if index is None or pair is None or not _is_plain(view, node):
        return None
    scales, weight = view.array(pair.dequantize.inputs[1]), view.array(pair.tensor)
    step = _input_scale(view, node.inputs[1 - index])
    row = _symmetric_format(view, pair)
    if scales is None or weight is None or step is None or row is None:
        return None
    axis, rank = output_axis(node, index, weight.ndim), weight.ndim
    if scales.shape != (weight.shape[axis],) or _axis_of(pair, rank) != axis:
        return None
    scale = _common(weight, scales, axis, step, row)
    if scale is None:
        return None
    factors = scales.astype(np.float32, copy=False) / scale
    return ChannelScales(node, pair, axis, rank, scale, factors, row)


def _pair_of(view: GraphView, node: Node, index: int) -> Pair | None:
    """The pair of a weight that nothing else reads, and whose numbers pass nothing between its Q and its DQ."""
    name = node.inputs[index]
    maker = view.producers.get(name)
    if maker is None or maker.op != DEQUANTIZE or len(view.consumers(view.root(name))) != 1:
        return None
    pair = next((one for one in view.pairs.get(view.root(name), ()) if one.dequantize is maker), None)
    if pair is None or pair.between or len(view.pairs[pair.tensor]) != 1:
        return None
    return None if _symmetric_format(view, pair) is None else pair


def _symmetric_format(view: GraphView, pair: Pair) -> NumberFormat | None:
    """The format of a pair both of whose nodes have the same float32 scales, and zero points that are 0; else None."""
    if any(node.inputs[1] != pair.dequantize.inputs[1] or len(node.inputs) < 3 for node in pair.nodes):
        return None
    scale, zero = view.array(pair.dequantize.inputs[1]), view.constant_tensor(pair.dequantize.inputs[2])
    row = None if zero is None else format_of_element(zero.data_type)
    if row is None or scale is None or scale.dtype != np.float32:
        return None
    return row if all(row.has_zero_point(view.array(node.inputs[2])) for node in pair.nodes) else None


def _is_plain(view: GraphView, node: Node) -> bool:
    """Whether a product adds nothing but a bias with a value per channel."""
    if node.op == "Gemm" and (attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0):
        return False
    bias = node.inputs[BIAS] if len(node.inputs) > BIAS else ""
    shape = view.shape(bias) if bias else None
    return not bias or (shape is not None and len(shape) == 1)


def _axis_of(pair: Pair, rank: int) -> int:
    return int(str(attribute(pair.dequantize, "axis", 1))) % rank


def _input_scale(view: GraphView, name: str) -> float | None:
    """The largest scale of the pairs whose values a tensor holds; None where there is a way without a pair."""
    node = view.producers.get(name)
    if node is None:
        return None
    if node.op == DEQUANTIZE:
        scale = view.array(node.inputs[1])
        return None if scale is None or scale.ndim else float(scale)
    if node.op not in operator_set("unchanged") and not _pads_with_zeros(view, node):
        return None
    found = [_input_scale(view, one) for one in value_names(node)]
    return None if not found or None in found else max(one for one in found if one is not None)


def _pads_with_zeros(view: GraphView, node: Node) -> bool:
    if node.op != "Pad":
        return False
    value = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    return value is not None and not value.any()


def _common(
    weight: npt.NDArray[np.generic], scales: npt.NDArray[np.generic], axis: int, step: float, row: NumberFormat
) -> np.float32 | None:
    """The largest power of two with which no sum leaves FP16's range, whatever codes go in; None for none."""
    others = tuple(one for one in range(weight.ndim) if one != axis)
    sizes = np.abs(weight.astype(np.float32, copy=False)).sum(axis=others, dtype=np.float64)
    numbers = sizes / scales.astype(np.float64) + weight.size / weight.shape[axis] / 2  # rounding adds half at most
    largest = float(numbers.max()) * -row.lowest * step
    if not 0 < largest < math.inf:
        return None
    most = min(_EXPONENTS[1], math.floor(math.log2(_MOST_HALF / row.largest)))
    exponent = min(math.floor(math.log2(LARGEST_SUM / largest)), most)
    return np.float32(math.ldexp(1.0, exponent)) if exponent >= _EXPONENTS[0] else None


@dataclass(frozen=True)
class CommonScaleWeight:
    """A weight with one scale that its channels had scales of their own before.

    Attributes:
        pair: with the one scale.
        axis: of the weight, along which the channels lie.
        scales: float32[C], of the channels.
        divide: the Div in front of the pair; None where integers are stored.
    """

    pair: Pair
    axis: int
    scales: Float32
    divide: Node | None


def divided_weights(view: GraphView) -> list[str]:
    """What the nodes make that divide weights by their factors."""
    return [node.key for node in view.nodes if node.op == "Div" and traced_rule(node) == COMMON_SCALE]


def placed_factors(view: GraphView) -> list[Node]:
    """The nodes that `passes/common_scale.py` put after products: a Mul each, and what adds its bias."""
    ops = ("Mul", "Add", "Unsqueeze")
    return [node for node in view.nodes if node.op in ops and traced_rule(node) == COMMON_SCALE]


def common_scale_weights(view: GraphView) -> Iterator[tuple[CommonScaleWeight, Node]]:
    """The weights that have one scale by `passes/common_scale.py`, each with the Mul after its product."""
    for node in placed_factors(view):
        product = _product_before(view, node) if node.op == "Mul" else None
        weight = None if product is None else _divided(view, product, node)
        if weight is not None:
            yield weight, node


def _product_before(view: GraphView, node: Node) -> Node | None:
    """The product whose sums, cast and moved, a Mul reads."""
    before = view.producers.get(node.inputs[0])
    while before is not None and before.op in ("Cast", "Transpose", "Reshape"):
        before = view.producers.get(before.inputs[0])
    return before if before is not None and before.op in _PRODUCTS else None


def _divided(view: GraphView, product: Node, multiplied: Node) -> CommonScaleWeight | None:
    index = weight_index(view, product)
    if index is None:
        return None
    maker = view.producers.get(product.inputs[index])
    maker = view.producers.get(maker.inputs[0]) if maker is not None and maker.op == "Cast" else maker
    if maker is None or maker.op != DEQUANTIZE:
        return None
    pair = next((one for one in view.pairs.get(view.root(maker.key), ()) if one.dequantize is maker), None)
    divide = None if pair is None or pair.quantize is None else view.producers.get(pair.quantize.inputs[0])
    one, factors = view.array(maker.inputs[1]), view.array((divide or multiplied).inputs[1])
    dims = view.shape(pair.tensor) if pair is not None else None
    if pair is None or one is None or one.ndim or factors is None or dims is None:
        return None
    scales = (factors.astype(np.float32) * one.astype(np.float32)).reshape(-1)
    return CommonScaleWeight(pair, output_axis(product, index, len(dims)), scales, divide)
