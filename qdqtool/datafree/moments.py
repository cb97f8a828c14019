# SPDX-License-Identifier: Apache-2.0
"""What is expected of a tensor's values before any data is seen: mean, variance and range, and how they combine.

Arrays are broadcastable to the tensor: an axis of size 1 means "alike along it", 0-d means "alike everywhere".
Which operator combines how is in propagate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.graph.channels import relayout

Array = npt.NDArray[np.float64]
Function = Callable[..., Array]

SIGMAS = 6.0  # Nagel 2019, 4.1: activations are expected within six standard deviations
MOST = 8192  # more values than this are described by fewer, mixed over their longest axis
LARGEST = 1e15  # means and standard deviations are held within it, so that nothing overflows
INF = float("inf")

# Trapezoid rule on [-6, 6] in steps of 1/8: exact to 1e-9 for smooth functions, to 1e-3 across a kink.
_Z = np.linspace(-SIGMAS, SIGMAS, 97)
_SHARE = np.exp(-0.5 * _Z**2) / np.exp(-0.5 * _Z**2).sum()


@dataclass(frozen=True, eq=False)
class Moments:
    """What is expected of one tensor.

    Attributes:
        mean, var: float64, equal shapes, broadcastable to the tensor.
        low, high: where its values are expected.
        lo, hi: what its values cannot pass.
        known: whether it rests on statistics in the model and not on a guess.
        source: the tensor that it is a function of, element by element; "" for itself, None for a constant.
        samples: that function at -6 .. 6 standard deviations of the source, on a last axis; None for the source itself.
    """

    mean: Array
    var: Array
    low: float
    high: float
    lo: float = -INF
    hi: float = INF
    known: bool = False
    source: str | None = ""
    samples: Array | None = None

    @property
    def amax(self) -> float:
        """The largest magnitude expected."""
        return max(abs(self.low), abs(self.high))

    @property
    def bounded(self) -> bool:
        """Whether the largest magnitude is a bound and not an expectation."""
        end = self.high if abs(self.high) >= abs(self.low) else self.low
        return end in (self.lo, self.hi) and not (self.lo == 0 and end == 0)

    def grid(self) -> Array:
        """The values over the source's grid: the shape of `mean` and one axis more."""
        if self.source is None:
            return self.mean[..., None]
        if self.samples is not None:
            return self.samples
        return np.clip(self.mean[..., None] + np.sqrt(self.var)[..., None] * _Z, self.low, self.high)


def gaussian(mean: object, var: object, lo: float = -INF, hi: float = INF, known: bool = False) -> Moments:
    """A tensor of normal values within hard bounds, expected within `SIGMAS` standard deviations."""
    mean, var = np.broadcast_arrays(_held(mean), np.clip(_held(var), 0, LARGEST**2))
    mean, var = _few(np.clip(mean, max(lo, -LARGEST), min(hi, LARGEST)), var)
    reach = SIGMAS * np.sqrt(var)
    low, high = float(np.min(mean - reach, initial=INF)), float(np.max(mean + reach, initial=-INF))
    if low > high:  # no elements
        low = high = 0.0
    return Moments(mean, var, min(max(low, lo), hi), max(min(high, hi), lo), lo, hi, known)


def sampled(samples: Array, source: str | None, lo: float = -INF, hi: float = INF, known: bool = False) -> Moments:
    """A tensor that is a function of another one, from the function's values over the grid."""
    samples = np.clip(_held(samples), max(lo, -LARGEST), min(hi, LARGEST))
    if source is None:
        return replace(gaussian(samples[..., 0], 0.0, lo, hi, known), source=None)
    mean = samples @ _SHARE
    var = np.maximum((samples - mean[..., None]) ** 2 @ _SHARE, 0)
    low, high = float(samples.min(initial=INF)), float(samples.max(initial=-INF))
    found = gaussian(mean, var, lo, hi, known)
    if found.mean.shape != mean.shape or low > high:
        return replace(found, low=min(low, found.low), high=max(high, found.high))
    return replace(found, low=low, high=high, source=source, samples=samples)


def constant(value: npt.NDArray[np.generic]) -> Moments:
    """A tensor whose values are known; one without any is described as one 0, whatever its shape is."""
    values = _held(value) if value.size else np.zeros(())
    lo, hi = float(values.min()), float(values.max())
    mean, var = _few(values, np.zeros_like(values))
    fewer = mean.shape != values.shape
    return Moments(mean, var, lo, hi, lo, hi, True, "" if fewer else None)


def guess(lo: float = -INF, hi: float = INF) -> Moments:
    """A tensor of which nothing is known: mean 0, variance 1, or evenly spread between finite bounds."""
    if np.isfinite(lo) and np.isfinite(hi):
        return replace(gaussian((lo + hi) / 2, (hi - lo) ** 2 / 12, lo, hi), low=lo, high=hi)
    return gaussian(0.0, 1.0, lo, hi)


def function_of(tensors: list[Moments], function: Function, lo: float = -INF, hi: float = INF) -> Moments | None:
    """A function, element by element, of tensors that all follow one source or are constant; None where they do not."""
    sources = {one.source for one in tensors if one.source is not None}
    if len(sources) > 1 or (len(tensors) > 1 and "" in sources):
        return None
    known = all(one.known for one in tensors)
    with np.errstate(all="ignore"):
        samples = function(*(one.grid() for one in tensors))
    return sampled(samples, sources.pop() if sources else None, lo, hi, known)


def added(a: Moments, b: Moments) -> Moments:
    """The sum of two independent tensors: E = E a + E b, V = V a + V b."""
    return gaussian(a.mean + b.mean, a.var + b.var, a.lo + b.lo, a.hi + b.hi, a.known and b.known)


def multiplied(a: Moments, b: Moments) -> Moments:
    """The product of two independent tensors: E = E a E b, V = V a V b + V a (E b)^2 + V b (E a)^2."""
    var = a.var * b.var + a.var * b.mean**2 + b.var * a.mean**2
    lo, hi = product_bounds(a, b)
    return gaussian(a.mean * b.mean, var, lo, hi, a.known and b.known)


def product_bounds(a: Moments, b: Moments) -> tuple[float, float]:
    """What a product cannot pass: the extremes over the corners, 0 * inf being 0."""
    corners = [0.0 if 0 in (x, y) else x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(corners), max(corners)


def inverse(a: Moments) -> Moments:
    """1 / a, kept away from the pole by a tenth of the root mean square."""
    floor = np.maximum(0.1 * np.sqrt(a.mean**2 + a.var), 1e-12)[..., None]
    lo, hi = (1 / a.hi, 1 / a.lo) if a.lo > 0 or a.hi < 0 else (0.0 if a.lo == 0 else -INF, INF)
    values = a.grid()
    samples = 1 / np.where(np.abs(values) < floor, np.where(values < 0, -floor, floor), values)
    return sampled(samples, a.source, lo, hi, a.known)


def mixture(parts: Iterable[Moments]) -> Moments:
    """Values that come from any of several tensors: moments of the mixture, ranges united."""
    each = list(parts)
    mean = sum((p.mean for p in each), np.float64(0)) / len(each)
    second = sum((p.var + p.mean**2 for p in each), np.float64(0)) / len(each)
    return within(each, gaussian(mean, np.maximum(second - mean**2, 0)))


def within(parts: Iterable[Moments], values: Moments) -> Moments:
    """`values` with the united ranges of the tensors that they come from."""
    each = list(parts)
    return replace(
        values,
        low=min(p.low for p in each),
        high=max(p.high for p in each),
        lo=min(p.lo for p in each),
        hi=max(p.hi for p in each),
        known=all(p.known for p in each),
    )


def collapsed(a: Moments, axes: tuple[int, ...] | None = None) -> Moments:
    """The same tensor described alike along some axes, or alike everywhere (None, which makes it 0-d)."""
    mean, var = _mixed(a.mean, a.var, axes)
    return replace(a, mean=mean, var=var, source="", samples=None)


def rearranged(a: Moments, change: Callable[[Array], npt.NDArray[np.generic] | None]) -> Moments:
    """The same values in another place; one range for all, so it stays.

    `change` moves an array as the tensor's values are moved; None where it cannot: then described alike everywhere.
    """
    mean, var = change(a.mean), change(a.var)
    if mean is None or var is None:
        return collapsed(a)
    return replace(a, mean=_held(mean), var=_held(var), source="", samples=None)


def padded(a: Moments, rank: int) -> Moments:
    """With axes of size 1 in front up to a rank."""
    return a if rank <= a.mean.ndim else rearranged(a, lambda values: relayout.padded(values, rank))


def _held(value: object) -> Array:
    values = np.asarray(value, np.float64)
    finite: Array = np.nan_to_num(values, nan=0.0, posinf=LARGEST**2, neginf=-(LARGEST**2))
    return finite


def _mixed(mean: Array, var: Array, axes: tuple[int, ...] | None) -> tuple[Array, Array]:
    keep = axes is not None
    if not mean.size:  # a tensor without values has sums and no means
        return np.asarray(mean.sum(axis=axes, keepdims=keep)), np.asarray(var.sum(axis=axes, keepdims=keep))
    average = np.asarray(mean.mean(axis=axes, keepdims=keep), np.float64)
    apart = (mean - (average if keep else average[()])) ** 2
    return average, np.asarray((var + apart).mean(axis=axes, keepdims=keep), np.float64)


def _few(mean: Array, var: Array) -> tuple[Array, Array]:
    while mean.size > MOST:
        mean, var = _mixed(mean, var, (int(np.argmax(mean.shape)),))
    return mean, var
