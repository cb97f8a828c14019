# SPDX-License-Identifier: Apache-2.0
"""What every metric gives: figures, and how they move with the weights of the images. Which metric is not asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdqtool.evaluation.bootstrap import RESAMPLES, SEED, Interval, bootstrap, interval

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredModel:
    """One model on one set of images.

    Attributes:
        metrics: their names, the one that decides first.
        values: float64[m, 1 + k], each metric over all, then for each class; 0 to 1.
        classes: the k class numbers that have figures of their own.
        images: how many were judged.
        resampled: weights int64[b, images] -> float64[b, m, 1 + k]; NaN where a class has no box left.
        facts: counts that help to read the figures, such as how many boxes there were.
        images_of: for each class, in how many images it counts; of one that a single image shows, nothing can be drawn.
    """

    metrics: tuple[str, ...]
    values: Float64
    classes: tuple[int, ...]
    images: int
    resampled: Callable[[Int64], Float64]
    facts: dict[str, int] = field(default_factory=dict)
    images_of: tuple[int, ...] = ()

    def value(self, metric: str) -> float:
        """A metric over all images and classes."""
        return float(self.values[self.metrics.index(metric), 0])


@dataclass(frozen=True)
class Figure:
    """A number and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class MetricIntervals:
    """Figures with intervals: metric -> over all, then for each class; NaN bounds of a class that one image shows.

    Attributes:
        figures: of the model.
        baseline: of what it is held against; empty without one.
        losses: baseline less model, paired: both are judged on the same draws of the images; empty without a baseline.
    """

    figures: dict[str, tuple[Figure, ...]]
    baseline: dict[str, tuple[Figure, ...]]
    losses: dict[str, tuple[Figure, ...]]


def judge(
    measured: MeasuredModel, baseline: MeasuredModel | None = None, resamples: int = RESAMPLES, seed: int = SEED
) -> MetricIntervals:
    """Give every figure its 95 % interval, and every loss against the baseline.

    Args:
        measured: the model.
        baseline: what it is held against, on the same images in the same order.
        resamples: how many draws.
        seed: of the draws.

    Raises:
        ValueError: the two were not judged by the same metrics on the same images.
    """
    both = [measured] if baseline is None else [measured, baseline]
    if len({(one.metrics, one.classes, one.images) for one in both}) > 1:
        raise ValueError("the two models were not judged alike")
    drawn = bootstrap(lambda w: np.stack([one.resampled(w) for one in both], 1), measured.images, resamples, seed)
    lone = [False, *(count < 2 for count in measured.images_of)]
    drawn[..., lone] = np.nan
    own = _figures(measured.metrics, measured.values, drawn[:, 0], bounded=True)
    if baseline is None:
        return MetricIntervals(own, {}, {})
    theirs = _figures(measured.metrics, baseline.values, drawn[:, 1], bounded=True)
    lost = baseline.values - measured.values
    return MetricIntervals(own, theirs, _figures(measured.metrics, lost, drawn[:, 1] - drawn[:, 0], bounded=False))


def _figures(
    metrics: tuple[str, ...], values: Float64, drawn: Float64, *, bounded: bool
) -> dict[str, tuple[Figure, ...]]:
    return {
        metric: tuple(_figure(float(value), drawn[:, m, k], bounded) for k, value in enumerate(values[m]))
        for m, metric in enumerate(metrics)
    }


def _figure(value: float, drawn: Float64, bounded: bool) -> Figure:
    found = interval(value, drawn)
    if bounded and not math.isnan(found.low):
        found = Interval(max(0.0, found.low), min(1.0, found.high))
    return Figure(value, found)
