# SPDX-License-Identifier: Apache-2.0
"""Which axis of a weight is whose: input channels, output channels, groups. Operators are distinguished here only."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import is_plain_constant

Float64 = npt.NDArray[np.float64]
_Kind = TypeVar("_Kind", bound=np.floating)


def groups_of(node: Node) -> int:
    """The number of groups of a convolution; 1 for other operators."""
    value = attribute(node, "group", 1)
    return value if isinstance(value, int) and value > 0 else 1


def readable(view: GraphView, node: Node) -> bool:
    """Whether the weight's channels can be determined: convolutions, Gemm, MatMul with its matrix on the right."""
    index = weight_index(view, node)
    if index is None or not is_plain_constant(view, node, index):
        return False
    tensor = view.constant_tensor(node.inputs[index])
    rank = 0 if tensor is None else len(tensor.dims)
    if node.op == "Einsum":
        return False
    if node.op == "MatMul":
        return index == 1 and rank == 2
    if node.op == "Gemm":
        return rank == 2 and not attribute(node, "transA", 0) and attribute(node, "alpha", 1.0) == 1.0
    return rank >= 3


def input_axis(node: Node, rank: int) -> int:
    """Which axis of the *activation* holds the channels that the weight sums over."""
    return 1 if node.op in ("Conv", "ConvTranspose") else rank - 1


def output_channels(node: Node, shape: tuple[int, ...]) -> int:
    """How many channels the operator makes."""
    if node.op == "Conv":
        return shape[0]
    if node.op == "ConvTranspose":
        return shape[1] * groups_of(node)
    return shape[0] if node.op == "Gemm" and attribute(node, "transB", 0) else shape[-1]


def as_cube(node: Node, weight: npt.NDArray[np.floating]) -> Float64:
    """The weight as float64, in the order of `cube_view`."""
    return cube_view(node, np.asarray(weight, np.float64))


def cube_view(node: Node, weight: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """The weight as [groups, outputs of a group, inputs of a group, taps], without a copy of it.

    The element [g, o, i, k] multiplies input channel g * I + i for output channel g * O + o.
    """
    groups, shape = groups_of(node), weight.shape
    if node.op == "Conv":
        return weight.reshape(groups, shape[0] // groups, shape[1], -1)
    if node.op == "ConvTranspose":
        return weight.reshape(groups, shape[0] // groups, shape[1], -1).swapaxes(1, 2)
    matrix = weight if node.op == "Gemm" and attribute(node, "transB", 0) else weight.T
    return matrix[None, :, :, None]


def from_cube(node: Node, cube: Float64, shape: tuple[int, ...]) -> Float64:
    """A weight of the operator's own shape from what `as_cube` gave."""
    if node.op == "Conv":
        return cube.reshape(shape)
    if node.op == "ConvTranspose":
        return cube.swapaxes(1, 2).reshape(shape)
    matrix = cube[0, :, :, 0]
    return matrix if node.op == "Gemm" and attribute(node, "transB", 0) else matrix.T
