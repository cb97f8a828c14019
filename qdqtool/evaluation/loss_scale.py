# SPDX-License-Identifier: Apache-2.0
"""Words for a loss: from which figure on it is much, and below which it is little. Every verb takes them from here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qdqtool.evaluation.metrics import Figure

Word = Literal["little", "some", "much", ""]

# Shares of the metric's own figure: mAP .340 that becomes .323 has lost .05 of itself.
LITTLE, MUCH = 0.02, 0.05
WORDS: Mapping[Word, str] = {
    "little": "little is lost",
    "some": "the task's metric may lose 2 % of itself or more",
    "much": "the task's metric may lose 5 % of itself or more",
    "": "so few samples do not show whether something is lost",
}


@dataclass(frozen=True)
class LossScale:
    """Where words begin.

    Attributes:
        little: a loss whose whole interval lies below it is little.
        much: a loss from here on is much.
    """

    little: float
    much: float


# What is compared with the float model in place of labels falls long before the metric does. The figures are those
# with which the words were right on labeled models, judged leaving one model out (tests/bench/loss_words.py).
WITHOUT_LABELS = {
    "nearness": LossScale(0.034, 0.093),
    "agreement": LossScale(0.037, 0.378),
    "outputs": LossScale(0.014, 0.302),
}


def word_of(metric: str, loss: Figure, baseline: float = 1.0) -> Word:
    """The word for a loss of a metric, absolute, of a model that had `baseline` of it; "" where it says nothing.

    By labels the figure must be beyond chance: "much" and "some" where the interval lies above 0, "little" where all
    of it lies below the bound.
    """
    scale = WITHOUT_LABELS.get(metric)
    if scale is None:
        scale = LossScale(LITTLE * baseline, MUCH * baseline)
    if not math.isfinite(loss.value):
        return ""
    high = loss.interval.high if loss.interval.known else loss.value
    if high < scale.little:
        return "little"
    if metric not in WITHOUT_LABELS and not loss.interval.low > 0:
        return ""
    return "much" if loss.value >= scale.much else "some"
