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
_ROUNDING = 1e-10  # of floats: 0.49 - 0.48 is no more than 0.01
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
    "nearness": LossScale(0.036, 0.097),
    "agreement": LossScale(0.032, 0.372),
    "outputs": LossScale(0.026, 0.287),
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
    if not is_at_most(scale.little, high):
        return "little"
    if metric not in WITHOUT_LABELS and not loss.interval.low > 0:
        return ""
    return "much" if is_at_most(scale.much, loss.value) else "some"


def is_at_most(value: float, bound: float) -> bool:
    """Whether a figure is no more than a bound, whatever subtraction of floats adds; not where one is NaN."""
    return value <= bound + _ROUNDING


def samples_to_show(have: int, spread: float, room: float) -> int:
    """How many samples make a part of an interval, `spread` wide with `have` of them, as narrow as `room`; two digits.

    An interval shrinks with the root of the samples.
    """
    least = math.ceil(have * (spread / room) * (spread / room))
    digits: int = 10 ** max(len(str(least)) - 2, 0)
    return math.ceil(least / digits) * digits


def sentence_of(word: Word, loss: Figure, baseline: float | None, samples: int) -> str:
    """The sentence for a word: that so much is lost where the interval shows it, else that it may be.

    Args:
        word: for the loss.
        loss: absolute.
        baseline: what the float model has of the task's own metric, by labels; None without labels.
        samples: how many the loss was measured on.
    """
    share = {"some": LITTLE, "much": MUCH}.get(word)
    if share is not None and baseline is not None and is_at_most(share * baseline, loss.interval.low):
        return f"the task's metric loses {100 * share:g} % of itself or more"
    if word == "" and baseline and loss.interval.known and math.isfinite(loss.value):
        little, value = LITTLE * baseline, loss.value
        # Shown is that little is lost, where all of the interval lies below the bound, or else that something is.
        spread, room = (
            (loss.interval.high - value, little - value) if value < little else (value - loss.interval.low, value)
        )
        return f"{WORDS[word]}; at the same loss, about {samples_to_show(samples, spread, room):,} would"
    return WORDS[word]
