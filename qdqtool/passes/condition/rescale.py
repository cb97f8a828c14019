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


def scale_weight(
    view: GraphView, constants: Constants, node: Node, reads: Float64 | None = None, gives: Float64 | None = None
) -> None:
    """Multiply the weights of input channel c by `reads[c]`, those of output channel c and its bias by `gives[c]`.

    Both are float64, None for 1. Each weight is rounded to float32 once.
    """
    index = weight_index(view, node)
    assert index is not None
    weight = constants.read(node, index)
    cube = as_cube(node, weight)
    if reads is not None:
        cube = cube * reads.reshape(cube.shape[0], 1, cube.shape[2], 1)
    if gives is not None:
        cube = cube * gives.reshape(cube.shape[0], cube.shape[1], 1, 1)
    constants.write(node, index, narrowed(from_cube(node, cube, weight.shape), node.name))
    if gives is not None and node.op != "MatMul" and len(node.inputs) > 2 and node.inputs[2]:
        scale_vector(constants, node, 2, gives)


def scale_constant(constants: Constants, node: Node, index: int, factors: Float64) -> None:
    """Multiply one constant of a node by factors that broadcast with it, along axes that only these have, too."""
    value = constants.read(node, index).astype(np.float64)
    rank = max(value.ndim, factors.ndim)
    wide = value.reshape((1,) * (rank - value.ndim) + value.shape) * _without_alike(factors, rank)
    while wide.ndim > value.ndim and wide.shape[0] == 1:
        wide = wide[0]
    constants.write(node, index, narrowed(wide, node.name))


def _without_alike(factors: Float64, rank: int) -> Float64:
    """With axes of size 1 where all factors are the same."""
    found = factors.reshape((1,) * (rank - factors.ndim) + factors.shape)
    for axis in range(found.ndim):
        first = np.take(found, [0], axis)
        found = first if (found == first).all() else found
    return found


def constant_side(view: GraphView, node: Node) -> int | None:
    """Which of the two inputs of an Add or Mul is a plain constant; None where not one is."""
    sides = [index for index in (0, 1) if is_plain_constant(view, node, index)]
    return sides[0] if len(sides) == 1 else None


def scale_vector(constants: Constants, node: Node, index: int, factors: Float64) -> None:
    """Multiply a bias: one value, or one per channel along the last axis (Gemm's C may be a row)."""
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
