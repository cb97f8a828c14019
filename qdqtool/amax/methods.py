# SPDX-License-Identifier: Apache-2.0
"""From a histogram to one clipping value (`amax`), and from that to a scale: pure functions, nothing observed here.

Where a histogram holds nothing but zeros, or nothing at all, every method returns 0, which `scale_from_amax` refuses.
TensorRT's own entropy histogram is in trt_entropy.py. A new method is its row in method_table.py, a function, and the
function's line in `_ARITHMETIC`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from qdqtool.amax.entropy_search import LEVELS, best_bin
from qdqtool.amax.histogram import BINS, Histogram
from qdqtool.amax.histogram_kinds import AnyHistogram
from qdqtool.amax.method_table import Method
from qdqtool.amax.squared_errors import Side, sides_of, squared_errors
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.errors import QdqError
from qdqtool.formats import INT8

SMALLEST_SCALE = np.finfo(np.float32).smallest_normal

# Shares of the largest |x|, from 1 down: even steps to 1/4, where few values make the error ragged, then even ratios.
_COARSE = np.concatenate([np.linspace(1.0, 0.25, 256), np.geomspace(0.25, 2.0**-12, 65)[1:]])
_FINE = np.linspace(0.0, 1.0, 33)
_BEST = 8  # of the coarse ones, around which finer ones are looked at
_EVERY = 8  # of so many coarse ones one is looked at first
_REST = np.arange(_COARSE.size) % _EVERY != 0
_ROUGHLY = (1e-6, 1e-12)  # what errors are off by, and more: of themselves, of the sum of all squares

Float64 = npt.NDArray[np.float64]


def scale_from_amax(amax: np.float32 | float, where: object = "scale") -> np.float32:
    """The scale of a clipping value in INT8, rounded once; never below the smallest normal float32.

    A tiny amax would give a denormal scale, which GPUs flush to zero: it gets 2**-126.

    Raises:
        QdqError: amax is NaN, infinite or not above 0; `where` names the tensor.
    """
    value = np.float32(amax)
    if not (np.isfinite(value) and value > 0):
        raise QdqError(where, f"no scale follows from a clipping value of {value}", "check the calibration data")
    scale: np.float32 = max(np.float32(INT8.scale_of(value)), SMALLEST_SCALE)
    return scale


def choose_amax(method: Method, hist: AnyHistogram) -> np.float32:
    """The clipping value by any method that needs a histogram alone.

    Raises:
        QdqError: the consumers of a tensor choose, which needs more than a histogram (measuring/auto_scales.py).
        ValueError: the method reads the other kind of histogram.
    """
    if method.row.by_consumers:
        reason = "needs the operators that read a tensor, and only its histogram is given"
        raise QdqError(f"--method {method}", reason, "use it where model and data are at hand, or choose mse")
    if hist.kind != method.row.histogram:
        raise ValueError(f"{method.name} is not a function of this histogram")
    if method.percent is not None:
        return _ARITHMETIC[method.name](hist, method.percent)
    return _ARITHMETIC[method.name](hist)


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
    """TensorRT's search (`entropy_search.best_bin`) on the histogram that no order of the batches can change.

    |x| over both signs at the larger exponent, bins up to the last occupied one, ``(i + 0.5) * width`` of the best i,
    never above the largest |x| seen. Fewer than 128 bins (only below 2**-121): the largest |x|.
    """
    counts, width = hist.folded()
    occupied = np.flatnonzero(counts)
    if not occupied.size or occupied[-1] < LEVELS:
        return hist.amax
    return _at_most((best_bin(counts[: occupied[-1] + 1]) + 0.5) * width, hist.amax)


def amax_entropy(hist: EntropyHistogram) -> np.float32:
    """TensorRT's clipping value (`EntropyHistogram.search`)."""
    found = hist.search()
    return np.float32(0) if found is None else found


def amax_mse(hist: Histogram) -> np.float32:
    """The clipping value with the least expected squared error of int8, between 1/4096 of the largest |x| and that.

    Round half to even, saturating to [-128, 127], so a negative value has one level more. Zeros have no error and no
    say. Candidates: 320 over the whole range, then 33 around each of the best 8; of equal ones the largest.
    A histogram is searched once.
    """
    if hist.best_amax is None:
        hist.best_amax = _least_squares(hist)
    return hist.best_amax


# By name: the function of a histogram, and of the percentage where the method takes one.
_ARITHMETIC: Mapping[str, Callable[..., np.float32]] = {
    "mse": amax_mse,
    "max": amax_max,
    "percentile": amax_percentile,
    "entropy": amax_entropy,
    "entropy-stable": amax_entropy_stable,
}


def _least_squares(hist: Histogram) -> np.float32:
    sides = sides_of(hist)
    if not sides:
        return hist.amax
    candidates = _COARSE * float(hist.amax)
    errors = np.empty_like(candidates)
    errors[~_REST] = squared_errors(sides, candidates[~_REST] / 127.0)
    most = _above(sides, float(np.partition(errors[~_REST], _BEST - 1)[_BEST - 1]))
    errors[_REST] = squared_errors(sides, candidates[_REST] / 127.0, most)
    best = np.argsort(errors, kind="stable")[:_BEST]
    above, below = candidates[np.maximum(best - 1, 0)], candidates[np.minimum(best + 1, candidates.size - 1)]
    fine = (above[:, None] - np.outer(above - below, _FINE)).ravel()
    finer = squared_errors(sides, fine / 127.0, _above(sides, float(errors[best[0]])))
    candidates, errors = np.append(candidates, fine), np.append(errors, finer)
    return _at_most(float(candidates[errors == errors.min()].max()), hist.amax)


def _above(sides: list[Side], error: float) -> float:
    """An error that is surely larger than another."""
    return error + _ROUGHLY[0] * error + _ROUGHLY[1] * sum(side.energy for side in sides)


def predicted_mse(hist: Histogram, amax: np.float32 | float) -> float:
    """The mean squared error of int8 at this clipping value over all finite values, zeros included, in units of x^2.

    Values are taken as spread evenly inside their bin, whole numbers as what they are: of other data on few distinct
    values it may say width^2 / 12 too much, under 1/256 of the error of an even spread at amax = the largest |x|.
    """
    if not hist.finite or not amax > 0:
        return 0.0
    return float(squared_errors(sides_of(hist), np.array([float(amax) / 127.0]))[0]) / hist.finite


def predicted_sqnr(hist: Histogram, amax: np.float32 | float) -> float:
    """10 log10(mean x^2 / predicted_mse) in dB; infinite where no error is predicted."""
    error = predicted_mse(hist, amax)
    power = sum(side.energy for side in sides_of(hist)) / max(hist.finite, 1)
    return 10.0 * math.log10(power / error) if error > 0.0 else math.inf
