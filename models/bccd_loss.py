# SPDX-License-Identifier: Apache-2.0
"""The loss that `train_bccd.py` minimizes, as ONNX nodes: `qdqtool finetune ... --loss models/bccd_loss.py`.

The data must hold what `bccd_targets.py` yields. All starts from the output, so it fits any file of the detector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bccd import NAMES, grid

BOX_WEIGHT = 2.0
_SURE = 1e-6  # a probability is taken to be at least so far from 0 and 1: its logarithm is finite


def loss(builder: Any) -> dict[str, Any]:
    """Quality focal loss of the object score, cross-entropy of the classes, GIoU; each by the sum of qualities."""
    output = builder.tensor("detections")  # [batch, 735, 8]: offset and log size in strides, object, classes
    batch, cells, _ = output.shape
    quality = builder.label("quality", (batch, cells, 1))
    classes = builder.label("classes", (batch, cells, len(NAMES)))
    corners = builder.label("corners", (batch, cells, 4))
    total = builder.op("Max", quality.sum(), 1.0)
    score, named = _part(builder, output, 4, 5), _part(builder, output, 5, 5 + len(NAMES))
    off = quality - score
    focal = off * off * _entropy(builder, score, quality)
    confused = _entropy(builder, named, classes) * quality
    missed = (1.0 - _generalized_iou(builder, _decoded(builder, output), corners)) * quality
    parts = {"score": (focal, 1.0), "class": (confused, 1.0), "box": (missed, BOX_WEIGHT)}
    return {name: (each.sum() / total, weight) for name, (each, weight) in parts.items()}


def _part(builder: Any, value: Any, start: int, end: int) -> Any:
    """Some of the last axis."""
    places = (builder.constant(np.array([place], np.int64)) for place in (start, end, value.rank - 1))
    return builder.op("Slice", value, *places)


def _entropy(builder: Any, p: Any, y: Any) -> Any:
    """-y log p - (1 - y) log(1 - p)."""
    p = builder.op("Clip", p, _SURE, 1.0 - _SURE)
    return -(y * builder.op("Log", p) + (1.0 - y) * builder.op("Log", 1.0 - p))


def _decoded(builder: Any, output: Any) -> Any:
    """Corners in pixels [batch, 735, 4], as YOLOX's decoder reads offsets and log sizes."""
    cells, stride = (builder.constant(value[None]) for value in grid())
    center = (_part(builder, output, 0, 2) + cells) * stride
    half = builder.op("Exp", builder.op("Min", _part(builder, output, 2, 4), 4.0)) * stride * 0.5
    return builder.op("Concat", center - half, center + half, axis=2)


def _generalized_iou(builder: Any, a: Any, b: Any) -> Any:
    """GIoU (Rezatofighi 2019) of boxes cell by cell [batch, 735, 1]; some number where b has no area."""
    both = _area(builder, builder.op("Max", _first(builder, a), _first(builder, b)), "Min", a, b)
    hull = _area(builder, builder.op("Min", _first(builder, a), _first(builder, b)), "Max", a, b)
    union = _area(builder, _first(builder, a), "Max", a) + _area(builder, _first(builder, b), "Max", b) - both
    return both / union - (hull - union) / hull


def _first(builder: Any, boxes: Any) -> Any:
    return _part(builder, boxes, 0, 2)


def _area(builder: Any, first: Any, how: str, *boxes: Any) -> Any:
    """The area from `first` to the smallest or largest of the boxes' other corners, 0 where that is no box."""
    second = builder.op(how, *(_part(builder, one, 2, 4) for one in boxes))
    sides = builder.op("Relu", second - first)
    return _part(builder, sides, 0, 1) * _part(builder, sides, 1, 2)
