# SPDX-License-Identifier: Apache-2.0
"""How far two arrays lie apart. The one place for such figures; pure functions, and sums that are kept over batches.

No order of samples changes a figure of `MeasureSums` and `ChangeSums` by a bit: what is added up is added exactly.
What is compared, and what a figure means for a task, is not known here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from qdqtool.display import finite_only

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
_Real = TypeVar("_Real", bound=np.floating[Any])

# An integer of ExactSum holds 16 exponents: 27 + 15 bits of a value, so 2**21 of them fit into int64.
_LOG_BITS = 4
_BITS = 1 << _LOG_BITS
_CARRY_AFTER = 1 << 20
_BLOCK = 1 << 16  # elements summed at once, so that their float64 copies stay in the processor's cache
_BLOCK_BYTES = 4 << 20  # of channels that are compared at once
_LARGEST = 1e150  # its square is still a float64


# ---------------------------------------------------------------------- sums


class ExactSum:
    """The sums of float vectors of one length, element by element, without rounding and whatever their order.

    A float64 is an integer times a power of two. Per element there is one int64 for each 16 exponents between the
    smallest and the largest that came, however many vectors are added.
    """

    __slots__ = ("_added", "_buckets", "_first", "_rows")

    def __init__(self, size: int) -> None:
        self._buckets = np.zeros((size, 0), np.int64)
        self._first = self._added = 0
        self._rows = np.arange(size)

    def add(self, values: Array) -> None:
        """Add one vector (float32 or float64 [size], finite).

        Raises:
            ValueError: a value is NaN or Inf.
        """
        exact = np.asarray(values, np.float64)
        if not np.isfinite(exact).all():
            raise ValueError("NaN or Inf has no exact sum")
        fraction, exponent = np.frexp(exact)
        scaled = fraction * 2.0**27
        high = np.trunc(scaled)
        low = (scaled - high) * 2.0**26  # zero for what is a float32
        self._put(high, exponent - 27)
        if low.any():
            self._put(low, exponent - 53)
        self._added += 1
        if self._added % _CARRY_AFTER == 0:
            self._carry()

    def total(self) -> Float64:
        """The sums, each rounded once: float64 [size]."""
        return np.array([self._rounded(row) for row in self._buckets.tolist()], np.float64)

    def _put(self, whole: Float64, exponent: npt.NDArray[np.intc]) -> None:
        """Add whole * 2**exponent, `whole` being integers below 2**27."""
        place = (exponent >> _LOG_BITS) - self._first
        if place.size and (place.min() < 0 or place.max() >= self._buckets.shape[1]):
            self._reach(int(place.min()), int(place.max()))
            place = (exponent >> _LOG_BITS) - self._first
        self._buckets[self._rows, place] += whole.astype(np.int64) << (exponent & (_BITS - 1))

    def _reach(self, lowest: int, highest: int) -> None:
        """Make columns so that there is one for each place from `lowest` to `highest`, counted from the first one."""
        below, above = max(0, -lowest), max(0, highest + 1 - self._buckets.shape[1])
        self._buckets = np.pad(self._buckets, ((0, 0), (below, above)))
        self._first -= below

    def _carry(self) -> None:
        """Make room: what an integer holds beyond its 16 exponents goes into the next one."""
        self._reach(0, self._buckets.shape[1])
        for column in range(self._buckets.shape[1] - 1):
            beyond = self._buckets[:, column] >> _BITS
            self._buckets[:, column] -= beyond << _BITS
            self._buckets[:, column + 1] += beyond

    def _rounded(self, buckets: list[int]) -> float:
        whole = sum(value << (_BITS * place) for place, value in enumerate(buckets))
        unit = _BITS * self._first
        return float(whole << unit) if unit >= 0 else whole / (1 << -unit)


# ---------------------------------------------------------------------- one tensor of two models, sample by sample


@dataclass(frozen=True)
class Measure:
    """One tensor of a model against the same of a reference, over all samples.

    Attributes:
        tensor: its name.
        sqnr: 10 log10(sum ref^2 / sum (ref - x)^2) in dB; inf where nothing differs, -inf where the reference is zero.
        noise: the same as a ratio, sum (ref - x)^2 / sum ref^2.
        cosine: sum ref x / sqrt(sum ref^2 sum x^2); nan where one of them is zero.
        largest_error: the largest |ref - x|.
        elements: how many were compared.
        broken: how many are NaN or Inf in one of the two and not the same in the other; no figure counts them.
    """

    tensor: str
    sqnr: float
    noise: float
    cosine: float
    largest_error: float
    elements: int
    broken: int

    def to_json(self) -> dict[str, Any]:
        """The measure as JSON has it: null for what is not a finite number."""
        figures = {"sqnr_db": self.sqnr, "cosine": self.cosine, "largest_error": self.largest_error}
        identical = self.noise == 0.0 and not self.broken
        return {
            "tensor": self.tensor,
            **finite_only(figures),
            "identical": identical,
            "elements": self.elements,
            "broken": self.broken,
        }


class MeasureSums:
    """The sums of one tensor that make a `Measure`, while batches pass."""

    def __init__(self) -> None:
        self._sums = ExactSum(3)  # of ref^2, x^2 and (ref - x)^2
        self._largest = 0.0
        self._elements = self._broken = 0

    def add(self, reference: Array, other: Array, samples: int) -> None:
        """Take one batch in; both arrays have one shape.

        Args:
            reference: float of any width.
            other: float of any width.
            samples: how many samples the batch has: where the first axis counts them, each is summed by itself, so
                that the size of a batch changes nothing.
        """
        rows = samples if reference.ndim and reference.shape[0] == samples else 1
        for one, two in zip(reference.reshape(rows, -1), other.reshape(rows, -1), strict=True):
            for start in range(0, one.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                self._add(one[block].astype(np.float64), two[block].astype(np.float64))

    def _add(self, x: Float64, y: Float64) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            error = x - y
        powers = [_power(x), _power(y), _power(error)]
        if not math.isfinite(sum(powers)):
            odd = ~((np.abs(x) < _LARGEST) & (np.abs(y) < _LARGEST))  # NaN, Inf, and what has no square
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            self._broken += int(np.count_nonzero(odd & ~same))
            x, y = x[~odd], y[~odd]
            error = x - y
            powers = [_power(x), _power(y), _power(error)]
        if not x.size:
            return
        self._elements += x.size
        self._largest = max(self._largest, float(error.max()), -float(error.min()))
        self._sums.add(np.array(powers))

    def measure(self, tensor: str) -> Measure:
        """What the sums say so far."""
        signal, other, error = self._sums.total().tolist()
        noise = 0.0 if error == 0.0 else math.inf if signal == 0.0 else error / signal
        cosine = math.nan
        if signal > 0.0 < other:
            product = math.fsum((signal, other, -error)) / 2  # 2 ref x = ref^2 + x^2 - (ref - x)^2
            cosine = max(-1.0, min(1.0, product / math.sqrt(signal) / math.sqrt(other)))
        return Measure(tensor, decibel(noise), noise, cosine, self._largest, self._elements, self._broken)


def decibel(noise: float) -> float:
    """A ratio of noise to signal as SQNR in dB, -10 log10(noise): inf for none, -inf where there is no signal."""
    if noise == 0.0:
        return math.inf
    return -math.inf if math.isinf(noise) else -10.0 * math.log10(noise)


def why_incomparable(one: object, other: object) -> str:
    """Why two values of one tensor have no distance, in words that follow its name; "" where they have one."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return "no tensor"
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        kinds = f"{one.dtype}" if one.dtype == other.dtype else f"{one.dtype} and {other.dtype}"
        return f"of type {kinds}"
    if one.shape != other.shape:
        return f"of shape {list(one.shape)} and {list(other.shape)}"
    return "" if one.size else "has no elements"


def _power(x: Float64) -> float:
    """The sum of squares, on one thread and without a copy; Inf or NaN where it has none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.einsum("i,i->", x, x))


# ---------------------------------------------------------------------- one output before and after an edit


@dataclass(frozen=True)
class OutputChange:
    """One output of two models.

    Attributes:
        relative: sqrt(sum of squares of the difference / sum of squares of the first model's output).
        largest: the largest difference over the largest value of the first model's.
        of_range: root of the mean square of the difference over the range of the first model's output.
        decibel: sum of squares of the first model's output over that of the difference; 999 where there is none.
    """

    relative: float
    largest: float
    of_range: float
    decibel: float


class ChangeSums:
    """The sums of one output that make an `OutputChange`, over samples."""

    def __init__(self) -> None:
        self._sums = ExactSum(2)  # of exact^2 and (made - exact)^2
        self._largest = self._size = 0.0
        self._low, self._high, self._elements = math.inf, -math.inf, 0

    def add(self, exact: npt.NDArray[np.float32], made: npt.NDArray[np.float32]) -> None:
        """Take one sample in: what the first model gives and what the other gives, of one shape.

        A sum of squares that is NaN or beyond float32 counts as float32's largest value.
        """
        with np.errstate(invalid="ignore"):  # Inf less Inf
            off = made.astype(np.float64) - exact
        self._largest, self._size = max(self._largest, _magnitude(off)), max(self._size, _magnitude(exact))
        self._low = min(self._low, float(exact.min(initial=math.inf)))
        self._high = max(self._high, float(exact.max(initial=-math.inf)))
        self._elements += exact.size
        pair = np.array([np.square(exact, dtype=np.float64).sum(), np.square(off).sum()])
        most = float(np.finfo(np.float32).max)
        self._sums.add(np.nan_to_num(pair, nan=most, posinf=most).clip(max=most).astype(np.float32))

    def change(self) -> OutputChange:
        """What the sums say so far."""
        signal, noise = self._sums.total().tolist()
        relative = math.sqrt(noise / signal) if signal > 0 else float(noise > 0)
        ratio = -20 * math.log10(relative) if relative > 0 else 999.0
        largest = self._largest / self._size if self._size > 0 else self._largest
        return OutputChange(relative, largest, self._of_range(noise, relative), min(ratio, 999.0))

    def _of_range(self, noise: float, relative: float) -> float:
        """Over the range; where the output has one value alone, over that."""
        if not self._high > self._low:
            return relative
        return math.sqrt(noise / self._elements) / (self._high - self._low)


def _magnitude(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


# ---------------------------------------------------------------------- two runs of what should be the same


def largest_difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[float, str]:
    """The largest max |ours - theirs| / max |theirs| of all tensors, and that tensor's name.

    Infinity where shapes differ, or the places of values that are not finite.
    """
    worst, where = 0.0, next(iter(ours), "")
    for name, value in ours.items():
        other = theirs[name]
        if value.shape != other.shape or not np.array_equal(np.isfinite(value), np.isfinite(other)):
            return float("inf"), name
        both = np.isfinite(value)
        size = max(float(np.abs(other[both]).max(initial=0)), float(np.finfo(np.float32).tiny))
        gap = np.abs(value[both].astype(np.float64) - other[both].astype(np.float64)).max(initial=0) / size
        if gap > worst:
            worst, where = float(gap), name
    return worst, where


# ---------------------------------------------------------------------- what the channels of an output lose


def channel_loss(
    wanted: Sequence[npt.NDArray[np.floating]], got: Sequence[npt.NDArray[np.floating]], features: bool = False
) -> float:
    """Mean over the channels of one output of error^2 / variance, no channel counting more than 1: from 0 to 1.

    The channel axis of an output is its shortest one beside the first, or the last one of an output of `features`
    (whose shortest axis may be the tokens); with one axis longer than 1 it is all one.
    An output of another shape than the one wanted is lost. The variance is that between samples at one place,
    so that a decode in the graph, which spreads the places of a channel over the image, changes nothing; of one
    sample, or of samples of several shapes, over all places. A channel that never varies is left out.

    A channel counts by its places where that is less: the mean of error^2 / variance at each of them, none counting
    more than 1. A few places with large values that hardly vary (what a network makes of the border that a
    letterbox adds) would else stand for all, and whatever is done elsewhere would show nowhere.
    """
    if any(want.shape != have.shape for want, have in zip(wanted, got, strict=True)):
        return 1.0  # as many rows as there are detections: other detections
    one_shape = len({array.shape for array in wanted}) == 1
    ours, theirs = _channels(wanted, features), _channels(got, features)
    each = np.dtype(np.float64).itemsize * ours[:1].size  # bytes of a channel
    some = max(2, _BLOCK_BYTES // max(each, 1))  # NumPy sums one channel alone in another order
    ends = np.linspace(0, len(ours), max(1, len(ours) // some) + 1).astype(int)
    found = []
    with np.errstate(over="ignore", invalid="ignore"):  # of values without end: such a channel is lost or never varies
        for first, end in itertools.pairwise(ends):
            block, judged = (part[first:end].astype(np.float64, copy=False) for part in (ours, theirs))
            found.append(_lost(block, judged, len(wanted) if one_shape else 1))
    alive, lost = map(np.concatenate, zip(*found, strict=True))
    lost = lost[alive > 0]
    return float(np.where(np.isnan(lost), 1.0, lost).mean()) if lost.size else 0.0


def sample_losses(
    wanted: Sequence[npt.NDArray[np.floating]], got: Sequence[npt.NDArray[np.floating]], features: bool = False
) -> Float64:
    """What each sample of one output loses: the mean over its channels of error^2 / variance, none more than 1.

    Channels and their variance are those of `channel_loss`. How the loss moves with the samples follows from it; the
    loss itself also looks at places, which no sample has alone.

    Returns:
        float64[samples].
    """
    if any(want.shape != have.shape for want, have in zip(wanted, got, strict=True)):
        return np.ones(len(wanted))
    one_shape = len({array.shape for array in wanted}) == 1
    count, channels = len(wanted) if one_shape else 1, _channels(wanted, features)
    with np.errstate(over="ignore", invalid="ignore"):
        signal = np.concatenate([_spread(one[None].astype(np.float64), count) for one in channels])
    alive, found = signal > 0, []
    for want, have in zip(wanted, got, strict=True):
        ours, theirs = (_by_channel(one, features) if one_shape else one.reshape(1, -1) for one in (want, have))
        with np.errstate(over="ignore", invalid="ignore"):
            error = ((ours.astype(np.float64) - theirs) ** 2).sum(axis=1)[alive] * len(wanted) / signal[alive]
        found.append(np.minimum(np.where(np.isfinite(error), error, 1.0), 1.0).mean() if alive.any() else 0.0)
    return np.array(found)


def _lost(wanted: Float64, got: Float64, count: int) -> tuple[Float64, Float64]:
    """Of each channel, whether it varies (1, else 0), and what is lost of it."""
    signal, squares = _spread(wanted, count), (wanted - got) ** 2
    alive, error = signal > 0, squares.sum(axis=1)
    lost = np.where(np.isfinite(error), error, np.inf) / np.where(alive, signal, 1.0)
    return alive.astype(np.float64), np.minimum(np.minimum(lost, 1.0), _lost_places(wanted, squares, count))


def _spread(channels: Float64, count: int) -> Float64:
    """Of each channel, its variance times the number of its values."""
    if not channels.size:
        return np.zeros(len(channels))
    if count == 1:
        return _squares(channels - channels.mean(axis=1, keepdims=True))
    places = channels.reshape(len(channels), count, -1)
    about = (places - places.mean(axis=1, keepdims=True)).reshape(len(places), -1)
    return _squares(about) * (count / (count - 1))


def _lost_places(channels: Float64, squares: Float64, count: int) -> Float64:
    """Of each channel, the mean of error^2 / variance, at most 1, over the places that vary; 1 where none does."""
    if count == 1 or not channels.size:
        return np.ones(len(channels))
    places = channels.reshape(len(channels), count, -1)
    error = squares.reshape(places.shape).sum(axis=1)
    signal = ((places - places.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) * (count / (count - 1))
    alive = signal > 0
    lost = np.minimum(np.where(np.isfinite(error), error, np.inf) / np.where(alive, signal, 1.0), 1.0)
    number = alive.sum(axis=1)
    mean: Float64 = np.where(number > 0, (lost * alive).sum(axis=1) / np.maximum(number, 1), 1.0)
    return mean


def _squares(channels: Float64) -> Float64:
    summed: Float64 = (channels**2).sum(axis=1)
    return summed


def _channels(arrays: Sequence[npt.NDArray[_Real]], features: bool) -> npt.NDArray[_Real]:
    """As [channels, samples and positions]; samples of several shapes are one channel."""
    if len({array.shape for array in arrays}) > 1:
        return np.concatenate([array.ravel() for array in arrays])[None]
    return np.concatenate([_by_channel(array, features) for array in arrays], axis=1)


def _by_channel(array: npt.NDArray[_Real], features: bool) -> npt.NDArray[_Real]:
    """As [channels, positions]; a first axis that is longer than a sample's 1 counts among the positions."""
    whole = np.atleast_1d(array)
    squeezed = whole.reshape(whole.shape[0], *[size for size in whole.shape[1:] if size != 1])
    if squeezed.ndim < 3 or not squeezed.size:
        return squeezed.reshape(1, -1)
    axis = squeezed.ndim - 1 if features else 1 + int(np.argmin(squeezed.shape[1:]))
    return np.moveaxis(squeezed, axis, 0).reshape(squeezed.shape[axis], -1)
