# SPDX-License-Identifier: Apache-2.0
"""Multiplies the weights of one operator along its input or its output channels. What makes up for it is elsewhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index
from qdqtool.passes.condition.constants import Constants, is_plain_constant, narrowed
from qdqtool.passes.condition.layout import as_cube, from_cube

Float64 = npt.NDArray[np.float64]


def scale_inputs(view: GraphView, constants: Constants, node: Node, factors: Float64) -> None:
    """Multiply what an operator multiplies input channel c with by `factors[c]` (float64 [inputs])."""
    index = weight_index(view, node)
    assert index is not None
    weight = constants.read(node, index)
    cube = as_cube(node, weight)
    cube = cube * factors.reshape(cube.shape[0], 1, cube.shape[2], 1)
    constants.write(node, index, narrowed(from_cube(node, cube, weight.shape), node.name))


def scale_outputs(view: GraphView, constants: Constants, node: Node, factors: Float64) -> None:
    """Multiply output channel c of a weighted operator or a BatchNormalization by `factors[c]`, bias and all."""
    if node.op == "BatchNormalization":
        for index in (1, 2):
            _scale_vector(constants, node, index, factors)
        return
    at = weight_index(view, node)
    assert at is not None
    weight = constants.read(node, at)
    cube = as_cube(node, weight)
    cube = cube * factors.reshape(cube.shape[0], cube.shape[1], 1, 1)
    constants.write(node, at, narrowed(from_cube(node, cube, weight.shape), node.name))
    if node.op != "MatMul" and len(node.inputs) > 2 and node.inputs[2]:
        _scale_vector(constants, node, 2, factors)


def scale_constant(view: GraphView, constants: Constants, node: Node, factors: Float64, axis: int, rank: int) -> None:
    """Multiply the constant that an Add adds, or a Mul multiplies with; `axis` of `rank` is that of the channels."""
    index = constant_side(view, node)
    assert index is not None
    value = constants.read(node, index)
    wide = value.astype(np.float64).reshape((1,) * (rank - value.ndim) + value.shape)
    shape = [1] * rank
    shape[axis] = factors.size
    constants.write(node, index, narrowed(wide * factors.reshape(shape), node.name))


def constant_side(view: GraphView, node: Node) -> int | None:
    """Which of the two inputs of an Add or Mul is a plain constant; None where not one is."""
    sides = [index for index in (0, 1) if is_plain_constant(view, node, index)]
    return sides[0] if len(sides) == 1 else None


def _scale_vector(constants: Constants, node: Node, index: int, factors: Float64) -> None:
    """A bias: one value, or one per channel along the last axis (Gemm's C may be a row)."""
    value = constants.read(node, index).astype(np.float64)
    if value.size in (1, factors.size):
        value = np.broadcast_to(value.reshape(-1), (factors.size,))
    constants.write(node, index, narrowed(value * factors, node.name))


def has_plain_bias(view: GraphView, node: Node) -> bool:
    """Whether the bias is absent, or a constant of one value per output channel; Gemm's `beta` must be 1."""
    if node.op == "MatMul":
        return True
    if node.op == "Gemm" and attribute(node, "beta", 1.0) != 1.0:
        return False
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    if not is_plain_constant(view, node, 2):
        return False
    value = view.array(node.inputs[2])
    return value is not None and (value.ndim == 0 or value.shape[-1] == value.size)
