# SPDX-License-Identifier: Apache-2.0
"""The expected squared error of int8 at a scale, from a histogram: in C where the kernel was built, else in NumPy.

Both give the same bits while sum x^2, in bin widths, is below 2**53; beyond, last bits may differ.

With round half to even, saturating to [-128, 127], the error of one sign at the scale s, with top = 127 or 128, and
b_k = (k - 1/2) s the value where rounding goes from k - 1 to k:
    sum (x - s min(round(x / s), top))^2 = sum (x - s top)^2 - 2 s sum_{k=1..top} G(b_k),   G(b) = sum max(b - x, 0)
(Abel summation over the cells). G comes from prefix sums, so a scale costs 255 look-ups, not one per bin.

Inside a bin the values are taken as evenly spread: G is quadratic there and exact for such data. Where the occupied
bins are all multiples of 4 or more, the data are whole numbers of something (pixels, indices): they stand at the
lower edges and G has straight pieces. Spread, the clipping value of pixels would cost 4 % more than the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.histogram import BINS, BINS_LOG2, NEGATIVE, POSITIVE, Histogram

Float64 = npt.NDArray[np.float64]

_NUMBERS = 5  # in front of the tables
_REGULAR = 4
_EDGES = np.arange(BINS, dtype=np.float64)  # the lower edges of the bins, in widths
_SQUARED_EDGES = _EDGES**2


class Side(NamedTuple):
    """The values of one sign.

    Attributes:
        block: float64[5 + 3 * 4097], as C reads it: the width of a bin; and, in units of that, the highest level;
            sum 1, sum x, sum x^2; then, at the lower edges of the bins and at the end: the values spread over the bin;
            the slope of G just above the edge, which is the number of values below; G at the edge. Beyond the bins G
            goes on in a straight line.
    """

    block: Float64

    @property
    def energy(self) -> float:
        """The sum of the squares of all values."""
        return float(self.block[0] ** 2 * self.block[4])


def squared_errors(sides: Sequence[Side], scales: Float64, most: float = math.inf) -> Float64:
    """The sum of squared errors of all values at each scale.

    Args:
        sides: what `sides_of` gives: two at most.
        scales: float64[N], more than 0.
        most: inf may stand for a larger error.

    Returns:
        float64[N], in the unit of x^2.

    Raises:
        QdqError: QDQTOOL_KERNEL asks for what is not there.
    """
    module = kernel.choose().module
    if module is None:
        return squared_errors_in_numpy(sides, scales)
    errors = np.empty(len(scales))
    module.squared_errors(np.ascontiguousarray(scales), tuple(side.block for side in sides), most, errors)
    return errors


def squared_errors_in_numpy(sides: Sequence[Side], scales: Float64) -> Float64:
    """As `squared_errors`, without the C kernel."""
    total = np.zeros_like(scales)
    for side in sides:
        width, top, zeroth, first, second = side.block[:_NUMBERS].tolist()
        steps = scales / width
        cut = second - 2.0 * top * steps * first + (top * steps) ** 2 * zeroth
        inside = _hinge_sums(steps, side.block[_NUMBERS:].reshape(3, BINS + 1), int(top))
        total += width**2 * np.maximum(cut - 2.0 * steps * inside, 0.0)
    return total


def _hinge_sums(steps: Float64, tables: Float64, top: int) -> Float64:
    """The sum of G(b_k) over the levels k = 1..top, for each scale in units of a bin width."""
    spread, slope, hinge = tables
    edges = np.multiply.outer(steps, np.arange(top) + 0.5)
    index = np.minimum(edges, BINS).astype(np.int64)
    edges -= index
    inside = spread[index]
    inside *= 0.5 * edges
    inside += slope[index]
    inside *= edges
    inside += hinge[index]
    sums: Float64 = inside.sum(axis=1)
    return sums


def sides_of(hist: Histogram) -> list[Side]:
    """The values above 0 and those below it, as far as there are any."""
    return [side for side in (_side(hist, POSITIVE, 127), _side(hist, NEGATIVE, 128)) if side is not None]


def _side(hist: Histogram, sign: int, top: int) -> Side | None:
    counts, width = hist.counts[sign], math.ldexp(1.0, int(hist.block[sign]) - BINS_LOG2)
    module = kernel.choose().module
    if module is None:
        return side_in_numpy(counts, width, top)
    block = np.empty(_NUMBERS + 3 * (BINS + 1))
    return Side(block) if module.lay_out_side(counts, width, top, block) else None


def side_in_numpy(counts: npt.NDArray[np.signedinteger[Any]], width: float, top: int) -> Side | None:
    """The values of one sign, without the C kernel; None where there are none.

    Args:
        counts: int32 or int64[4096].
        width: of a bin.
        top: the highest level.
    """
    filled = np.flatnonzero(counts)
    if not filled.size:
        return None
    n = counts.astype(np.float64)
    block = np.zeros(_NUMBERS + 3 * (BINS + 1))
    inside, slope, hinge = block[_NUMBERS:].reshape(3, BINS + 1)
    np.cumsum(n, out=slope[1:])
    total, first, second = float(slope[-1]), float(n @ _EDGES), float(n @ _SQUARED_EDGES)
    if int(np.gcd.reduce(filled)) >= _REGULAR:
        slope[:-1] = slope[1:]
    else:
        first, second = first + total / 2, second + first + total / 3
        inside[:-1] = n
    np.cumsum(slope[:-1] + 0.5 * inside[:-1], out=hinge[1:])
    block[:_NUMBERS] = width, top, total, first, second
    return Side(block)
