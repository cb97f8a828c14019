# SPDX-License-Identifier: Apache-2.0
"""How large the sums inside an operator may become: products, reductions, softmax. Not whether that is too large.

With the mean magnitude m and the largest a of the values, n magnitudes add up to at most n a; rows hotter than the mean
by `uneven` stay below  uneven n m + a. The smaller of the two is S. Whatever the order of the terms, no partial sum is
beyond  (S + |sum|) / 2: the terms of one sign add up to that, and those of the other to (S - |sum|) / 2. INT8 products
add integers and have no such bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.tensors import BLOCK_BYTES
from qdqtool.graph.view import DEQUANTIZE, Node, attribute
from qdqtool.graph.weighted import is_product, output_axis
from qdqtool.precision.amp_rules import AmpRules
from qdqtool.precision.float_graph import FloatGraph
from qdqtool.precision.value_ranges import ValueRange, ValueRanges

_PER_AXIS_SOFTMAX = 13  # the opset from which Softmax adds along one axis, not along all behind it
# The axis of a weight along which the outputs of a product lie; Gemm says it itself.


def product_bound(graph: FloatGraph, node: Node, ranges: ValueRanges, rules: AmpRules) -> float | None:
    """The largest partial sum of a Conv, ConvTranspose, Gemm or MatMul; None where it is not known or is INT8's."""
    if not is_product(node) or len(node.inputs) < 2:
        return None
    makers = [graph.view.producers.get(name) for name in node.inputs[:2]]
    if all(maker is not None and maker.op == DEQUANTIZE for maker in makers):
        return None
    constant = [graph.view.is_constant(name) for name in node.inputs[:2]]
    if all(constant):
        return None
    if any(constant):
        magnitudes = _weighted(graph, node, ranges, rules, constant.index(True))
    else:
        magnitudes = _computed(graph, node, ranges, rules)
    made = ranges.of(graph.view, node.outputs[0])
    return None if magnitudes is None or made is None else _partial(magnitudes, made.largest)


def _partial(magnitudes: float, whole: float) -> float:
    """The largest partial sum of terms whose magnitudes and whose sum are known."""
    return max(whole, (magnitudes + min(magnitudes, whole)) / 2)


def _weighted(graph: FloatGraph, node: Node, ranges: ValueRanges, rules: AmpRules, weight: int) -> float | None:
    """Sum of |w| |x| for the worst channel."""
    array = graph.view.array(node.inputs[weight])
    values = ranges.of(graph.view, node.inputs[1 - weight])
    if array is None or values is None or array.dtype.kind != "f" or not array.ndim:
        return None
    axis = output_axis(node, weight, array.ndim)
    if array.ndim < 2:
        array, axis = array.reshape(-1, 1), 1
    total, largest = largest_sum(array, axis)
    most = total * values.largest
    if values.mean is None:
        return most
    return min(most, rules.limits["uneven"] * total * values.mean + largest * values.largest)


def _computed(graph: FloatGraph, node: Node, ranges: ValueRanges, rules: AmpRules) -> float | None:
    """Of two activations; rows that a Softmax made add up to 1, so they only average what they multiply."""
    one, other = (ranges.of(graph.view, name) for name in node.inputs[:2])
    shape = graph.shapes.get(node.inputs[0])
    if one is None or other is None or not shape:
        return None
    maker = graph.view.producer(node.inputs[0])
    if maker is not None and maker.op == "Softmax" and attribute(maker, "axis", -1) in (-1, len(shape) - 1):
        return one.largest * other.largest
    terms = shape[-2] if node.op == "Gemm" and attribute(node, "transA", 0) else shape[-1]
    if terms is None:
        return None
    largest = one.largest * other.largest
    most = terms * largest
    if one.mean is None or other.mean is None:
        return most
    return min(most, rules.limits["uneven"] ** 2 * terms * one.mean * other.mean + largest)


def largest_sum(weight: npt.NDArray[Any], axis: int) -> tuple[float, float]:
    """What the outputs of a product add up at most, max over the channels of sum |w|; and the largest |w|.

    Args:
        weight: real numbers, mapped from a file where it is large.
        axis: the axis of the outputs.
    """
    rows, at = weight.shape[axis], axis % weight.ndim
    sums, largest = np.zeros(rows, np.float64), 0.0
    others = tuple(other for other in range(weight.ndim) if other != at)
    for part in _blocks(weight):
        block = np.abs(weight[part].astype(np.float32, copy=False))
        sums[slice(None) if at else part] += block.sum(axis=others, dtype=np.float64)
        largest = max(largest, float(block.max(initial=0.0)))
    return float(sums.max(initial=0.0)), largest


def _blocks(weight: npt.NDArray[Any]) -> list[slice]:
    """Slices along the outermost axis, each of one block where a row is not larger."""
    row = weight.size // max(weight.shape[0], 1) * weight.itemsize
    step = max(1, BLOCK_BYTES // max(1, row))
    return [slice(start, start + step) for start in range(0, weight.shape[0], step)]


def sum_bound(graph: FloatGraph, node: Node, ranges: ValueRanges, rules: AmpRules) -> tuple[float, int] | None:
    """The largest sum inside an operator of `rules.sums`, and how many terms it has; None where that is not known.

    Where the length of an axis is not known, a sum has no more terms than the tensor has values for one sample.
    """
    values = _of_constant(graph, node.inputs[0]) or ranges.of(graph.view, node.inputs[0])
    terms = _terms(graph, node) or (values.elements if values is not None else None)
    if terms is None or values is None:
        return None
    kind = rules.sums[node.op].word
    if kind == "exponentials":
        return float(terms), terms
    if kind == "squares":
        return terms * values.largest**2, terms
    made = ranges.of(graph.view, node.outputs[0])
    if made is None or node.op == "ReduceLogSum":  # whose output is no sum
        return _spread(terms, values, rules), terms
    whole = made.largest * (1 if node.op in ("ReduceSum", "ReduceL1") else terms)
    if values.low >= 0:  # no partial sum is larger than the whole one
        return whole, terms
    return _partial(_spread(terms, values, rules), whole), terms


def _of_constant(graph: FloatGraph, name: str) -> ValueRange | None:
    """The range of a constant; None for any other tensor."""
    array = graph.view.array(name)
    if array is None or not array.size or not np.isfinite(array).all():
        return None
    return ValueRange(float(array.min()), float(array.max()), elements=array.size)


def _spread(terms: int, values: ValueRange, rules: AmpRules) -> float:
    most = terms * values.largest
    if values.mean is None:
        return most
    return min(most, rules.limits["uneven"] * terms * values.mean + values.largest)


def _terms(graph: FloatGraph, node: Node) -> int | None:
    """How many values one sum of an operator has; None where a length is not known."""
    if node.op in ("AveragePool", "LpPool"):
        window = attribute(node, "kernel_shape")
        return math.prod(window) if isinstance(window, Sequence) and window else None
    shape = graph.shapes.get(node.inputs[0])
    if shape is None:
        return None
    lengths = [shape[axis] for axis in _axes(graph, node, len(shape)) if -len(shape) <= axis < len(shape)]
    return None if None in lengths else math.prod(length or 0 for length in lengths)


def _axes(graph: FloatGraph, node: Node, rank: int) -> list[int]:
    """The axes along which an operator adds."""
    if node.op.startswith("Global"):
        return list(range(2, rank))
    if node.op in ("Softmax", "LogSoftmax", "LpNormalization"):
        flat = graph.opset < _PER_AXIS_SOFTMAX and node.op != "LpNormalization"
        axis = int(str(attribute(node, "axis", 1 if flat else -1)))
        return list(range(axis % max(rank, 1), rank)) if flat else [axis]
    named = attribute(node, "axes")
    if isinstance(named, Sequence) and not isinstance(named, str):
        return [int(axis) for axis in named]
    if len(node.inputs) > 1 and node.inputs[1]:
        given = graph.view.array(node.inputs[1])
        return list(range(rank)) if given is None else [int(axis) for axis in given.reshape(-1)]
    return [] if attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
