# SPDX-License-Identifier: Apache-2.0
"""Which of many overlapping boxes stay: non-maximum suppression per class. Nothing is decoded or scored here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.detections import Float32, Int64

Float64 = npt.NDArray[np.float64]


def areas(boxes: npt.NDArray[Any]) -> Float64:
    """Areas of boxes (..., 4) given by their corners; 0 for one that is inside out."""
    sides = np.maximum(0.0, boxes[..., 2:].astype(np.float64) - boxes[..., :2])
    product: Float64 = sides[..., 0] * sides[..., 1]
    return product


def overlaps(boxes: npt.NDArray[Any], others: npt.NDArray[Any]) -> Float64:
    """Intersection over union of each pair: (N, 4) and (M, 4) to (N, M); 0 where both are empty."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2]).astype(np.float64)
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    sides = np.maximum(0.0, high - low)
    shared = sides[..., 0] * sides[..., 1]
    union = areas(boxes)[:, None] + areas(others)[None] - shared
    found: Float64 = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found


def suppress(boxes: npt.NDArray[Any], scores: npt.NDArray[Any], labels: Int64, iou: float, most: int) -> Int64:
    """The rows that stay, best first: each drops weaker ones of its class that it overlaps by more than `iou`.

    Equal scores are taken in the order of their rows, so the result does not depend on a sorting algorithm.
    """
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        covered = overlaps(boxes[best : best + 1], boxes[rest])[0] > iou
        order = rest[~(covered & (labels[rest] == labels[best]))]
    return np.array(kept, np.int64)


def select(boxes: Float64, scores: Float32, selection: Selection, iou: float) -> tuple[Float64, Float32, Int64]:
    """Candidates of one image to the boxes that stay, best first.

    Every class of a box that is above the threshold counts as one candidate. Boxes that are not finite are dropped: an
    INT8 model may overflow an exponential.

    Args:
        boxes: float64 (N, 4), corners.
        scores: float32 (N, C).
        selection: thresholds and numbers; its `iou`, where given, takes the place of `iou`.
        iou: the family's own threshold.
    """
    rows, labels = np.nonzero(scores > selection.score)
    finite = np.isfinite(boxes[rows]).all(axis=1)
    rows, labels = rows[finite], labels[finite].astype(np.int64)
    best = np.argsort(-scores[rows, labels], kind="stable")[: selection.candidates]
    rows, labels = rows[best], labels[best]
    chosen, values = boxes[rows], scores[rows, labels]
    kept = suppress(chosen, values, labels, iou if selection.iou is None else selection.iou, selection.most)
    return chosen[kept], values[kept], labels[kept]
