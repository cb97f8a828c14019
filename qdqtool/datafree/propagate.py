# SPDX-License-Identifier: Apache-2.0
"""Which rule of moments belongs to which operator. Arithmetic is in elementwise.py and linear.py.

How moments move with the values is in `graph/channels/relayout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qdqtool.datafree import elementwise, linear
from qdqtool.datafree.known_tensors import KnownTensors, integer
from qdqtool.datafree.moments import (
    INF,
    MOST,
    Array,
    Moments,
    collapsed,
    function_of,
    gaussian,
    guess,
    mixture,
    padded,
    rearranged,
    within,
)
from qdqtool.graph.channels import relayout
from qdqtool.graph.channels.arguments import permutation, slices_of
from qdqtool.graph.nodes import is_training
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.view import Node, attribute

Found = Moments | list[Moments] | None


Rule = Callable[[KnownTensors, Node], Found]


def propagate(known: KnownTensors, node: Node) -> list[Moments]:
    """What is expected of a node's outputs, one entry each.

    Raises:
        QdqError: a weight holds NaN or infinity (named).
    """
    if node.op in elementwise.UNARY:
        found: Found = elementwise.unary(node, known.of(node, 0))
    elif node.op in elementwise.BINARY and len(node.inputs) == 2:
        found = elementwise.binary(node, *_together([known.of(node, 0), known.of(node, 1)]))
    elif node.op in elementwise.SEVERAL and node.inputs:
        found = elementwise.several(node, _together([known.of(node, i) for i in range(len(node.inputs))]))
    else:
        rule = RULES.get(node.op)
        found = rule(known, node) if rule else None
    return [known_fit(known, name, one) for name, one in zip(node.outputs, _each(found, node), strict=True)]


def known_fit(known: KnownTensors, name: str, found: Moments) -> Moments:
    """The same moments; described alike everywhere where their shape contradicts the tensor's."""
    shape = known.shape(name)
    sizes = found.mean.shape
    if shape is None or not sizes:
        return found
    fits = len(sizes) <= len(shape) and all(
        size in (1, real) or real is None for size, real in zip(sizes[::-1], shape[::-1], strict=False)
    )
    return found if fits else collapsed(found)


def _each(found: Found, node: Node) -> list[Moments]:
    """One entry for each output."""
    if isinstance(found, list):
        return (found + [guess()] * len(node.outputs))[: len(node.outputs)]
    first = guess() if found is None else found
    return [first, *(guess() for _ in node.outputs[1:])][: len(node.outputs)]


def _together(parts: list[Moments]) -> list[Moments]:
    """The same tensors; each described alike everywhere where their shapes contradict one another or grow too large."""
    try:
        shape = np.broadcast_shapes(*(part.mean.shape for part in parts))
    except ValueError:
        return [collapsed(part) for part in parts]
    return parts if np.prod(shape) <= MOST else [collapsed(part) if part.mean.size > 1 else part for part in parts]


def _ints(value: object) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return [int(item) for item in value.reshape(-1)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [int(item) for item in value]
    return None


def _axes(known: KnownTensors, node: Node, index: int = 1) -> list[int] | None:
    given = _ints(attribute(node, "axes"))
    return _ints(known.constant_input(node, index)) if given is None else given


def _same(known: KnownTensors, node: Node) -> Found:
    return known.of(node, 0)


def _alike(known: KnownTensors, node: Node) -> Found:
    return collapsed(known.of(node, 0))


def _conv(known: KnownTensors, node: Node) -> Found:
    weight = known.constant_input(node, 1)
    groups = integer(node, "group", 1)
    if weight is None or weight.ndim < 3 or 0 in weight.shape or groups < 1:
        return None
    linear.sound(weight, node.inputs[1])
    if weight.shape[0] % groups:
        return None
    bias = known.vector(node, 2, 0.0)
    if bias.ndim > 1 or bias.size not in (
        1,
        weight.shape[1] * groups if node.op == "ConvTranspose" else weight.shape[0],
    ):
        return None  # a bias that an operator makes: what is stored was checked when the model was opened
    if node.op == "ConvTranspose":
        overlap = float(np.prod(_ints(attribute(node, "strides")) or [1]))
        return linear.transposed_convolution(known.of(node, 0), weight, bias, groups, overlap)
    return linear.convolution(known.of(node, 0), weight, bias, groups)


def _gemm(known: KnownTensors, node: Node) -> Found:
    weight = known.constant_input(node, 1)
    if weight is None or weight.ndim != 2 or not weight.size:
        return _matmul(known, node)
    linear.sound(weight, node.inputs[1])
    turned = weight.T if integer(node, "transB", 0) else weight
    alpha, beta = elementwise.real(node, "alpha", 1.0), elementwise.real(node, "beta", 1.0)
    product = linear.matrix_product(known.of(node, 0), turned, weight_left=False)
    bias = beta * known.vector(node, 2, 0.0)
    try:
        np.broadcast_shapes(product.mean.shape, bias.shape)
    except ValueError:
        return None
    return gaussian(alpha * product.mean + bias, alpha**2 * product.var, known=product.known)


def _matmul(known: KnownTensors, node: Node) -> Found:
    for index in (1, 0):
        weight = known.constant_input(node, index)
        if weight is not None and weight.ndim and weight.size:
            linear.sound(weight, node.inputs[index])
            return linear.matrix_product(known.of(node, 1 - index), weight, weight_left=index == 0)
    shape = known.shape(node.inputs[0])
    terms = (shape[-1] if shape else None) or 64
    return linear.inner_product(known.of(node, 0), known.of(node, 1), terms)


def batch_norm_statistics(known: KnownTensors, node: Node) -> tuple[Array, Array, Array, Array] | None:
    """Scale, bias, mean and variance of a BatchNormalization in inference, float64 [channels]; None where computed."""
    arrays = [known.constant_input(node, index) for index in (1, 2, 3, 4)]
    if node.op != "BatchNormalization" or is_training(node):
        return None
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    for array, name in zip(arrays, node.inputs[1:5], strict=True):
        linear.sound(np.asarray(array), name)
    scale, bias, mean, var = (np.asarray(array, np.float64) for array in arrays)
    return scale, bias, mean, np.abs(var) + elementwise.real(node, "epsilon", 1e-5)


def _batch_norm(known: KnownTensors, node: Node) -> Found:
    statistics = batch_norm_statistics(known, node)
    if statistics is None:
        return None
    rank = known.rank(node.inputs[0]) or known.of(node, 0).mean.ndim or None
    return linear.normalized(statistics[0], statistics[1], rank, 1)


def _channel_norm(known: KnownTensors, node: Node) -> Found:
    scale, bias = known.vector(node, 1, 1.0), known.vector(node, 2, 0.0)
    rank = known.rank(node.inputs[0])
    shape = known.shape(node.inputs[0])
    if node.op == "GroupNormalization" and shape and shape[1] and scale.size not in (0, shape[1]):
        scale, bias = (np.repeat(one, max(1, shape[1] // one.size)) for one in (scale, bias))
    return linear.normalized(scale, bias, rank, 1)


def _layer_norm(known: KnownTensors, node: Node) -> Found:
    return [linear.normalized(known.vector(node, 1, 1.0), known.vector(node, 2, 0.0), None, -1)]


def _softmax(known: KnownTensors, node: Node) -> Found:
    shape = known.shape(node.inputs[0])
    axis = integer(node, "axis", -1)
    length = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    share = 1 / (length or 64)
    found = gaussian(share, share**2, 0.0, 1.0, known=True)
    if node.op == "Softmax":
        return replace(found, low=0.0, high=1.0)
    scores = collapsed(known.of(node, 0))
    return gaussian(scores.mean + np.log(share), scores.var, -INF, 0.0, scores.known)


def _reduce(known: KnownTensors, node: Node) -> Found:
    x, shape = known.of(node, 0), known.shape(node.inputs[0])
    axes, keep = _axes(known, node), bool(integer(node, "keepdims", 1))
    if node.op in ("ReduceMax", "ReduceMin"):
        kept = linear.averaged(x, axes, shape, keep)
        return within([x], kept)
    if node.op in ("ReduceSumSquare", "ReduceL2"):
        squared = function_of([x], np.square, 0.0, INF) or guess(0.0, INF)
        total = linear.averaged(squared, axes, shape, keep, total=True)
        if node.op == "ReduceSumSquare":
            return total
        return function_of([replace(total, source="*")], lambda v: np.sqrt(np.maximum(v, 0)), 0.0, INF)
    return linear.averaged(x, axes, shape, keep, total=node.op == "ReduceSum")


def _global_pool(known: KnownTensors, node: Node) -> Found:
    rank = known.rank(node.inputs[0]) or known.of(node, 0).mean.ndim
    if rank < 3:
        return known.of(node, 0)
    return linear.averaged(known.of(node, 0), range(2, rank), known.shape(node.inputs[0]), keep=True)


def _reshape(known: KnownTensors, node: Node) -> Found:
    before, after = known.shape(node.inputs[0]), known.shape(node.outputs[0])
    return rearranged(known.of(node, 0), lambda values: relayout.reshaped(values, before, after, MOST))


def _transpose(known: KnownTensors, node: Node) -> Found:
    x = known.of(node, 0)
    order = permutation(node, x.mean.ndim) or []
    return rearranged(x, lambda values: relayout.transposed(values, order)) if x.mean.ndim else x


def _concat(known: KnownTensors, node: Node) -> Found:
    """Tensors after one another; a mixture where sizes along the axis are not known or too many."""
    parts = [known.of(node, index) for index in range(len(node.inputs))]
    shapes = [known.shape(name) for name in node.inputs]
    rank = max([len(shape) for shape in shapes if shape is not None] + [part.mean.ndim for part in parts])
    axis = integer(node, "axis", 1)
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis < rank:
        return mixture([collapsed(part) for part in parts])
    parts = [padded(part, rank) for part in parts]
    sizes = [_size(part, shape, axis) for part, shape in zip(parts, shapes, strict=True)]
    varied = any(part.mean.size > 1 or part.mean.flat[0] != parts[0].mean.flat[0] for part in parts)
    means, variances = (
        relayout.concatenated(arrays, axis, sizes, MOST) if varied else None
        for arrays in ([part.mean for part in parts], [part.var for part in parts])
    )
    if means is None or variances is None:
        return mixture([collapsed(part) for part in parts])
    return within(parts, Moments(means, variances, 0.0, 0.0))


def _size(part: Moments, shape: Shape | None, axis: int) -> int | None:
    if part.mean.shape[axis] > 1:
        return int(part.mean.shape[axis])
    return shape[axis] if shape is not None and axis < len(shape) else None


def _taken(x: Moments, axis: int, rank: int | None, index: relayout.Array | slice) -> Moments:
    """Some places of one axis; the moments themselves where that changes nothing."""
    if x.mean.size == 1 and isinstance(index, slice):
        return x
    x = padded(x, rank or x.mean.ndim)
    if relayout.taken(x.mean, axis, index, MOST) is x.mean:
        return x
    return rearranged(x, lambda values: relayout.taken(values, axis, index, MOST))


def _slice(known: KnownTensors, node: Node) -> Found:
    x, rank = known.of(node, 0), known.rank(node.inputs[0])
    rows = slices_of(node, known.numbers)
    if rows is None:
        return collapsed(x)
    for axis, start, end, step in rows:
        x = _taken(x, axis, rank, slice(start, None if step < 0 and end < -(2**30) else end, step or 1))
    return x


def _split(known: KnownTensors, node: Node) -> Found:
    axis, rank = integer(node, "axis", 0), known.rank(node.inputs[0])
    shapes = [known.shape(name) for name in node.outputs]
    sizes = [shape[axis] if shape and -len(shape) <= axis < len(shape) else None for shape in shapes]
    x = padded(known.of(node, 0), rank or 0)
    axis = axis + x.mean.ndim if axis < 0 else axis
    if not 0 <= axis < x.mean.ndim or x.mean.shape[axis] == 1:
        return [x] * len(sizes)
    total = x.mean.shape[axis]
    if any(not size for size in sizes) or sum(size or 0 for size in sizes) != total:
        if total % len(sizes):
            return [collapsed(x, (axis,))] * len(sizes)
        sizes = [total // len(sizes)] * len(sizes)
    ends = np.cumsum([size or 0 for size in sizes])
    return [_taken(x, axis, None, slice(int(e) - (s or 0), int(e))) for e, s in zip(ends, sizes, strict=True)]


def _gather(known: KnownTensors, node: Node) -> Found:
    index = known.constant_input(node, 1)
    axis = integer(node, "axis", 0)
    x = known.of(node, 0)
    if index is None:
        return within([x], collapsed(x))
    return _taken(x, axis, known.rank(node.inputs[0]), np.asarray(index))


def _pad(known: KnownTensors, node: Node) -> Found:
    x = known.of(node, 0)
    if attribute(node, "mode", "constant") != "constant":
        return collapsed(x) if _changes(known, node) else x
    value = float(known.vector(node, 2, elementwise.real(node, "value", 0.0)).reshape(-1)[0])
    wide = replace(x, low=min(x.low, value), high=max(x.high, value), lo=min(x.lo, value), hi=max(x.hi, value))
    return collapsed(wide) if _changes(known, node) else replace(wide, source="", samples=None)


def _changes(known: KnownTensors, node: Node) -> bool:
    """Whether an axis along which values differ has another length after the node."""
    before, after = known.shape(node.inputs[0]), known.shape(node.outputs[0])
    sizes = known.of(node, 0).mean.shape
    if before is None or after is None or len(before) != len(after):
        return bool(max(sizes, default=1) > 1)
    return any(n > 1 and (a != b or a is None) for n, a, b in zip(sizes[::-1], before[::-1], after[::-1], strict=False))


def _resize(known: KnownTensors, node: Node) -> Found:
    x = known.of(node, 0)
    return collapsed(x) if _changes(known, node) else replace(x, source="", samples=None)


def _clip(known: KnownTensors, node: Node) -> Found:
    ends = [elementwise.real(node, "min", -INF), elementwise.real(node, "max", INF)]
    for place, index in ((0, 1), (1, 2)):
        value = known.constant_input(node, index)
        if value is not None and value.size == 1:
            ends[place] = float(np.asarray(value).reshape(-1)[0])
    return elementwise.clip(known.of(node, 0), min(ends), max(ends))


def _where(known: KnownTensors, node: Node) -> Found:
    return mixture(_together([known.of(node, 1), known.of(node, 2)]))


def _recurrent(known: KnownTensors, node: Node) -> Found:
    """Hidden states are products of sigmoid and tanh; only the cell state has no bound."""
    return [guess(-1.0, 1.0), guess(-1.0, 1.0), guess()]


def _truth(known: KnownTensors, node: Node) -> Found:
    return guess(0.0, 1.0)


def _direction(known: KnownTensors, node: Node) -> Found:
    return guess(-1.0, 1.0)


def _standardized(known: KnownTensors, node: Node) -> Found:
    """Mean 0 and variance 1 over its axes, whatever came in; its values go beyond 1."""
    return linear.normalized(np.ones(1), np.zeros(1), None, -1)


def _rules(rule: Rule, *ops: str) -> dict[str, Rule]:
    return dict.fromkeys(ops, rule)


RULES: dict[str, Rule] = {
    **_rules(_same, "Identity", "Dropout", "Cast", "CastLike", "MaxPool", "AveragePool", "LpPool", "LRN"),
    **_rules(_alike, "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "TopK", "GatherElements", "GatherND"),
    **_rules(_alike, "GridSample", "RoiAlign", "MaxRoiPool", "ReverseSequence", "Compress", "Trilu", "GlobalMaxPool"),
    **_rules(_conv, "Conv", "ConvTranspose"),
    **_rules(_channel_norm, "InstanceNormalization", "GroupNormalization"),
    **_rules(_reduce, "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"),
    **_rules(_reshape, "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    **_rules(_softmax, "Softmax", "LogSoftmax"),
    **_rules(_resize, "Resize", "Upsample"),
    **_rules(_recurrent, "LSTM", "GRU", "RNN"),
    **_rules(_truth, "And", "Or", "Not", "Xor", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN"),
    **_rules(_truth, "OneHot", "Hardmax"),
    "LpNormalization": _direction,
    "MeanVarianceNormalization": _standardized,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "GlobalAveragePool": _global_pool,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Pad": _pad,
    "Clip": _clip,
    "Where": _where,
}
