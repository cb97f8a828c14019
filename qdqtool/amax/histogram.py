# SPDX-License-Identifier: Apache-2.0
"""The histogram of one tensor, in one pass and 32 KiB. Not how a clipping value is read from it (methods.py).

Bins are a power of two wide, so scaling is exact and the state depends on the values alone, never on their order,
on batches or on shards: ``hist(a ++ b) == merge(hist(a), hist(b))``. Source: design.md, "Two histograms".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.method_table import HistogramKind
from qdqtool.errors import QdqError

BINS_LOG2 = 12
BINS = 1 << BINS_LOG2
CHUNK = 65_536
# No bin is narrower than the smallest normal float32, 2**-126: every denormal lies in bin 0 and 2**(12 - E) is finite.
SMALLEST_EXPONENT = BINS_LOG2 - 126
LARGEST_EXPONENT = 128
POSITIVE, NEGATIVE = 0, 1
WORDS = 8  # in front of the counts

_TALLY = slice(2, 6)

_NARROW = WORDS + BINS  # of the block with counts of 32 bits, in words of 64
_MOST_NARROW = (1 << 31) - 1

_COUNTED = ("counts", "tally")  # saved arrays that hold no negative number
_MOST = 1 << 53  # of one of them: more than anyone counts, and sums of them do not overflow

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
_Count = TypeVar("_Count", bound=np.signedinteger[Any])


class Word:
    """One integer of a histogram's block, as an attribute."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __get__(self, owner: Blocked, kind: type | None = None) -> int:
        return int(owner.block[self.position])

    def __set__(self, owner: Blocked, value: int) -> None:
        owner.block[self.position] = value


class Real:
    """One float64 of a histogram's block, as an attribute: the bits lie in an int64."""

    def __init__(self, position: int) -> None:
        self.part = slice(position, position + 1)

    def __get__(self, owner: Blocked, kind: type | None = None) -> float:
        return float(owner.block[self.part].view(np.float64)[0])

    def __set__(self, owner: Blocked, value: float) -> None:
        owner.block[self.part].view(np.float64)[0] = value


class Blocked(Protocol):
    """What has a block."""

    block: Int64


class Histogram:
    """Counts of one tensor's values per sign, exact and mergeable.

    For each sign, ``bin = trunc(|x| * 2**(12 - E))`` and E is the smallest exponent >= -114 with ``max|x| < 2**E``
    strictly. A value of exactly 2**k therefore asks for E = k + 1 and falls into bin 2048 of 4096, whenever it comes.
    When E grows, pairs of bins are added up: ``trunc(trunc(y) / 2) == trunc(y / 2)``, so nothing is lost. A sign
    without values keeps E = -114.

    The state is one block of memory that the C kernel counts into as well (kernel.py): eight words, then the counts, of
    32 bits as long as these hold every value that was added, then of 64.

    Attributes:
        counts: int32 or int64[2, 4096], positive values first, then |negative values|; zeros are not in it.
        exponents: E of the positive and of the negative side.
        zeros: number of values equal to 0 (either sign).
        nans: number of NaN.
        positive_infs: number of +inf.
        negative_infs: number of -inf.
        low: smallest finite value, +inf where there is none; never -0.0.
        high: largest finite value, -inf where there is none; never -0.0.
        best_amax: what `methods.amax_mse` has found; None until then, and once more was added.
    """

    __slots__ = ("_most", "best_amax", "block")

    kind: ClassVar[HistogramKind] = "mergeable"
    mergeable: ClassVar[bool] = True  # the state depends on the values alone

    # The order of the words is the C kernel's too.
    zeros = Word(2)
    nans = Word(3)
    positive_infs = Word(4)
    negative_infs = Word(5)
    low = Real(6)
    high = Real(7)

    def __init__(self) -> None:
        self.block: Int64 = np.zeros(_NARROW, np.int64)
        self._most = 0  # that a count may be
        self.best_amax: np.float32 | None = None
        self.exponents = [SMALLEST_EXPONENT, SMALLEST_EXPONENT]
        self.low, self.high = math.inf, -math.inf

    @property
    def counts(self) -> npt.NDArray[np.signedinteger[Any]]:
        """A view of the counts, int32 or int64[2, 4096]."""
        counts = self.block[WORDS:]
        return (counts.view(np.int32) if self.block.size == _NARROW else counts).reshape(2, BINS)

    @property
    def exponents(self) -> list[int]:
        """E of the positive and of the negative side; assign a pair to change it."""
        return [int(e) for e in self.block[:2]]

    @exponents.setter
    def exponents(self, pair: Sequence[int]) -> None:
        self.block[:2] = pair

    def reserve(self, count: int) -> None:
        """Make room for so many values more: from two billion on with counts of 64 bits."""
        self._most += count
        self.best_amax = None
        if self._most > _MOST_NARROW and self.block.size == _NARROW:
            wide = np.empty(WORDS + 2 * BINS, np.int64)
            wide[:WORDS], wide[WORDS:] = self.block[:WORDS], self.counts.reshape(-1)
            self.block = wide

    def add(self, x: npt.NDArray[np.float32]) -> None:
        """Count every element of a float32 (or float16) array of any shape and memory order; see `kernel.add_all`.

        Raises:
            TypeError: another dtype, whose values float32 cannot hold exactly.
        """
        kernel.add_all((self,), (x,))

    def add_in_numpy(self, x: Float32) -> None:
        """Count a flat float32 vector in NumPy: what counts where the C kernel is absent, and what it is tested by."""
        scratch = SCRATCH
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, x.size, CHUNK):
                self._add_chunk(x[start : start + CHUNK], scratch)

    def _add_chunk(self, chunk: Float32, scratch: Scratch) -> None:
        low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # a NaN is the minimum and the maximum
            chunk, nans, above, below = finite_part(chunk)
            self.nans += nans
            self.positive_infs += above
            self.negative_infs += below
            if not chunk.size:
                return
            low, high = float(chunk.min()), float(chunk.max())
        self.low, self.high = min(self.low, low + 0.0), max(self.high, high + 0.0)  # + 0.0 turns -0.0 into 0.0
        self._grow(POSITIVE, exponent_above(high))
        self._grow(NEGATIVE, exponent_above(-low))
        if low < 0.0 < high:
            self._count_both(chunk, scratch)
        else:
            self._count_one(chunk, POSITIVE if high > 0.0 else NEGATIVE, scratch)

    def _count_one(self, chunk: Float32, side: int, scratch: Scratch) -> None:
        """Values of one sign and zeros; a zero falls into bin 0 and is taken out again."""
        zeros = chunk.size - int(np.count_nonzero(np.not_equal(chunk, 0.0, out=scratch.mask[: chunk.size])))
        self.zeros += zeros
        if zeros == chunk.size:
            return
        factor = self._factor(side) * (1.0 if side == POSITIVE else -1.0)
        scaled = np.multiply(chunk, np.float32(factor), out=scratch.scaled[: chunk.size])
        counts = self.counts[side]
        counts += np.bincount(scratch.truncate(scaled), minlength=BINS)
        counts[0] -= zeros

    def _count_both(self, chunk: Float32, scratch: Scratch) -> None:
        """Values of both signs; those that truncate to 0 are distinguished by counting signs."""
        mask = scratch.mask[: chunk.size]
        positive = int(np.count_nonzero(np.greater(chunk, 0.0, out=mask)))
        negative = int(np.count_nonzero(np.less(chunk, 0.0, out=mask)))
        self.zeros += chunk.size - positive - negative
        found = np.bincount(scratch.truncate(self._scale_both(chunk, scratch), BINS - 1), minlength=2 * BINS - 1)
        above, below = found[BINS:], found[BINS - 2 :: -1]
        for side, many, bins in zip(self.counts, (positive, negative), (above, below), strict=True):
            side[1:] += bins
            side[0] += many - int(bins.sum())

    def _scale_both(self, chunk: Float32, scratch: Scratch) -> Float32:
        """Each value times the factor of its sign, p or n.

        Where p >= n, max(x p, x n) is x p for x > 0 and x n for x < 0; where p < n, the minimum is. The product that
        is not taken may overflow to an infinity: it is then the one that loses.
        """
        p, n = self._factor(POSITIVE), self._factor(NEGATIVE)
        scaled = np.multiply(chunk, np.float32(p), out=scratch.scaled[: chunk.size])
        if p == n:
            return scaled
        other = np.multiply(chunk, np.float32(n), out=scratch.other[: chunk.size])
        choose = np.maximum if p > n else np.minimum
        return choose(scaled, other, out=scaled)

    def _factor(self, side: int) -> float:
        return math.ldexp(1.0, BINS_LOG2 - int(self.block[side]))

    def _grow(self, side: int, exponent: int) -> None:
        steps = exponent - int(self.block[side])
        if steps > 0:
            self.counts[side] = fold(self.counts[side], steps)
            self.block[side] = exponent

    def merge(self, other: Histogram) -> None:
        """Take in what another histogram has counted; the other stays as it is."""
        self.reserve(other.count)
        for side in (POSITIVE, NEGATIVE):
            self._grow(side, other.exponents[side])
            self.counts[side] += fold(other.counts[side], self.exponents[side] - other.exponents[side])
        self.block[_TALLY] += other.block[_TALLY]
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @classmethod
    def over(cls, block: Int64) -> Histogram:
        """The histogram whose state is a block that somebody else holds, such as a mapped copy of another's."""
        made = cls.__new__(cls)
        made.block, made._most, made.best_amax = block, _MOST_NARROW, None
        return made

    def copy(self) -> Histogram:
        """An equal histogram that counts on by itself."""
        made = Histogram.over(np.array(self.block))
        made._most = self._most
        return made

    def rectified(self) -> Histogram:
        """The histogram of ``max(x, 0)`` of the same values, equal to one that had observed them (NaN stays NaN)."""
        made = self.copy()
        made.zeros += int(made.counts[NEGATIVE].sum()) + made.negative_infs
        made.negative_infs = 0
        made.counts[NEGATIVE] = 0
        made.exponents = [made.exponents[POSITIVE], SMALLEST_EXPONENT]
        if made.zeros:
            made.low, made.high = 0.0, max(made.high, 0.0)
        return made

    @property
    def count(self) -> int:
        """Number of values added, NaN and infinities included."""
        return self.finite + self.nans + self.infs

    @property
    def finite(self) -> int:
        """Number of finite values added, zeros included."""
        return int(self.counts.sum()) + self.zeros

    @property
    def amax(self) -> np.float32:
        """The largest |x| over the finite values; 0 where there is none."""
        return np.float32(max(0.0, -self.low, self.high))

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been added."""
        return self.count == 0

    @property
    def infs(self) -> int:
        """Number of infinities, of either sign."""
        return self.positive_infs + self.negative_infs

    @property
    def has_inf(self) -> bool:
        """Whether an infinity has been added."""
        return self.infs > 0

    @property
    def all_zero(self) -> bool:
        """Whether values have been added and every one is 0."""
        return self.zeros > 0 and self.zeros == self.count

    def folded(self) -> tuple[Int64, float]:
        """Counts of |x| over both signs at the larger exponent: int64[4096] (zeros not in it), width of a bin."""
        exponent = max(self.exponents)
        counts = self.counts.astype(np.int64)
        sides = [fold(counts[side], exponent - self.exponents[side]) for side in (POSITIVE, NEGATIVE)]
        return sides[0] + sides[1], math.ldexp(1.0, exponent - BINS_LOG2)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state as arrays that np.savez takes; see `from_arrays`."""
        return {
            "counts": self.counts.astype(np.int64),
            "exponents": np.array(self.exponents, np.int64),
            "tally": self.block[_TALLY].copy(),
            "range": np.array([self.low, self.high], np.float32),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], where: object = "histogram") -> Histogram:
        """The histogram that `to_arrays` wrote.

        Raises:
            QdqError: a part is missing or has another shape or dtype; `where` names the tensor or file.
        """
        form = {"counts": ((2, BINS), np.int64), "exponents": ((2,), np.int64), "tally": ((4,), np.int64)}
        check_arrays(arrays, form | {"range": ((2,), np.float32)}, where)
        exponents = arrays["exponents"]
        if exponents.min() < SMALLEST_EXPONENT or exponents.max() > LARGEST_EXPONENT:
            raise malformed(where, "exponents out of range")
        made = cls()
        made.reserve(int(arrays["counts"].sum()))
        made.counts[:] = arrays["counts"]
        made.exponents = [int(e) for e in exponents]
        made.block[_TALLY] = arrays["tally"]
        made.low, made.high = (float(v) for v in arrays["range"])
        bounded = -math.inf < made.low <= made.high < math.inf
        if not (bounded if made.finite else (made.low, made.high) == (math.inf, -math.inf)):
            raise malformed(where, f"range {made.low} to {made.high} of {made.finite} values")
        return made

    def state(self) -> bytes:
        """Every bit of the state: equal bytes, equal histograms."""
        return b"".join(part.tobytes() for part in self.to_arrays().values())


class Scratch(threading.local):
    """Working memory of `add`, under 2 MB per thread: fresh pages cost more than counting. No value outlives a call."""

    def __init__(self) -> None:
        self.mask = np.empty(CHUNK, np.bool_)
        self.scaled = np.empty(CHUNK, np.float32)
        self.other = np.empty(CHUNK, np.float32)
        self.small = np.empty(CHUNK, np.int32)
        self.index = np.empty(CHUNK, np.int64)
        self.wide = np.empty(CHUNK, np.float64)

    def truncate(self, scaled: Float32, offset: int = 0) -> Int64:
        """Trunc(scaled) + offset. By way of int32: numpy turns float32 into int64 half as fast."""
        small, index = self.small[: scaled.size], self.index[: scaled.size]
        np.copyto(small, scaled, casting="unsafe")
        if offset:
            small += offset
        np.copyto(index, small)
        return index


SCRATCH = Scratch()


def finite_part(values: Float32) -> tuple[Float32, int, int, int]:
    """The finite values, how many NaN there were, how many +inf, how many -inf."""
    finite = values[np.isfinite(values)]
    above, below = (int(np.count_nonzero(values == inf)) for inf in (np.inf, -np.inf))
    return finite, values.size - finite.size - above - below, above, below


def exponent_above(value: float) -> int:
    """The smallest E >= -114 with value < 2**E; -114 for a value <= 0."""
    return max(math.frexp(value)[1], SMALLEST_EXPONENT) if value > 0.0 else SMALLEST_EXPONENT


def fold(counts: npt.NDArray[_Count], steps: int) -> npt.NDArray[_Count]:
    """Counts over bins 2**steps times as wide, in an array of the same length."""
    if steps <= 0:
        return counts
    wide = np.zeros_like(counts)
    kept = counts.size >> min(steps, BINS_LOG2)
    wide[:kept] = counts.reshape(kept, -1).sum(axis=1)
    return wide


def check_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], form: Mapping[str, tuple[tuple[int, ...], Any]], where: object
) -> None:
    """Hold saved arrays against the expected shapes and dtypes; QdqError names the first that differs."""
    for name, (shape, dtype) in form.items():
        array = arrays.get(name)
        fine = array is not None and array.shape == shape and array.dtype == dtype
        if array is None or not fine or (name in _COUNTED and not ((array >= 0) & (array <= _MOST)).all()):
            raise malformed(where, f"{name} is missing or malformed")


def malformed(where: object, reason: str) -> QdqError:
    """What is wrong with a saved histogram."""
    return QdqError(where, f"not a saved histogram ({reason})", "start the calibration again")
