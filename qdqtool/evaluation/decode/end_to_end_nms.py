# SPDX-License-Identifier: Apache-2.0
"""Detectors with their suppression in the graph: rows of corners, score and class, filled up with zeros.

Three forms: [batch, boxes, 6] (YOLOv10, YOLO26, end-to-end exports); [batch, boxes, 7] with the image's number in
front, y before x and classes from 1 (EfficientDet); four outputs of number, boxes, scores and classes (TensorFlow,
TensorRT).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.dense_rows import rows_of
from qdqtool.evaluation.decode.grids import strides_of
from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, one_column_each
from qdqtool.evaluation.decode.queries import are_fractions
from qdqtool.evaluation.detections import Array

IOU = 1.0  # nothing is left to suppress
_YX = (1, 0, 3, 2)
_PARTS = {"count": ("num",), "boxes": ("box",), "scores": ("score",), "classes": ("class", "label")}


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.shapes) == 1:
        return _one(seen, *next(iter(seen.shapes.items())))
    parts = _parts(seen)
    if len(seen.shapes) != 4 or len(parts) != 4 or len(seen.shapes[parts["boxes"]]) != 3:
        return "no outputs whose names say number, boxes, scores and classes"
    tensorflow = len(seen.shapes[parts["count"]]) == 1  # TensorRT's plugin writes [batch, 1] and x before y
    pixels = _in_pixels(seen, parts["boxes"], slice(0, 4))
    read = partial(_read_parts, parts=parts, tensorflow=tensorflow, pixels=pixels)
    return RecognizedHead(f"{parts['boxes']} and three more, NMS in the graph", IOU, read)


def _one(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> RecognizedHead | str:
    """Of one output."""
    if len(shape) != 3 or shape[2] not in (6, 7):
        return f"{name} is not [batch, boxes, 6 or 7]"
    if shape[2] == 6 and name in seen.arrays and are_fractions(seen.arrays[name][..., :4]):
        return f"{name} holds centers and sides, not corners"
    if seen.rows.get(name) == "picked":
        return _rows(seen, name, shape)
    if rows_of(seen, name, shape) == "dense":
        return f"nothing is suppressed yet in {name}: --decoder rows"
    if any(strides_of(shape[1], seen.size, n) for n in (1, 3)):
        return f"{name} has as many rows as the input of {seen.size[0]}x{seen.size[1]} has cells: nothing is suppressed"
    return _rows(seen, name, shape)


def _parts(seen: HeadOutputs) -> dict[str, str]:
    """Part -> the output whose name says so, each taken once."""
    found: dict[str, str] = {}
    for part, words in _PARTS.items():
        for name in seen.shapes:
            if name not in found.values() and any(word in name.lower() for word in words):
                found[part] = name
                break
    return found


def _rows(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> RecognizedHead:
    first = shape[2] - 6
    pixels = _in_pixels(seen, name, slice(first, first + 4))
    return RecognizedHead(f"{name} {list(shape)}, NMS in the graph", IOU, partial(_read_rows, name=name, pixels=pixels))


def _in_pixels(seen: HeadOutputs, name: str, corners: slice) -> bool:
    """Whether corners count pixels: fractions of the input hardly pass 1. Without values they do."""
    return name not in seen.arrays or bool(np.abs(seen.arrays[name][..., corners]).max(initial=0) > 4)


def _read_rows(outputs: Mapping[str, Array], size: Size, *, name: str, pixels: bool) -> Candidates:
    rows = outputs[name]
    if rows.shape[2] == 7:
        return _scaled(rows[..., 1:5][..., _YX], size, pixels=pixels), one_column_each(rows[..., 5], rows[..., 6] - 1)
    return _scaled(rows[..., :4], size, pixels=pixels), one_column_each(rows[..., 4], rows[..., 5])


def _read_parts(
    outputs: Mapping[str, Array], size: Size, *, parts: Mapping[str, str], tensorflow: bool, pixels: bool
) -> Candidates:
    boxes, scores, labels = (outputs[parts[part]] for part in ("boxes", "scores", "classes"))
    valid = np.arange(scores.shape[1]) < outputs[parts["count"]].reshape(-1, 1)
    scores = np.where(valid, scores, 0)
    boxes, labels = (boxes[..., _YX], labels - 1) if tensorflow else (boxes, labels)
    return _scaled(boxes, size, pixels=pixels), one_column_each(scores, labels)


def _scaled(boxes: Array, size: Size, *, pixels: bool) -> Array:
    return boxes.astype(np.float64) * (1 if pixels else np.array(size * 2))
