# SPDX-License-Identifier: Apache-2.0
"""How large the values of each channel are: counts per channel on a logarithmic scale. No decision is made here.

Counts are integers, so the state depends on the values alone, never on their order or on batches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.formats import INT8

Float64 = npt.NDArray[np.float64]

PER_OCTAVE = 8
_SHIFT = 23 - 3  # a float32's bits down to its exponent and three bits of its mantissa
_LOWEST = (0x7F - 26) << 3  # values below 2**-26 count as 2**-26
BINS = 48 * PER_OCTAVE  # up to 2**22; what is larger counts as that
_PLACES = 2048  # of a channel that are counted in one array; twice as many at most
_HALF_STEP = 8 * PER_OCTAVE  # twice the largest code of INT8 is about 2**8


def bin_of(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The bin of |x| for each value: eight per octave, cut where the mantissa's first three bits change."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return np.clip((bits >> np.uint32(_SHIFT)).astype(np.int64) - _LOWEST, 0, BINS - 1)


def edges() -> Float64:
    """The lower edge of each bin, and the upper edge of the last: float64 [BINS + 1]."""
    bits = ((np.arange(BINS + 1, dtype=np.uint32) + np.uint32(_LOWEST)) << np.uint32(_SHIFT)).view(np.float32)
    return bits.astype(np.float64)


class ChannelSpectrum:
    """Counts of |x| per channel of one tensor; of large arrays every n-th place, of a fixed grid.

    Attributes:
        counts: int64 [channels, BINS].
        low, high: float32 [channels], the smallest and the largest value, of all places; inf and -inf before any came.
    """

    __slots__ = ("axis", "counts", "high", "low")

    def __init__(self, channels: int, axis: int) -> None:
        self.axis = axis
        self.counts = np.zeros((channels, BINS), np.int64)
        self.low = np.full(channels, np.inf, np.float32)
        self.high = -self.low

    @property
    def amax(self) -> npt.NDArray[np.float32]:
        """The largest |x| of each channel: float32 [channels]."""
        return np.maximum(np.maximum(self.high, -self.low), np.float32(0))

    def add(self, value: npt.NDArray[np.float32]) -> None:
        """Count the values of one array, whose axis of channels is this spectrum's."""
        rows = np.moveaxis(value, self.axis, 0).reshape(self.low.size, -1)
        found = bin_of(rows[:, :: max(1, rows.shape[1] // _PLACES)])
        found += np.arange(self.low.size)[:, None] * BINS
        self.counts += np.bincount(found.ravel(), minlength=self.counts.size).reshape(self.counts.shape)
        np.minimum(self.low, rows.min(axis=1, initial=np.inf), out=self.low)
        np.maximum(self.high, rows.max(axis=1, initial=-np.inf), out=self.high)


class ErrorTable:
    """Mean squared error of each channel when it is clipped at each edge: rounding inside, clipping beyond.

    With t the clipping value and d its scale: sum over x < d / 2 of x^2 (rounded to 0), d^2 / 12 for the others up to
    t, (x - t)^2 beyond. A bin counts as its middle. Symmetric: a value and its negative are the same.

    Attributes:
        error: float64 [channels, BINS + 1].
        energy: float64 [channels], mean of x^2.
        amax: float64 [channels].
    """

    def __init__(self, counts: npt.NDArray[np.int64], amax: npt.NDArray[np.float32]) -> None:
        edge = self._edges = edges()
        middle = (edge[:-1] + edge[1:]) / 2
        middle[0] = 0.0
        n = counts.astype(np.float64)
        total = np.maximum(n.sum(axis=1, keepdims=True), 1.0)
        n /= total
        zero, first, second = (_below(n * middle**power) for power in (0, 1, 2))
        low = np.maximum(np.arange(BINS + 1) - _HALF_STEP, 0)
        rounded = second[:, low] + (edge / INT8.largest) ** 2 / 12 * (zero - zero[:, low])
        beyond = [table[:, -1:] - table for table in (zero, first, second)]
        self.error: Float64 = rounded + beyond[2] - 2 * edge * beyond[1] + edge**2 * beyond[0]
        self.energy: Float64 = second[:, -1]
        self.amax: Float64 = amax.astype(np.float64)

    def at(self, clips: Float64) -> Float64:
        """The error at clipping values float64 [..., channels], between edges in proportion."""
        with np.errstate(over="ignore"):  # what is beyond float32 is beyond the last edge
            found = bin_of(clips.astype(np.float32))
        low, high = self._edges[found], self._edges[found + 1]
        part = np.clip((clips - low) / (high - low), 0.0, 1.0)
        rows = np.arange(self.amax.size)
        taken: Float64 = (1 - part) * self.error[rows, found] + part * self.error[rows, found + 1]
        return taken


def _below(values: Float64) -> Float64:
    """Sum over the bins below each edge."""
    return np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
