# SPDX-License-Identifier: Apache-2.0
"""How fast and how far each trained number may move: multipliers of the rate, largest magnitudes, what decays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from qdqtool.training.options import UpdateOptions
from qdqtool.training.parameters import Parameters, channel_steps, steps_of_weight
from qdqtool.training.training_graph import TrainingGraph

Float32 = npt.NDArray[np.float32]
_SAME = 1e-5  # relative: max / 127 * 127 need not be max


def lr_multipliers(
    form: TrainingGraph, parameters: Parameters, values: Mapping[str, Float32], update: UpdateOptions
) -> Float32:
    """float32[size]: the INT8 step of each weight, or 1; for scales what makes the rate theirs."""
    found: dict[str, npt.ArrayLike] = {}
    for name, slot in parameters.slots.items():
        if slot.logarithm:
            found[name] = update.scale_lr / update.rate
        elif update.relative and update.rise is not None and form.in_float:
            found[name] = channel_steps(values[name])
        elif update.relative:
            pair = form.weight_pairs.get(name)
            grid = () if pair is None else (form.initial()[pair.scale], pair.axis)
            found[name] = steps_of_weight(values[name], *grid)
    return parameters.filled(found, 1.0)


def magnitude_bounds(form: TrainingGraph, parameters: Parameters, values: Mapping[str, Float32]) -> Float32:
    """float32[size]: what each weight's pair holds, or what it was, so that the range stays that of its scale.

    TensorRT quantizes the weights of a model with a calibration cache by their largest magnitude.
    """
    limits: dict[str, npt.ArrayLike] = {}
    for name, pair in form.weight_pairs.items():
        if name in parameters.slots and pair.scale not in parameters.slots and not np.any(pair.zero):
            steps = steps_of_weight(values[name], form.initial()[pair.scale], pair.axis)
            limits[name] = np.maximum(np.abs(values[name]), pair.high * steps)
    return parameters.filled(limits, np.inf)


def at_bound(parameters: Parameters, bounds: Float32) -> npt.NDArray[np.bool_]:
    """bool[size]: which of the parameters are as large as they may be, by which a builder finds their scale."""
    return np.abs(parameters.vector) >= bounds * (1 - _SAME)


def decayed(form: TrainingGraph, parameters: Parameters, values: Mapping[str, Float32]) -> Float32:
    """float32[size]: 1 for weights of operators, which decay; 0 for biases, BatchNormalization, scales, projections."""
    weights = frozenset(form.weights)
    return parameters.filled({name: 1.0 for name in values if name in weights and values[name].ndim > 1}, 0.0)
