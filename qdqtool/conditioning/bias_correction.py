# SPDX-License-Identifier: Apache-2.0
"""What is added to biases: the mean error of each output channel, as far as it is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.losses import Loss
from qdqtool.passes.condition.correct import bias_site

Float64 = npt.NDArray[np.float64]

LEAST_CORRECTION = 0.05  # decibels that a correction must win at the operator's output


@dataclass(frozen=True, eq=False)
class Addition:
    """What one operator's bias gets: float64 [channels], and the decibels that it wins at its output."""

    key: str
    values: Float64
    decibel: float


def find_additions(context: ConditionContext, losses: Sequence[Loss]) -> tuple[list[Addition], dict[str, str]]:
    """The corrections that win something, and why other operators that would gain are left alone.

    A mean m over few samples is part chance: with its variance v from sample to sample, m max(0, 1 - v / m^2) is
    added, which is nothing where chance alone would make such a mean, and nearly m where it would not.
    """
    found: list[Addition] = []
    left: dict[str, str] = {}
    for loss in losses:
        squared = np.square(loss.mean)
        trust = np.where(squared > loss.chance, 1.0 - loss.chance / np.maximum(squared, 1e-300), 0.0)
        values = loss.mean * np.where(np.isfinite(trust), trust, 0.0)
        before, after = loss.noise(), loss.noise(values)
        decibel = float(10 * np.log10(before / max(after, before * 1e-12))) if before > 0 else 0.0
        if decibel < LEAST_CORRECTION:
            continue
        if bias_site(context.view, context.view.producers[loss.key]) is None:
            left[loss.key] = "has no bias that could be corrected"
        else:
            found.append(Addition(loss.key, values, decibel))
    return found, left
