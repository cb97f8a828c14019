# SPDX-License-Identifier: Apache-2.0
"""TensorRT's EntropyCalibration2: its histogram, as recovered from caches. Its search is in entropy_search.py.

The histogram depends on the first batch by nature and does not merge (histogram.py has the one that does).
Source: facts/tensorrt.md 7; the idea is Migacz, "8-bit inference with TensorRT", GTC 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.entropy_search import best_bin
from qdqtool.amax.histogram import (
    CHUNK,
    SCRATCH,
    WORDS,
    Float32,
    Int64,
    Real,
    Word,
    check_arrays,
    finite_part,
    malformed,
)
from qdqtool.amax.method_table import HistogramKind

BINS = 2048
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# Widths that float32 values lead to: that of the smallest, and doubled until the largest fits.
_NARROWEST = 2.0**-149 / BINS
_WIDEST = 2 * _FLOAT32_MAX / BINS

Float64 = npt.NDArray[np.float64]


class EntropyHistogram:
    """2048 bins of |x|; the first batch that is not all zero sets the width, a larger value doubles it by merging.

    ``w = max|first batch| / 2048``, ``bin = min(floor(|x| / w), 2047)`` with the quotient in float64.
    The state is one block of memory that the C kernel counts into as well (kernel.py): eight words, then the counts.

    Attributes:
        counts: int64[2048], zeros included in bin 0.
        width: width of a bin, 0.0 until a batch is not all zero.
        zeros: number of values in batches that were all zero (the search overwrites bin 0 anyway).
        nans: number of NaN, left out of the counts.
        infs: number of infinities, left out of the counts.
    """

    __slots__ = ("block",)

    kind: ClassVar[HistogramKind] = "entropy"
    mergeable: ClassVar[bool] = False  # the first batch sets the width

    # The order of the words is the C kernel's too.
    zeros = Word(0)
    nans = Word(1)
    infs = Word(2)
    width = Real(3)

    def __init__(self) -> None:
        self.block: Int64 = np.zeros(WORDS + BINS, np.int64)

    @property
    def counts(self) -> Int64:
        """A view of the counts, int64[2048]."""
        return self.block[WORDS:]

    def reserve(self, count: int) -> None:
        """Nothing: counts have 64 bits."""

    def add(self, batch: npt.NDArray[np.float32]) -> None:
        """Count one batch, a float32 (or float16) array of any shape; the order of the batches matters.

        Raises:
            TypeError: another dtype.
        """
        kernel.add_all((self,), (batch,))

    def add_in_numpy(self, x: Float32) -> None:
        """Count a flat float32 batch in NumPy: what counts where the C kernel is absent, and what it is tested by."""
        values, largest = x, _largest(x)
        if not math.isfinite(largest):
            values, nans, above, below = finite_part(values)
            self.nans += nans
            self.infs += above + below
            largest = _largest(values)
        if largest == 0.0:
            self.zeros += values.size
            return
        self.width = self.width if self.width > 0 else largest / BINS
        counts = self.counts
        while largest > self.width * BINS:
            counts[: BINS // 2] = counts[0::2] + counts[1::2]
            counts[BINS // 2 :] = 0
            self.width *= 2.0
        for start in range(0, values.size, CHUNK):
            counts += np.bincount(self._bins(values[start : start + CHUNK]), minlength=BINS)

    def copy(self) -> EntropyHistogram:
        """An equal histogram that counts on by itself."""
        made = EntropyHistogram()
        made.block[:] = self.block
        return made

    def _bins(self, chunk: Float32) -> Int64:
        """The bin of every value, in the thread's working memory."""
        size = chunk.size
        magnitude = np.abs(chunk, out=SCRATCH.scaled[:size])
        quotient = np.divide(magnitude, self.width, out=SCRATCH.wide[:size], dtype=np.float64)
        np.copyto(SCRATCH.index[:size], quotient, casting="unsafe")
        return np.minimum(SCRATCH.index[:size], BINS - 1, out=SCRATCH.index[:size])

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been added."""
        return not (self.counts.any() or self.zeros or self.nans or self.infs)

    @property
    def has_inf(self) -> bool:
        """Whether an infinity has been added."""
        return self.infs > 0

    @property
    def all_zero(self) -> bool:
        """Whether values have been added and every one is 0: TensorRT then writes scale 0, which is none."""
        return self.zeros > 0 and self.width == 0.0 and not (self.nans or self.infs)

    def search(self) -> np.float32 | None:
        """TensorRT's clipping value, ``float32((i + 0.5) * width)`` of the best i; None where all values are zero.

        It may lie above the largest value seen: by half a bin where nothing is clipped, by more after a doubling; not
        above what float32 holds, where masks of -3.4e38 would end.
        """
        if self.width == 0.0:
            return None
        return np.float32(min((best_bin(self.counts) + 0.5) * self.width, _FLOAT32_MAX))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state as arrays that np.savez takes; see `from_arrays`."""
        return {
            "counts": self.counts.copy(),
            "width": np.array([self.width], np.float64),
            "tally": self.block[:3].copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], where: object = "histogram") -> EntropyHistogram:
        """The histogram that `to_arrays` wrote.

        Raises:
            QdqError: a part is missing or has another shape or dtype; `where` names the tensor or file.
        """
        form = {"counts": ((BINS,), np.int64), "width": ((1,), np.float64), "tally": ((3,), np.int64)}
        check_arrays(arrays, form, where)
        made = cls()
        made.counts[:] = arrays["counts"]
        made.width = float(arrays["width"][0])
        if not (_NARROWEST <= made.width <= _WIDEST if made.counts.any() else made.width == 0):
            raise malformed(where, f"bins {made.width} wide")
        made.block[:3] = arrays["tally"]
        return made

    def state(self) -> bytes:
        """Every bit of the state: equal bytes, equal histograms."""
        return b"".join(part.tobytes() for part in self.to_arrays().values())


def _largest(values: Float32) -> float:
    """The largest |x|, 0.0 of nothing, NaN or infinite where one of the values is."""
    if not values.size:
        return 0.0
    low, high = float(values.min()), float(values.max())
    return low if math.isnan(low) else max(-low, high)
