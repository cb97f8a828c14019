# SPDX-License-Identifier: Apache-2.0
"""Agreement: how well a model's detections match those of its FP32 original, for images that nobody has labeled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qdqtool.errors import QdqError
from qdqtool.evaluation.detection_ap import coco
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import Truth, truth_of
from qdqtool.evaluation.metrics import MeasuredModel

SURE = 0.3  # what the FP32 model finds above this score counts as true


def agreement(found: Sequence[Detections], baseline: Sequence[Detections]) -> MeasuredModel:
    """COCO's average precision (`agreement`: IoU 0.5 to 0.95; `agreement50`: 0.5) with another model's boxes as truth.

    Raises:
        QdqError: the FP32 model is sure of nothing in these images.
        MissingPackageError: pycocotools is not installed.
    """
    truths = [_sure(one) for one in baseline]
    if not any(map(len, truths)):
        reason = f"detects nothing above a score of {SURE} in {len(truths)} images"
        raise QdqError("--baseline", reason, "is the preprocessing that of the model?")
    return replace(coco(found, truths), metrics=("agreement", "agreement50"))


def _sure(found: Detections) -> Truth:
    kept = found.scores > SURE
    return truth_of(found.boxes[kept], found.labels[kept])
