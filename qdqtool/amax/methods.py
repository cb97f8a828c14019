# SPDX-License-Identifier: Apache-2.0
"""From a histogram to one clipping value (`amax`), and from that to a scale: pure functions, nothing observed here.

Where a histogram holds nothing but zeros, or nothing at all, every method returns 0, which `scale_from_amax` refuses.
TensorRT's own entropy search is in trt_entropy.py: it needs its own histogram.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.amax.hinge_sums import hinge_sums
from qdqtool.amax.histogram import BINS, BINS_LOG2, NEGATIVE, POSITIVE, Histogram
from qdqtool.amax.trt_entropy import LEVELS, best_bin
from qdqtool.errors import QdqError

NAMES = ("auto", "mse", "entropy", "percentile", "max", "entropy-stable")
DEFAULT_PERCENT = 99.99
SMALLEST_SCALE = np.finfo(np.float32).smallest_normal

# Shares of the largest |x|, from 1 down: even steps to 1/4, where few values make the error ragged, then even ratios.
_COARSE = np.concatenate([np.linspace(1.0, 0.25, 256), np.geomspace(0.25, 2.0**-12, 65)[1:]])
_FINE = np.linspace(0.0, 1.0, 33)
_REGULAR = 4
_EDGES = np.arange(BINS, dtype=np.float64)  # the lower edges of the bins, in widths
_SQUARED_EDGES = _EDGES**2

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """How a clipping value is chosen: one of `NAMES`, and the percentage where the name is `percentile`."""

    name: str
    percent: float | None = None

    def __str__(self) -> str:
        """The spelling that `parse_method` reads back."""
        return self.name if self.percent is None else f"{self.name}={self.percent!r}"


def parse_method(text: str) -> Method:
    """The method that ``--method`` names: ``mse``, ``percentile``, ``percentile=99.99``, ...

    Raises:
        QdqError: an unknown name, a percentage outside (0, 100], or a number where none belongs.
    """
    name, equals, number = text.strip().partition("=")
    if name not in NAMES:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(NAMES)}"
        raise QdqError(f"--method {text}", "no such method", hint)
    if name == "percentile":
        return Method(name, _percent(text, number) if equals else DEFAULT_PERCENT)
    if equals:
        raise QdqError(f"--method {text}", f"{name} takes no number", f"write --method {name}")
    return Method(name)


def _percent(text: str, number: str) -> float:
    try:
        percent = float(number)
    except ValueError:
        percent = math.nan
    if not 0.0 < percent <= 100.0:
        raise QdqError(f"--method {text}", "the percentage must lie in (0, 100]", "write --method percentile=99.99")
    return percent


def needs_entropy_histogram(method: Method) -> bool:
    """Whether the method reads TensorRT's histogram (`EntropyHistogram`) and not `Histogram`."""
    return method.name == "entropy"


def choose_amax(method: Method, hist: Histogram) -> np.float32:
    """The clipping value by any method but `entropy`.

    Raises:
        QdqError: the method is `auto`, which needs more than a histogram (auto.py).
        ValueError: the method needs TensorRT's histogram.
    """
    if method.name == "auto":
        reason = "needs the operators that read a tensor, and only its histogram is given"
        raise QdqError("--method auto", reason, "use it where model and data are at hand, or choose mse")
    if method.name == "percentile":
        return amax_percentile(hist, DEFAULT_PERCENT if method.percent is None else method.percent)
    plain: dict[str, Callable[[Histogram], np.float32]] = {
        "mse": amax_mse,
        "max": amax_max,
        "entropy-stable": amax_entropy_stable,
    }
    if method.name not in plain:
        raise ValueError(f"{method.name} is not a function of this histogram")
    return plain[method.name](hist)


def scale_from_amax(amax: np.float32 | float, where: object = "scale") -> np.float32:
    """``float32(amax) / float32(127)``, rounded once; never below the smallest normal float32.

    An amax below 127 * 2**-126 would give a denormal scale, which GPUs flush to zero: it gets 2**-126.

    Raises:
        QdqError: amax is NaN, infinite or not above 0; `where` names the tensor.
    """
    value = np.float32(amax)
    if not (np.isfinite(value) and value > 0):
        raise QdqError(where, f"no scale follows from a clipping value of {value}", "check the calibration data")
    scale: np.float32 = max(value / np.float32(127), SMALLEST_SCALE)
    return scale


def _at_most(value: float, largest: np.float32) -> np.float32:
    """Value as float32, never above the largest |x| seen."""
    return np.float32(min(value, float(largest)))


def amax_max(hist: Histogram) -> np.float32:
    """The largest |x| seen."""
    return hist.amax


def amax_percentile(hist: Histogram, percent: float) -> np.float32:
    """The value that `percent` of all finite |x| do not exceed, zeros counted, linear inside a bin.

    Where zeros alone make up that share (99.99 % of a tensor that is nearly always 0), it is the largest |x| seen:
    zero is no clipping value.
    """
    counts, width = hist.folded()
    rank = hist.finite * (percent / 100.0) - hist.zeros
    if rank <= 0.0 or percent >= 100.0:
        return hist.amax
    below = np.cumsum(counts)
    at = int(np.searchsorted(below, rank))
    if at >= BINS:
        return hist.amax
    fraction = (rank - float(below[at] - counts[at])) / float(counts[at])
    return _at_most((at + fraction) * width, hist.amax)


def amax_entropy_stable(hist: Histogram) -> np.float32:
    """TensorRT's search (`trt_entropy.best_bin`) on the histogram that no order of the batches can change.

    |x| over both signs at the larger exponent, bins up to the last occupied one, ``(i + 0.5) * width`` of the best i,
    never above the largest |x| seen. Fewer than 128 bins (only below 2**-121): the largest |x|.
    """
    counts, width = hist.folded()
    occupied = np.flatnonzero(counts)
    if not occupied.size or occupied[-1] < LEVELS:
        return hist.amax
    return _at_most((best_bin(counts[: occupied[-1] + 1]) + 0.5) * width, hist.amax)


def amax_mse(hist: Histogram) -> np.float32:
    """The clipping value with the least expected squared error of int8, between 1/4096 of the largest |x| and that.

    Round half to even, saturating to [-128, 127], so a negative value has one level more. Zeros have no error and no
    say. Candidates: 320 over the whole range, then 33 around each of the best 8; of equal ones the largest.
    A histogram is searched once.
    """
    if hist.best_amax is None:
        hist.best_amax = _least_squares(hist)
    return hist.best_amax


def _least_squares(hist: Histogram) -> np.float32:
    sides = _sides(hist)
    if not sides:
        return hist.amax
    candidates = _COARSE * float(hist.amax)
    errors = _squared_error(sides, candidates)
    best = np.argsort(errors, kind="stable")[:8]
    above, below = candidates[np.maximum(best - 1, 0)], candidates[np.minimum(best + 1, candidates.size - 1)]
    fine = (above[:, None] - np.outer(above - below, _FINE)).ravel()
    candidates, errors = np.append(candidates, fine), np.append(errors, _squared_error(sides, fine))
    return _at_most(float(candidates[errors == errors.min()].max()), hist.amax)


def predicted_mse(hist: Histogram, amax: np.float32 | float) -> float:
    """The mean squared error of int8 at this clipping value over all finite values, zeros included, in units of x^2.

    Values are taken as spread evenly inside their bin, whole numbers as what they are: of other data on few distinct
    values it may say width^2 / 12 too much, under 1/256 of the error of an even spread at amax = the largest |x|.
    """
    if not hist.finite or not amax > 0:
        return 0.0
    return float(_squared_error(_sides(hist), np.array([float(amax)]))[0]) / hist.finite


def predicted_sqnr(hist: Histogram, amax: np.float32 | float) -> float:
    """10 log10(mean x^2 / predicted_mse) in dB; infinite where no error is predicted."""
    error = predicted_mse(hist, amax)
    power = sum(side.width**2 * side.moments[2] for side in _sides(hist)) / max(hist.finite, 1)
    return 10.0 * math.log10(power / error) if error > 0.0 else math.inf


# The mean squared error of int8 with round half to even, saturating to [-128, 127], as a function of the scale s.
#
# Per sign, with top = 127 or 128, and b_k = (k - 1/2) s the value where rounding goes from k - 1 to k:
#     sum (x - s min(round(x / s), top))^2 = sum (x - s top)^2 - 2 s sum_{k=1..top} G(b_k),   G(b) = sum max(b - x, 0)
# (Abel summation over the cells). G comes from prefix sums, so a candidate costs 255 look-ups, not one per bin.
# Inside a bin the values are taken as evenly spread: G is quadratic there and exact for such data. Where the occupied
# bins are all multiples of 4 or more, the data are whole numbers of something (pixels, indices): they stand at the
# lower edges and G has straight pieces. Spread, the clipping value of pixels would cost 4 % more than the best.


@dataclass(frozen=True)
class _Side:
    """The values of one sign, in units of a bin width: prefix sums at the lower edges, moments, the highest level."""

    width: float
    top: int
    tables: Float64  # float64[3, 4097], see `hinge_sums`
    moments: tuple[float, float, float]  # sum 1, sum x, sum x^2

    def squared_error(self, scales: Float64) -> Float64:
        """Sum of squared errors at each scale, in the unit of x^2."""
        steps = scales / self.width
        zeroth, first, second = self.moments
        saturated = second - 2.0 * self.top * steps * first + (self.top * steps) ** 2 * zeroth
        inside = hinge_sums(steps, self.tables, self.top)
        error: Float64 = self.width**2 * np.maximum(saturated - 2.0 * steps * inside, 0.0)
        return error


def _side(hist: Histogram, sign: int) -> _Side | None:
    counts = hist.counts[sign]
    filled = np.flatnonzero(counts)
    if not filled.size:
        return None
    n = counts.astype(np.float64)
    tables = np.zeros((3, BINS + 1))
    inside, slope, hinge = tables
    np.cumsum(n, out=slope[1:])
    total, first, second = float(slope[-1]), float(n @ _EDGES), float(n @ _SQUARED_EDGES)
    if _at_edges(filled):
        moments = (total, first, second)
        slope[:-1] = slope[1:]
    else:
        moments = (total, first + total / 2, second + first + total / 3)
        inside[:-1] = n
    np.cumsum(slope[:-1] + 0.5 * inside[:-1], out=hinge[1:])
    width = math.ldexp(1.0, hist.exponents[sign] - BINS_LOG2)
    return _Side(width, 127 if sign == POSITIVE else 128, tables, moments)


def _at_edges(filled: npt.NDArray[np.int64]) -> bool:
    """Whether the bins that hold something are all multiples of a number; the first few tell that most are not."""
    return math.gcd(*filled[:8].tolist()) >= _REGULAR and int(np.gcd.reduce(filled)) >= _REGULAR


def _sides(hist: Histogram) -> list[_Side]:
    return [side for side in (_side(hist, POSITIVE), _side(hist, NEGATIVE)) if side is not None]


def _squared_error(sides: list[_Side], amax: Float64) -> Float64:
    scales = amax / 127.0
    total = np.zeros_like(amax)
    for side in sides:
        total += side.squared_error(scales)
    return total
