# SPDX-License-Identifier: Apache-2.0
"""How sure a figure is: images drawn anew with replacement, the same draw for every model that is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.display import four_decimals

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

RESAMPLES, SEED, LEVEL = 1000, 0, 0.95
_CELLS = 1 << 24  # of one block of weights: 128 MiB


@dataclass(frozen=True)
class Interval:
    """Where a figure lies with 95 % confidence; NaN twice where nothing could be drawn."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is one."""
        return not math.isnan(self.low)

    def text(self) -> str:
        """As tables print it; "-" where there is none."""
        return f"{four_decimals(self.low)} to {four_decimals(self.high)}" if self.known else "-"

    def phrase(self) -> str:
        """What stands before the number of samples, behind a figure of four digits; "" where there is none."""
        return f"95 %: {self.low:.2g} to {self.high:.2g}, " if self.known else ""


UNKNOWN = Interval(math.nan, math.nan)


def draws(images: int, resamples: int = RESAMPLES, seed: int = SEED) -> Iterator[Int64]:
    """How often each image is drawn, in blocks of resamples: int64[b, images], every row sums to `images`."""
    values = np.random.default_rng(seed)
    step = max(1, _CELLS // max(1, images))
    even = np.full(images, 1 / images)
    for start in range(0, resamples, step):
        yield values.multinomial(images, even, size=min(step, resamples - start))


def bootstrap(
    figures: Callable[[Int64], Float64], images: int, resamples: int = RESAMPLES, seed: int = SEED
) -> Float64:
    """Figures under every resample of the images.

    Args:
        figures: weights int64[b, images] -> float64[b, ...], all figures that belong together (paired).
        images: how many there are.
        resamples: how many draws.
        seed: of the draws; the same seed gives the same draws for the same number of images.

    Returns:
        float64[resamples, ...]; NaN for fewer than two images, of which every draw is the same.
    """
    found = np.concatenate([figures(weights) for weights in draws(images, resamples, seed)])
    return found if images > 1 else np.full_like(found, np.nan)


def interval(value: float, drawn: Float64, level: float = LEVEL) -> Interval:
    """The spread of resampled figures around their mean, laid around the measured one.

    Efron's percentile interval without its bias: a class that few images show is missing from some draws and doubled in
    others, which lifts a mean over classes in every draw (agreement .30 of 128 images: .33 on average).

    Args:
        value: the figure on all images.
        drawn: float64[b], the same figure on each draw; draws without a figure (NaN) are left out.
        level: how much of the draws lies inside.
    """
    held = drawn[~np.isnan(drawn)]
    if not len(held):
        return UNKNOWN
    low, high = np.quantile(held, [(1 - level) / 2, (1 + level) / 2]) - held.mean()
    return Interval(value + float(low), value + float(high))


def student_interval(value: float, each: Float64) -> Interval:
    """The interval of a figure from 0 to 1 that is the mean of what few samples give: Student's t, clipped to 0 and 1.

    A bootstrap of eight samples is too narrow by a third. The quantile is Fisher's expansion around the normal one
    (Abramowitz and Stegun, 26.7.5).

    Args:
        value: the figure.
        each: float64[n], of each sample.
    """
    free = len(each) - 1
    if free < 1:
        return UNKNOWN
    normal = 1.959964
    quantile = (
        normal + (normal**3 + normal) / (4 * free) + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * free**2)
    )
    half = quantile * float(np.std(each, ddof=1)) / math.sqrt(len(each))
    return Interval(max(0.0, value - half), min(1.0, value + half))
