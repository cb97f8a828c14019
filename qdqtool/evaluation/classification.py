# SPDX-License-Identifier: Apache-2.0
"""Top-1 and top-5 of a classifier, image by image. What the classes are called and where labels lie is in labels.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import Float64, Int64, MeasuredModel

TOP = 5
COMPARE = "qdqtool compare gives SQNR and cosine of any two models"


def ranks(where: object, scores: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Int64:
    """How many classes score better than the right one; of equal scores the lower class number stands first.

    Args:
        where: what messages call the output.
        scores: float or integer [n, c].
        classes: int[n], the right class of each.

    Returns:
        int64[n], 0 for a top-1 hit.

    Raises:
        QdqError: a score is NaN, or a class is none of the c.
    """
    outside = classes[(classes < 0) | (classes >= scores.shape[1])]
    if len(outside):
        reason = f"gives {scores.shape[1]} scores, but a label says class {outside[0]}"
        raise QdqError(where, reason, "are these the model's labels? --label-offset shifts them")
    if scores.dtype.kind == "f" and np.isnan(scores).any():
        raise QdqError(where, "holds NaN", "the model does not survive its quantization: see compare")
    rows = np.arange(len(scores))
    right = scores[rows, classes][:, None]
    before = np.arange(scores.shape[1])[None] < classes[:, None]
    return np.asarray(((scores > right) | ((scores == right) & before)).sum(1), np.int64)


def classified(found: Sequence[Int64]) -> MeasuredModel:
    """Top-1 and top-5 from the ranks of all images."""
    rank = np.concatenate(found)
    hits: Float64 = np.stack([rank < 1, rank < TOP], 1).astype(np.float64)

    def resampled(weights: Int64) -> Float64:
        return np.asarray(weights @ hits / weights.sum(1)[:, None])[:, :, None]

    return MeasuredModel(("top1", "top5"), hits.mean(0)[:, None], (), len(rank), resampled)


def scores_of(where: str, outputs: Mapping[str, npt.NDArray[Any]], count: int) -> npt.NDArray[Any]:
    """float[n, classes] of the only output, whatever axes of one stand behind.

    Args:
        where: what messages call the model.
        outputs: of one run.
        count: samples in it.

    Raises:
        QdqError: several outputs, or none of scores.
    """
    if len(outputs) != 1:
        reason = f"has {len(outputs)} outputs ({', '.join(outputs)}), a classifier has one of scores"
        raise QdqError(where, reason, "give labels of boxes for a detector, or a model cut to its scores")
    name, scores = next(iter(outputs.items()))
    if scores.dtype.kind not in "fiu" or not scores.size or scores.size % count:
        raise QdqError(where, f"gives {name} as {scores.dtype} {list(scores.shape)} for {count} samples", COMPARE)
    return scores.reshape(count, -1)
