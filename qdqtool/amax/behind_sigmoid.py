# SPDX-License-Identifier: Apache-2.0
"""The histogram after a Sigmoid, 1 / (1 + exp(-x)), from that of what it reads. Not where that is good enough."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qdqtool.amax.histogram import BINS, BINS_LOG2, NEGATIVE, POSITIVE, SMALLEST_EXPONENT, Histogram, exponent_above

Float64 = npt.NDArray[np.float64]


def behind_sigmoid(hist: Histogram) -> Histogram:
    """Each x in the middle of its bin; the range is exact, infinities become 0 and 1, NaN stays NaN."""
    made = Histogram()
    made.reserve(hist.count)
    made.nans = hist.nans
    if not hist.count - hist.nans:
        return made
    ends = (-math.inf if hist.negative_infs else hist.low, math.inf if hist.positive_infs else hist.high)
    made.low, made.high = (float(x) for x in _sigmoid(np.array(ends)).astype(np.float32))
    exponent = exponent_above(made.high)
    made.exponents = [exponent, SMALLEST_EXPONENT]
    middles = [(np.arange(BINS) + 0.5) * math.ldexp(1.0, one - BINS_LOG2) for one in hist.exponents]
    read = np.concatenate([middles[POSITIVE], -middles[NEGATIVE], [0.0, math.inf, -math.inf]])
    many = np.concatenate([*hist.counts, [hist.zeros, hist.positive_infs, hist.negative_infs]])
    values = np.clip(_sigmoid(read).astype(np.float32), np.float32(made.low), np.float32(made.high))
    made.zeros = int(many[values == 0.0].sum())
    above = values > 0.0
    bins = (values[above] * np.float32(math.ldexp(1.0, BINS_LOG2 - exponent))).astype(np.int64)
    np.add.at(made.counts[POSITIVE], bins, many[above].astype(made.counts.dtype))
    return made


def _sigmoid(x: Float64) -> Float64:
    """Written so that nothing overflows, and that it keeps its digits near 0."""
    return np.asarray(np.exp(np.minimum(x, 0.0)) / (1.0 + np.exp(-np.abs(x))))
