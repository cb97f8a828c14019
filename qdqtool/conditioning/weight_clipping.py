# SPDX-License-Identifier: Apache-2.0
"""Where the weights of each output channel are clipped: at the share of their largest that leaves the least error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.predict import Weight, predicted_noise
from qdqtool.formats import INT8

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_SHARES = np.linspace(1.0, 0.7, 31)
LEAST_CLIP = 0.1  # decibels that clipping must win at an operator's output


def find_limits(verdicts: Sequence[tuple[EqualizationSet, Float32]], least: float) -> dict[str, tuple[Float64, float]]:
    """First output of an operator -> the share of each output channel's largest weight that stays, and decibels.

    Shares (float64 [channels]) hold whatever a channel's weights were divided by for the sake of those that read it.
    The error of a weight counts times the mean square of the input channel that it multiplies, so what is least is the
    noise at the output: sum_i,k (Q(w) - w)^2 X_i over shares 1, 0.99, ... 0.7.
    """
    found: dict[str, tuple[Float64, float]] = {}
    for family, factors in verdicts:
        noise = predicted_noise(family.table, family.consumers, factors)
        for consumer, total in zip(family.consumers, noise.tolist(), strict=True):
            if consumer.rounded != "channel":
                continue
            shares, saved = _shares(consumer, family.table.energy, factors.astype(np.float64))
            gain = 10 * np.log10(total / max(total - saved, total * 1e-9)) if total > 0 else 0.0
            if gain >= least and saved > 0:
                found[consumer.key] = shares, float(gain)
    return found


def _shares(consumer: Weight, energy: Float64, factors: Float64) -> tuple[Float64, float]:
    """The shares of one operator, its inputs' division reckoned with, and how much of its relative noise they save."""
    shape = (consumer.values.shape[0], 1, consumer.values.shape[2], 1)
    used = consumer.channels >= 0
    divided = np.where(used, factors[consumer.channels], 1.0).reshape(shape)
    own = np.where(used, energy[consumer.channels], 0.0).reshape(shape) / np.square(divided)
    cube = consumer.cube * divided
    top = np.abs(cube).max(axis=(2, 3))
    errors = np.stack([_error(cube, top * share, own) for share in _SHARES])
    best = errors.argmin(axis=0)
    least = np.take_along_axis(errors, best[None], 0)[0]
    signal = float((np.square(cube) * own).sum())
    saved = float((errors[0] - least).sum()) / max(signal, 1e-30)
    return _SHARES[best].reshape(-1), saved


def _error(cube: Float64, limit: Float64, energy: Float64) -> Float64:
    step = np.where(limit > 0, limit / INT8.largest, 1.0)[:, :, None, None]
    made = np.clip(np.rint(cube / step), *INT8.weight_codes) * step
    error: Float64 = (np.square(made - cube) * energy).sum(axis=(2, 3))
    return error
