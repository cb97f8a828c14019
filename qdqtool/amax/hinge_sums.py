# SPDX-License-Identifier: Apache-2.0
"""Sums over the levels of int8 that the error of a scale is made of: in C where the kernel was built, else in NumPy.

Both give the same bits. What the sums are good for is said in methods.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.histogram import BINS

Float64 = npt.NDArray[np.float64]


def hinge_sums(steps: Float64, tables: Float64, top: int) -> Float64:
    """The sum of G(b_k), b_k = (k - 1/2) s, over the levels k = 1..top, for each scale s; G(b) = sum max(b - x, 0).

    Args:
        steps: float64[N], the scales, in units of a bin width.
        tables: float64[3, 4097], at the lower edges of the bins and at the end: the values spread over the bin; the
            slope of G just above the edge, which is the number of values below; G at the edge. Beyond the bins G goes
            on in a straight line.
        top: the highest level, 8 to 128.

    Returns:
        float64[N].

    Raises:
        QdqError: QDQTOOL_KERNEL asks for what is not there.
    """
    module = kernel.choose().module
    if module is None:
        return hinge_sums_in_numpy(steps, tables, top)
    sums = np.empty(len(steps))
    module.hinge_sums(np.ascontiguousarray(steps), np.ascontiguousarray(tables), top, sums)
    return sums


def hinge_sums_in_numpy(steps: Float64, tables: Float64, top: int) -> Float64:
    """As `hinge_sums`, without the C kernel."""
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
