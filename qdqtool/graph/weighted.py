# SPDX-License-Identifier: Apache-2.0
"""What a weighted operator is: one that multiplies an activation with a constant. Not where its scales go."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.operators import weight_fault
from qdqtool.graph.view import DEQUANTIZE, UNKNOWN, GraphView, Node, Pair, attribute

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_EITHER_SIDE = frozenset({"Einsum", "MatMul"})


def weight_index(view: GraphView, node: Node) -> int | None:
    """Which input of a weighted operator is its constant weight; None where the node is none.

    Conv, ConvTranspose and Gemm hold it in input 1, MatMul and an Einsum that is a linear layer on either side. Decode
    arithmetic written as a convolution with 0, 1, 2, ... for weights (the integral of distribution focal loss) is no
    weighted operator, nor is the product that makes corners of centers and sides (the exports of DeepStream-Yolo).
    """
    if node.op not in _WEIGHTED:
        return None
    if node.weight == UNKNOWN:
        node.weight = _find_weight(view, node)
    return node.weight


def _find_weight(view: GraphView, node: Node) -> int | None:
    if len(node.inputs) < 2:
        return None
    sides = (1, 0) if node.op in _EITHER_SIDE else (1,)
    for index in sides:
        if view.is_constant(node.inputs[index]) and not view.is_constant(node.inputs[1 - index]):
            decodes = _is_integral(view, node, index) or _makes_corners(view, node, index)
            return None if decodes or _is_unfit(view, node, index) else index
    return None


def _is_unfit(view: GraphView, node: Node, index: int) -> bool:
    """Whether a constant has a shape that the operator cannot use: seen here where it is computed, else at loading."""
    shape = view.shape(node.inputs[index])
    if node.op == "Einsum":
        product = EinsumProduct.of(node)
        fits = product is not None and product.is_by_weight(index)
        return product is None or not fits or shape is None or len(shape) != len(product.operands[index])
    groups = next((int(item.i) for item in node.proto.attribute if item.name == "group"), 1)
    return shape is None or bool(weight_fault(node.op, shape, groups))


def pair_behind(view: GraphView, name: str) -> Pair | None:
    """The Q/DQ pair that a constant comes out of; what moves it on its way, such as Transpose, is seen through."""
    node = view.producers.get(name)
    while node is not None and view.is_constant(node.key):
        if node.op == DEQUANTIZE:
            pairs = view.pairs.get(view.root(node.key), ())
            return next((pair for pair in pairs if pair.dequantize is node), None)
        node = view.producers.get(node.inputs[0]) if node.inputs else None
    return None


def float_products(view: GraphView) -> list[Node]:
    """The weighted operators of a Q/DQ model whose weight comes out of no pair, in the order of the graph."""
    weights = [(node, weight_index(view, node)) for node in view.nodes]
    return [node for node, index in weights if index is not None and pair_behind(view, node.inputs[index]) is None]


def is_product(node: Node) -> bool:
    """Whether the operator multiplies two tensors, constant or not."""
    return node.op in _WEIGHTED and (node.op != "Einsum" or len(node.inputs) == 2)


def is_depthwise(view: GraphView, node: Node) -> bool:
    """Whether a convolution's weight, whose shape is known, holds one input channel per group, of several groups."""
    if node.op != "Conv" or len(node.inputs) < 2:
        return False
    tensor = view.constant_tensor(node.inputs[1])
    return tensor is not None and len(tensor.dims) > 2 and tensor.dims[1] == 1 and attribute(node, "group", 1) != 1


def weight_rank(view: GraphView, name: str) -> int | None:
    """Number of axes of a weight; None where it is not known without reading it."""
    tensor = view.constant_tensor(name)
    if tensor is not None:
        return len(tensor.dims)
    value = view.array(name)
    return None if value is None else value.ndim


def weight_type(view: GraphView, name: str) -> int:
    """Element type of a weight, as in onnx.TensorProto; UNDEFINED where unknown, FLOAT after a DequantizeLinear."""
    if any(pair.quantize is None for pair in view.pairs.get(name, ())):
        scale = view.array(view.producers[name].inputs[1])
        return int(onnx.TensorProto.FLOAT if scale is None else onnx.helper.np_dtype_to_tensor_dtype(scale.dtype))
    tensor = view.constant_tensor(name)
    if tensor is not None:
        return int(tensor.data_type)
    value = view.array(name)
    return int(onnx.TensorProto.UNDEFINED if value is None else onnx.helper.np_dtype_to_tensor_dtype(value.dtype))


def _makes_corners(view: GraphView, node: Node, index: int) -> bool:
    """Whether a constant of a MatMul is the matrix between corners and centers with sides: two halves or ones a column.

    Corners = (center - side / 2, center + side / 2) is [[1, 0, 1, 0], [0, 1, 0, 1], [-.5, 0, .5, 0], [0, -.5, 0, .5]].
    """
    tensor = view.constant_tensor(node.inputs[index])
    if node.op != "MatMul" or index != 1 or tensor is None or list(tensor.dims) != [4, 4]:
        return False
    value = view.array(node.inputs[index])
    if value is None or value.dtype != np.float32:
        return False
    sizes = np.abs(value)
    return bool(np.isin(sizes, (0, 0.5, 1)).all() and ((sizes > 0).sum(0) == 2).all())


def _is_integral(view: GraphView, node: Node, index: int) -> bool:
    """Whether a small weight is the constant of a decode, not learned: 0, 1, 2, ..., or rising after a Softmax.

    The mean of a distribution: the first is that of distribution focal loss, the second D-FINE's, whose bins are not
    of one width.
    """
    name = node.inputs[index]
    tensor = view.constant_tensor(name)
    dims = [] if tensor is None else list(tensor.dims)
    size = math.prod(dims)
    if tensor is None or not 4 <= size <= 64 or size not in dims or tensor.data_type != onnx.TensorProto.FLOAT:
        return False
    value = view.array(name)
    if value is None:
        return False
    if np.array_equal(value.reshape(-1), np.arange(size, dtype=np.float32)):
        return True
    source = view.producer(node.inputs[1 - index])
    return source is not None and source.op == "Softmax" and bool(np.all(np.diff(value.reshape(-1)) > 0))


def summed_over(node: Node, index: int | None, dims: Sequence[int]) -> int:
    """How many products a Gemm, MatMul or Einsum sums for each value that it makes, by the shape of its weight."""
    if len(dims) < 2:
        return math.prod(dims)
    product = EinsumProduct.of(node) if node.op == "Einsum" else None
    if product is not None and index is not None:
        return math.prod(dims[product.operands[index].index(letter)] for letter in product.summed(index))
    if node.op == "Gemm":
        return dims[1] if attribute(node, "transB", 0) else dims[0]
    return dims[-2] if index == 1 else dims[-1]


def output_axis(node: Node, index: int, rank: int) -> int:
    """The axis of a weight along which the channels lie that it makes; of a ConvTranspose those of one group.

    0 of an Einsum whose weight has several axes of them.
    """
    if node.op == "Gemm":
        turned = bool(attribute(node, "transB" if index else "transA", 0))
        return int(turned != bool(index))
    if node.op == "MatMul":
        return max(rank - 1 if index else rank - 2, 0)
    product = EinsumProduct.of(node) if node.op == "Einsum" else None
    if product is not None:
        return product.channel_axis(index) or 0
    return 1 if node.op == "ConvTranspose" else 0


def weight_dims(view: GraphView, name: str) -> list[int]:
    """The shape of a constant, its values left alone where its tensor tells; [] of what is none."""
    tensor = view.constant_tensor(name)
    if tensor is not None:
        return list(tensor.dims)
    value = view.array(name)
    return [] if value is None else list(value.shape)
