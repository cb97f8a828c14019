# SPDX-License-Identifier: Apache-2.0
"""One figure for a whole model: signal over noise at the outputs of its weighted operators, each quantized alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.predict import predicted_noise

_QUIET = 1e-12  # noise over signal that counts as none


@dataclass(frozen=True)
class ErrorPrediction:
    """Signal over noise at the outputs of the weighted operators, in dB.

    Attributes:
        worst: of the operator that loses most.
        mean: over all of them.
        operator: the first output of the one that loses most; "" where there is none.
    """

    worst: float
    mean: float
    operator: str


def predict(choices: Iterable[tuple[EqualizationSet, npt.NDArray[np.float32]]]) -> ErrorPrediction | None:
    """The prediction for families divided by the factors given; None where there is no operator to tell of."""
    found: list[tuple[float, str]] = []
    for family, factors in choices:
        noise = np.maximum(predicted_noise(family.table, family.consumers, factors, family.clip), _QUIET)
        found += [
            (float(decibel), consumer.key)
            for decibel, consumer in zip(-10 * np.log10(noise), family.consumers, strict=True)
        ]
    if not found:
        return None
    worst, operator = min(found)
    return ErrorPrediction(worst, float(np.mean(sorted(decibel for decibel, _ in found))), operator)
