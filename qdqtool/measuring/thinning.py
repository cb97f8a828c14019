# SPDX-License-Identifier: Apache-2.0
"""Some positions of an operator's output in place of all: which, and what of its input they are computed from.

What is computed of them, and what they are good for, others say (operator_shadows.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.graph.view import Node, attribute
from qdqtool.simulation.shadow_copy import ShadowCopy

SPATIAL = ("Conv", "ConvTranspose")
_FEW_POSITIONS = 8  # positions of each output that are always summed
_FEW_ROWS = 4  # and along each axis of an image, as far as it has them
_LEFT_OUT = 2  # of so many rows of a convolution's input at most one is read where the others are cut away first
_ROUNDING = 1e-9  # of roots of whole numbers


@dataclass(frozen=True)
class Thinned:
    """What an operator reads, and what of its output is looked at, where some positions of that are computed.

    Attributes:
        source: its input, without what no position needs, where that is easily left out.
        left: of so many of its values one.
        plain: these positions of its float output.
        changed: attributes of the operator that leave out the others.
    """

    source: str
    left: int
    plain: str
    changed: dict[str, list[int]]

    @classmethod
    def of(
        cls,
        copy: ShadowCopy,
        node: Node,
        index: int,
        weight: npt.NDArray[np.generic],
        steps: Sequence[int],
        heights: tuple[int, int] | None,
    ) -> Thinned:
        """Every n-th position along each spatial axis of a convolution, or along the rows of a product."""
        source, output = node.inputs[1 - index], node.outputs[0]
        if node.op not in SPATIAL:
            return cls(copy.every(source, steps, [-2]), steps[0], copy.every(output, steps, [-2]), {})
        axes, strides = range(2, weight.ndim), _numbers(node, "strides", [1] * len(steps))
        plain, wider = (
            copy.every(output, steps, axes),
            [step * stride for step, stride in zip(steps, strides, strict=True)],
        )
        if max(steps) == 1:
            return cls(source, 1, plain, {})
        if _reads_one_position(node, weight):
            return cls(copy.every(source, wider, axes), math.prod(wider), plain, {"strides": [1] * len(steps)})
        some = _RowsRead.of(node, weight.shape[2:], wider, heights, steps[0]) if node.op == "Conv" else None
        if some is not None:
            return cls(copy.gathered(source, some.rows, 2), some.left, plain, some.changed)
        return cls(source, 1, plain, {"strides": wider})


@dataclass(frozen=True)
class _RowsRead:
    """The rows of its input that some rows of a convolution's output are computed from."""

    rows: tuple[int, ...]
    left: int
    changed: dict[str, list[int]]

    @classmethod
    def of(
        cls, node: Node, kernel: Sequence[int], strides: Sequence[int], heights: tuple[int, int] | None, step: int
    ) -> _RowsRead | None:
        """The rows; None where sizes are not known, or too few rows are left out to pay."""
        if heights is None:
            return None
        height, rank = heights[0], len(kernel)
        pads, gaps = _numbers(node, "pads", [0] * 2 * rank), _numbers(node, "dilations", [1] * rank)
        firsts = range(-pads[0], strides[0] * -(-heights[1] // step) - pads[0], strides[0])
        read = [first + gaps[0] * place for first in firsts for place in range(kernel[0])]
        above, below = (sum(row < 0 for row in read[: kernel[0]]), sum(row >= height for row in read[-kernel[0] :]))
        rows = tuple(read[above : len(read) - below])
        if not rows or len(rows) * _LEFT_OUT > height or min(rows) < 0 or max(rows) >= height:
            return None
        changed = {
            "strides": [kernel[0], *strides[1:]],
            "pads": [above, *pads[1:rank], below, *pads[rank + 1 :]],
            "dilations": [1, *gaps[1:]],
        }
        return cls(rows, height // len(rows), changed)


def _reads_one_position(node: Node, weight: npt.NDArray[np.generic]) -> bool:
    """Whether a convolution reads one position for each of its output: a thinned input has those that it looks for."""
    pads = attribute(node, "pads", None)
    return node.op == "Conv" and set(weight.shape[2:]) == {1} and not (isinstance(pads, list) and any(pads))


def steps_of(node: Node, rank: int, positions: int, sides: tuple[int | None, ...], thinning: int) -> list[int]:
    """Of how many positions along each axis one is computed: larger strides of a convolution, fewer rows of a product.

    Of images, rows first, which are whole in memory. Only where what is left are exactly some of the outputs: not with
    paddings that follow from the stride.
    """
    most = positions // _FEW_POSITIONS
    if node.op not in SPATIAL:
        return [max(1, min(thinning, most))]
    if node.op == "ConvTranspose" or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return [1] * rank
    each = math.ceil(thinning ** (1 / rank) - _ROUNDING)
    if len(sides) != rank or (sides[0] or 0) // _FEW_ROWS < each:
        return [max(1, min(each, int(most ** (1 / rank) + _ROUNDING)))] * rank
    found, left = list[int](), each**rank
    for side in sides:
        found.append(max(1, min(left, (side or 0) // _FEW_ROWS)))
        left = math.ceil(left / found[-1])
    return found


def _numbers(node: Node, name: str, default: list[int]) -> list[int]:
    found = attribute(node, name, None)
    return [int(number) for number in found] if isinstance(found, (list, tuple)) else default
