# SPDX-License-Identifier: Apache-2.0
"""Whether a model does so badly by labels that losses against it mean nothing. No metric is defined here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qdqtool.evaluation.detections import FINDS_NOTHING
from qdqtool.evaluation.tasks import LabeledBoxes, LabeledClasses, Task

# Top-1 up to a tenth of the way from guessing to always right is taken for guessing.
_NEAR_CHANCE = 0.1
# A model of use is right at least half of that way: so few samples must not make it look like one that guesses.
_OF_USE = 0.5
_SURE = 0.05
_WHAT_TO_TRY = (
    "try another --preprocess (imagenet, caffe, keras, color=bgr), and check that the labels number the classes as "
    "the model does"
)


def chance_warning(where: str, hits: int, samples: int, classes: int) -> str:
    """A sentence where a classifier does no better than guessing, or hardly so; else "".

    A model that is right half the way from guessing (1 / classes) to always would show so few hits with a probability
    of less than 0.05, by Hoeffding's bound.
    """
    if classes < 2 or not samples:
        return ""
    top1, chance = hits / samples, 1 / classes
    useful = chance + _OF_USE * (1 - chance)
    if top1 > chance + _NEAR_CHANCE * (1 - chance) or math.exp(-2 * samples * (useful - top1) ** 2) >= _SURE:
        return ""
    return (
        f"{where} has a top-1 of {top1:.4f} on {samples} samples, where guessing one of {classes} classes gives "
        f"{chance:.4f}: a loss against that means nothing; {_WHAT_TO_TRY}"
    )


def reference_warning(task: Task, found: Sequence[Any], name: str = "FP32") -> str:
    """A sentence where the reference finds nothing right by labels that a loss could be measured against; else ""."""
    if isinstance(task, LabeledClasses):
        return chance_warning(name, sum(int(rank) == 0 for rank in found), len(found), task.classes)
    if isinstance(task, LabeledBoxes) and not any(len(boxes) for boxes, _ in found):
        return f"{name} {FINDS_NOTHING}"
    return ""
