# SPDX-License-Identifier: Apache-2.0
"""The clipping value of a tensor that only a SiLU reads, x / (1 + exp(-x)): by the error after the SiLU.

What lies far below 0 comes out as nearly 0, and what comes out above the clipping value there is cut off anyway: both
are no reason for a larger scale. Not which tensors these are (observers/pre_activation.py).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qdqtool.amax.histogram import BINS_LOG2, NEGATIVE, POSITIVE, Histogram

Float64 = npt.NDArray[np.float64]

# Shares of the largest |x|: a hundredth apart, down to 1/4096 of it.
_SHARES = np.geomspace(1.0, 2.0**-12, 833)


def amax_mse_before_silu(hist: Histogram, behind: float = math.inf) -> np.float32:
    """The clipping value a with the least expected squared error of int8 behind f, the SiLU cut off above `behind`.

    With s = a / 127 and n values x in a bin, the values of one sign that saturates at t = 127 s or -128 s:
        sum over |x| <= |t| of n f'(x)^2 s^2 / 12, and over the others n (f(x) - f(t))^2.
    Between 1/4096 of the largest |x| and that; of equal ones the largest. Without a value other than 0 it is 0.
    """
    if not hist.amax > 0:
        return hist.amax
    scales = _SHARES * float(hist.amax) / 127.0
    errors = _error(hist, POSITIVE, scales, 127.0, behind) + _error(hist, NEGATIVE, scales, -128.0, behind)
    return np.float32(min(float(scales[np.argmin(errors)]) * 127.0, float(hist.amax)))


def _error(hist: Histogram, sign: int, scales: Float64, top: float, behind: float) -> Float64:
    """The sum of squared errors of the values of one sign at each scale, by prefix sums over the bins."""
    counts = hist.counts[sign].astype(np.float64)
    width = math.ldexp(1.0, hist.exponents[sign] - BINS_LOG2)
    values, slopes = _silu(math.copysign(width, top) * (np.arange(counts.size) + 0.5), behind)
    clips = top * scales
    inside = np.minimum(np.abs(clips) / width, counts.size).astype(np.int64)
    rounded: Float64 = _sums(counts * slopes**2)[inside] * scales**2 / 12.0
    many, first, second = (_left(_sums(counts * values**power), inside) for power in (0, 1, 2))
    at_clip, _ = _silu(clips, behind)
    cut: Float64 = np.maximum(at_clip**2 * many - 2.0 * at_clip * first + second, 0.0)
    return rounded + cut


def _sums(values: Float64) -> Float64:
    return np.concatenate([[0.0], np.cumsum(values)])


def _left(sums: Float64, inside: npt.NDArray[np.int64]) -> Float64:
    outside: Float64 = sums[-1] - sums[inside]
    return outside


def _silu(x: Float64, behind: float) -> tuple[Float64, Float64]:
    """The least of x / (1 + exp(-x)) and `behind`, and its derivative."""
    share = 0.5 * (1.0 + np.tanh(0.5 * x))
    value = x * share
    return np.minimum(value, behind), np.where(value < behind, share * (1.0 + x * (1.0 - share)), 0.0)
