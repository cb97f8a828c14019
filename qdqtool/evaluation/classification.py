# SPDX-License-Identifier: Apache-2.0
"""Top-1 and top-5 of a classifier, image by image. What the classes are called and where labels lie is in labels.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.head import are_shares, softmax
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
        raise QdqError(where, reason, "are these labels of this model? --label-offset shifts class numbers")
    if scores.dtype.kind == "f" and np.isnan(scores).any():
        raise QdqError(
            where, "holds NaN", "qdqtool lint names weights that are NaN; qdqtool compare, where values become NaN"
        )
    rows = np.arange(len(scores))
    right = scores[rows, classes][:, None]
    before = np.arange(scores.shape[1])[None] < classes[:, None]
    return np.asarray(((scores > right) | ((scores == right) & before)).sum(1), np.int64)


def classified(found: Sequence[Int64]) -> MeasuredModel:
    """Top-1 and top-5 from the ranks of all images."""
    rank = np.concatenate(found)
    return _means(("top1", "top5"), np.stack([rank < 1, rank < TOP], 1).astype(np.float64))


def class_agreement(rank: Int64, near: Float64) -> MeasuredModel:
    """Top-1 and top-5 from the ranks of another model's best classes, and the mean of `nearness`."""
    return _means(
        ("agreement1", "agreement5", "nearness"), np.stack([rank < 1, rank < TOP, near], 1).astype(np.float64)
    )


def _means(metrics: tuple[str, ...], each: Float64) -> MeasuredModel:
    """Figures that are means over the images; `each` is float64[images, metrics]."""

    def resampled(weights: Int64) -> Float64:
        return np.asarray(weights @ each / weights.sum(1)[:, None])[:, :, None]

    return MeasuredModel(metrics, each.mean(0)[:, None], (), len(each), resampled)


def nearness(found: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Float64:
    """How near probabilities are to those of another model: 1 - sum |p - q| / 2 of each image, float64[n].

    Args:
        found: the scores, [n, c]; logits are put behind a Softmax.
        reference: the same of the other model, on the same images; it decides whether scores are logits.
    """
    own, other = found.astype(np.float32), reference.astype(np.float32)
    if not are_shares(other):
        own, other = softmax(own), softmax(other)
    near: Float64 = 1 - np.abs(own.astype(np.float64) - other).sum(1) / 2
    return near


def mean_nearness(near: Float64) -> MeasuredModel:
    """The mean over all images."""
    return _means(("nearness",), near[:, None])


def scores_of(where: str, outputs: Mapping[str, npt.NDArray[Any]], count: int) -> npt.NDArray[Any]:
    """float[n, classes] of the only output, whatever axes of one stand behind.

    Raises:
        QdqError: several outputs, or none of scores.
    """
    if len(outputs) != 1:
        reason = f"has {len(outputs)} outputs ({', '.join(outputs)}), a classifier has one of scores"
        raise QdqError(where, reason, "give labels of boxes for a detector, or a model that ends at its scores")
    name, scores = next(iter(outputs.items()))
    if scores.dtype.kind not in "fiu" or not scores.size or scores.size % count:
        raise QdqError(where, f"gives {name} as {scores.dtype} {list(scores.shape)} for {count} samples", COMPARE)
    return scores.reshape(count, -1)
