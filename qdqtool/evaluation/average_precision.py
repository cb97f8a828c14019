# SPDX-License-Identifier: Apache-2.0
"""Average precision from detections that are matched already, for any weighting of the images. Nothing is matched here.

An image of weight w stands for w copies of it, so that a bootstrap needs the matches once. Copies change neither the
precision envelope nor which recall is reached where: figures are those of the repeated list. Where detections of one
image and class tie in score, the copies of each stand together, an order as good as any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Curve = Literal["coco", "sampled", "integrated"]

_SAMPLED = np.arange(11) / 10  # the recalls at which VOC 2007 reads the precision
_CELLS = 1 << 18  # of a block of weights: it stays in the cache, and memory does not grow with the images


@dataclass(frozen=True)
class ClassMatches:
    """The detections of one class over all images, highest score first; ties stand in the order of the images.

    Attributes:
        label: the class.
        image: int64[d], which image each is from.
        hit: bool[t, d], whether it takes a box, for each of t IoU thresholds.
        ignored: bool[t, d], whether that box, or where it lies, is not counted: it is neither for nor against.
        positives: int64[n], the counted boxes of each image.
    """

    label: int
    image: Int64
    hit: Bool
    ignored: Bool
    positives: Int64


def average_precisions(matches: ClassMatches, weights: npt.NDArray[Any], curve: Curve, recalls: Float64) -> Float64:
    """The average precision of a class under each weighting of the images.

    Args:
        matches: one class.
        weights: int[b, n], how often each image counts.
        curve: `coco` and `sampled` read the precision, made falling, at fixed recalls; `integrated` is the area below.
        recalls: where `coco` reads, ascending; not used by the others.

    Returns:
        float64[b, t]; NaN where no counted box is left.
    """
    found = np.empty((len(weights), len(matches.hit)))
    step = max(1, _CELLS // max(1, len(matches.image)))
    marks = _SAMPLED if curve == "sampled" else recalls
    for start in range(0, len(weights), step):
        block = np.ascontiguousarray(weights[start : start + step].T, np.int32)
        found[start : start + step] = _block(matches, block, curve, marks)
    return found


def _block(matches: ClassMatches, weights: Int32, curve: Curve, recalls: Float64) -> Float64:
    """Weights int32[n, b] to float64[b, t]; a weighting is a column, so that sums run over rows, which is fast."""
    positives = matches.positives @ weights
    each = weights[matches.image]
    everything = each.cumsum(0, np.int32)
    found = np.stack(
        [
            _one_threshold(each, everything, hit, ignored, positives, curve, recalls)
            for hit, ignored in zip(matches.hit, matches.ignored, strict=True)
        ],
        1,
    )
    found[positives == 0] = np.nan
    return found


def _one_threshold(
    each: Int32, everything: Int32, hit: Bool, ignored: Bool, positives: Int64, curve: Curve, recalls: Float64
) -> Float64:
    """float64[b]. Recall rises at hits alone, so precision and recall are needed there and nowhere else."""
    at = np.flatnonzero(hit & ~ignored)
    if not len(at):
        return np.zeros(each.shape[1])
    seen = (each * ~ignored[:, None]).cumsum(0)[at] if ignored.any() else everything[at]
    true = each[at].cumsum(0, np.int32)
    # pycocotools adds the spacing, and so its figures come out to the last bit; VOC does not.
    precision = true / (seen + np.spacing(1) if curve == "coco" else np.maximum(seen, 1))
    envelope = np.maximum.accumulate(precision[::-1], 0)[::-1]
    recall = true / np.maximum(positives, 1)
    if curve == "integrated":
        return np.asarray((np.diff(recall, axis=0, prepend=0.0) * envelope).sum(0))
    reached = np.searchsorted(recalls, recall, side="right")  # how many of the fixed recalls lie at or below
    return np.asarray((np.diff(reached, axis=0, prepend=0) * envelope).sum(0) / len(recalls))
