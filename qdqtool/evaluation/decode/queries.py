# SPDX-License-Identifier: Apache-2.0
"""What detectors by queries share: which outputs are boxes and classes, boxes as fractions of the input. No family."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qdqtool.evaluation.decode.head import HeadOutputs, Size, corners
from qdqtool.evaluation.decode.ssd import corners_in_order
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 1.0  # each query has its own object: nothing is suppressed
_BOXES = ("box", "dets", "loc")
_CLASSES = ("logit", "class", "cls", "label", "score")
MISSING = "not two outputs [batch, queries, classes] and [batch, queries, 4]"
NO_FRACTIONS = "boxes are not centers and sides as fractions of the input"


def boxes_and_classes(seen: HeadOutputs) -> tuple[str, str] | None:
    """The output of boxes and that of classes, of as many queries; None where they cannot be distinguished.

    Beside them a model may give features of its queries: names decide, then.
    """
    ranked = seen.of_rank(3)
    boxes = _one(_BOXES, [name for name, shape in ranked.items() if shape[2] == 4])
    if boxes is None:
        return None
    rows = ranked[boxes][1]
    classes = _one(_CLASSES, [name for name, shape in ranked.items() if name != boxes and shape[1] == rows])
    return None if classes is None else (boxes, classes)


def _one(words: Iterable[str], names: list[str]) -> str | None:
    if len(names) > 1:
        names = [name for name in names if any(word in name.lower() for word in words)]
    return names[0] if len(names) == 1 else None


def are_fractions(boxes: Array) -> bool:
    """Whether boxes are centers and sides as fractions: within 0 and 1, and no corners, which would be in order."""
    inside = boxes.min(initial=0) >= -0.05 and boxes.max(initial=0) <= 1.05
    return bool(inside) and not corners_in_order(boxes)


def in_pixels(boxes: Array, size: Size) -> Float64:
    """Corners in pixels of centers and sides as fractions, (..., 4)."""
    return corners(boxes[..., :2].astype(np.float64), boxes[..., 2:4]) * np.array(size * 2, np.float64)
