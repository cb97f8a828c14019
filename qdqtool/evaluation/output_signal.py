# SPDX-License-Identifier: Apache-2.0
"""How much of the signal at FP32's outputs is kept, for models whose outputs are read neither as boxes nor as classes.

The loss is the one that `insert` prints for the outputs (`measures.channel_loss`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.metrics import Float64, Int64, MeasuredModel
from qdqtool.measures import channel_loss, sample_losses

Pair = tuple[dict[str, Array], dict[str, Array]]  # of one sample: what FP32 gives, what the model gives
# What is held of one model; the samples beyond it are not compared.
MOST_ELEMENTS = 32 << 20


def compared_outputs(reference: Mapping[str, Array], found: Mapping[str, Array], count: int, first: int) -> list[Pair]:
    """The float outputs of one run, sample by sample; where there are none, those of integers or booleans.

    Args:
        reference: what FP32 gives.
        found: what the model gives.
        count: samples in the run; outputs that do not have so many rows are compared as one sample.
        first: number of the first sample.

    Raises:
        QdqError: no output of numbers, or outputs of different shapes.
    """
    names = [name for name, values in reference.items() if values.dtype.kind == "f"]
    names = names or [name for name, values in reference.items() if values.dtype.kind in "iub"]
    if not names:
        raise QdqError("model", "has no output of numbers to compare", "give --labels")
    for name in names:
        one, other = reference[name], found[name]
        if one.shape != other.shape:
            raise QdqError(name, f"is {list(other.shape)} in INT8 and {list(one.shape)} in FP32", "give --labels")
    if first * sum(reference[name].size for name in names) > MOST_ELEMENTS * count:
        return []
    if count == 1 or any(reference[name].shape[:1] != (count,) for name in names):
        return [({name: reference[name] for name in names}, {name: found[name] for name in names})]
    rows = [slice(number, number + 1) for number in range(count)]
    return [({n: reference[n][row] for n in names}, {n: found[n][row] for n in names}) for row in rows]


def output_signal(pairs: Sequence[Pair], features: Collection[str] = ()) -> MeasuredModel:
    """One less the loss at the outputs: 1 for the same outputs, 0 where all signal is lost.

    `features` are the outputs whose last axis holds features, see `has_features`. The loss is the mean over the
    outputs of `channel_loss`; of integers it is the share of values that differ. Draws of the samples move it as they
    move the mean of what each sample loses (`sample_losses`).
    """
    lost, each = [], []
    for name in pairs[0][0]:
        wanted, got = ([pair[side][name] for pair in pairs] for side in (0, 1))
        if wanted[0].dtype.kind == "f":
            lost.append(channel_loss(wanted, got, name in features))
            each.append(sample_losses(wanted, got, name in features))
        else:
            differing = [np.count_nonzero(w != g) for w, g in zip(wanted, got, strict=True)]
            lost.append(sum(differing) / max(1, sum(w.size for w in wanted)))
            each.append(np.array([count / max(1, w.size) for count, w in zip(differing, wanted, strict=True)]))
    loss, shares = float(np.mean(lost)), np.mean(each, axis=0)
    shares = shares * (loss / shares.mean()) if shares.any() else shares

    def resampled(weights: Int64) -> Float64:
        drawn = 1 - np.clip(weights @ shares / weights.sum(1), 0, 1)
        return np.asarray(drawn, np.float64)[:, None, None]

    return MeasuredModel(("outputs",), np.array([[1 - loss]]), (), len(pairs), resampled)
