# SPDX-License-Identifier: Apache-2.0
"""The search of TensorRT's EntropyCalibration2 for the number of bins to keep, as recovered from caches.

In C where the kernel was built, else in NumPy. Their sums differ in the last bits, their answers do not.
Source: facts/tensorrt.md 7; the idea is Migacz, "8-bit inference with TensorRT", GTC 2017.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel

LEVELS = 128
# The prefix sums agree with the definition to about 1e-14; nearer to the minimum than this the definition decides,
# and what it cannot tell apart either is equal: the first wins, on every machine and with every logarithm.
NEAR = 1e-11
EQUAL = 1e-13
# A candidate is left as soon as its divergence is known to be more than this above the least so far.
SURE = 1e-9
_BLOCK = 64

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def best_bin(counts: Int64) -> int:
    """The number of bins i to keep so that 128 levels of them lose the least: the smallest Kullback-Leibler divergence.

    With h = counts, h[0] = h[1], N = sum h, and for each i from 128 to len(h)::

        P = h[:i];  P[i-1] += outliers = sum h[i:]         what is to be represented
        level(j) = floor(j * 128 / i)                       fractional levels, none cut at a multiple of i // 128
        Q[j] = sum of the level / its bins that hold something, where h[j] > 0, else 0
        divergence = sum P/N log((P/N) / (Q / sum Q))

    Passed over: fewer than two bins below i hold something; or outliers > 0 with h[i-1] == 0, so Q[i-1] == 0.
    The first of equal minima wins. Where no candidate is left, nothing is clipped: the last bin that holds something.

    Args:
        counts: int64[n], n >= 128, some of them > 0.
    """
    h = neutralize(counts)
    kept = np.arange(LEVELS, h.size + 1, dtype=np.int64)
    allowed = _candidates(h, kept)
    if not allowed.size:
        return max(int(np.flatnonzero(counts)[-1]) + 1, LEVELS)
    values = _divergences(h, allowed)
    near = allowed[values <= values.min() + NEAR]
    if near.size == 1:
        return int(near[0])
    exact = np.array([divergence(h, int(i)) for i in near])
    return int(near[np.flatnonzero(exact <= exact.min() + EQUAL)[0]])


def neutralize(counts: Int64) -> Int64:
    """The counts with the bin of zeros set to its neighbor: zeros are exact at any scale and must not decide."""
    h = counts.copy()
    h[0] = h[1]
    return h


def _candidates(h: Int64, kept: Int64) -> Int64:
    """The i that the search may choose; see `best_bin`."""
    inside = np.cumsum(h)[kept - 1]
    filled = np.cumsum(h > 0)[kept - 1]
    hit = (inside == inside[-1]) | (h[kept - 1] > 0)
    allowed: Int64 = kept[hit & (filled >= 2)]
    return allowed


def _divergences(h: Int64, kept: Int64) -> Float64:
    """The divergence of every candidate from prefix sums: 128 levels each instead of up to len(h) bins.

    sum P log(P/N) is a prefix sum but for the last bin; sum P log Q is, per level, its sum times log(sum / filled).
    """
    sums = np.zeros((3, h.size + 1))
    np.cumsum(h, out=sums[0, 1:])
    np.cumsum(h > 0, out=sums[1, 1:])
    np.cumsum(_x_log_x(h.astype(np.float64)), out=sums[2, 1:])
    module = kernel.choose().module
    if module is None:
        return divergences_in_numpy(sums, kept)
    values = np.empty(kept.size)
    module.divergences(sums, kept, SURE, values)
    return values


def divergences_in_numpy(sums: Float64, kept: Int64) -> Float64:
    """As `_divergences`, of prefix sums float64[3, n + 1]: of h, of the bins that hold something, of h log h."""
    mass, filled, entropy = sums
    total = float(mass[-1])
    outliers = total - mass[kept]
    represented = entropy[kept - 1] + _x_log_x(mass[kept] - mass[kept - 1] + outliers)
    cross = np.concatenate(
        [
            _cross_term(mass, filled, kept[start : start + _BLOCK], outliers[start : start + _BLOCK])
            for start in range(0, kept.size, _BLOCK)
        ]
    )
    values: Float64 = (represented - cross) / total - math.log(total) + np.log(mass[kept])
    return values


def _cross_term(mass: Float64, filled: Float64, kept: Int64, outliers: Float64) -> Float64:
    """Sum P log Q over the bins of each candidate; the outliers stand in the last level."""
    edges = (np.arange(LEVELS + 1) * kept[:, None] + (LEVELS - 1)) // LEVELS  # level(j) = l from ceil(l i / 128) on
    sums = np.diff(mass[edges], axis=1)
    logs = np.log(np.maximum(sums, 0.5) / np.maximum(np.diff(filled[edges], axis=1), 1.0))
    sums[:, -1] += outliers
    cross: Float64 = np.einsum("ij,ij->i", sums, logs)
    return cross


def _x_log_x(x: Float64) -> Float64:
    return x * np.log(np.maximum(x, 0.5))


def divergence(h: Int64, i: int) -> float:
    """The divergence of one candidate as `best_bin` defines it, bin by bin; h is already neutralized."""
    bins = np.flatnonzero(h[:i])
    level = bins * LEVELS // i
    sums = np.bincount(level, weights=h[bins], minlength=LEVELS)
    filled = np.bincount(level, minlength=LEVELS)
    q = sums[level] / filled[level]
    p = h[bins].astype(np.float64)
    p[-1] += float(h[i:].sum())
    p /= p.sum()
    return math.fsum(p * np.log(p / (q / q.sum())))
