# SPDX-License-Identifier: Apache-2.0
"""EfficientDet: nine anchors a cell on five maps, classes and offsets. Raw maps, or joined to one output each.

Offsets are (y, x, height, width): center = anchor center + offset * anchor side, side = anchor side * exp(offset).
Anchors: 4 strides times 1, 2^(1/3), 2^(2/3), in the ratios 1:1, 1.4:0.7 and 0.7:1.4 (Tan et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import cell_count, cells, map_size
from qdqtool.evaluation.decode.head import (
    Candidates,
    HeadLayout,
    HeadOutputs,
    RecognizedHead,
    Size,
    corners,
    counted,
    sigmoid,
)
from qdqtool.evaluation.decode.ssd import corners_in_order
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 0.5
_STRIDES = (8, 16, 32, 64, 128)
_EACH = 9
_SCALES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
_BOX = 4 * _EACH


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.of_rank(3)) == len(seen.shapes) == 2:
        return _joined(seen)
    if len(seen.of_rank(4)) == len(seen.shapes) == 2 * len(_STRIDES):
        return _maps(seen)
    return "neither two outputs of nine anchors a cell nor two maps for each of five strides"


def _joined(seen: HeadOutputs) -> RecognizedHead | str:
    rows = _EACH * cell_count(seen.size, _STRIDES)
    boxes = [name for name, shape in seen.shapes.items() if shape[1:] == (rows, 4)]
    if len(boxes) != 1 or any(shape[1] != rows for shape in seen.shapes.values()):
        return f"no outputs [batch, {rows}, classes] and [batch, {rows}, 4]"
    if boxes[0] in seen.arrays and corners_in_order(seen.arrays[boxes[0]]):
        return f"{boxes[0]} holds corners, not offsets"
    scores = next(name for name in seen.shapes if name != boxes[0])
    return _head(seen, (scores,), (boxes[0],), seen.shapes[scores][2], f"{scores} and {boxes[0]}")


def _maps(seen: HeadOutputs) -> RecognizedHead | str:
    """Maps of five strides, channels first or last."""
    scores, boxes = [], []
    for stride in _STRIDES:
        columns, rows = map_size(seen.size, stride)
        here = {name: _channels(shape, columns, rows) for name, shape in seen.shapes.items()}
        fours = [name for name, channels in here.items() if channels == _BOX]
        others = [name for name, channels in here.items() if channels not in (0, _BOX) and channels % _EACH == 0]
        if len(fours) != 1 or len(others) != 1:
            return f"no map of {_BOX} channels and one of {_EACH} * classes for stride {stride}"
        scores.append(others[0])
        boxes.append(fours[0])
        classes = here[others[0]] // _EACH
    return _head(seen, tuple(scores), tuple(boxes), classes, f"{scores[0]}, {boxes[0]} and those of four more strides")


def _channels(shape: tuple[int, ...], columns: int, rows: int) -> int:
    if shape[2:] == (rows, columns):
        return shape[1]
    return shape[3] if shape[1:3] == (rows, columns) else 0


def _head(
    seen: HeadOutputs, scores: tuple[str, ...], boxes: tuple[str, ...], classes: int, description: str
) -> RecognizedHead:
    ready = seen.are_probabilities(scores)
    read = partial(_candidates, scores=scores, boxes=boxes, classes=classes, ready=ready)
    layout = HeadLayout((*scores, *boxes), probabilities=ready, levels=tuple(zip(scores, boxes, strict=True)))
    return RecognizedHead(f"{description}, {counted(classes)}, anchors of strides 8 to 128", IOU, read, classes, layout)


def _candidates(
    outputs: Mapping[str, Array],
    size: Size,
    *,
    scores: tuple[str, ...],
    boxes: tuple[str, ...],
    classes: int,
    ready: bool,
) -> Candidates:
    values = np.concatenate([_rows(outputs[name], classes, size) for name in scores], 1)
    offsets = np.concatenate([_rows(outputs[name], 4, size) for name in boxes], 1).astype(np.float64)
    centers, sides = anchors(size)
    with np.errstate(over="ignore"):
        found = corners(centers + offsets[..., 1::-1] * sides, np.exp(offsets[..., 3:1:-1]) * sides)
    return found, values if ready else sigmoid(values)


def _rows(output: Array, numbers: int, size: Size) -> Array:
    """One row for each anchor, cell by cell: (B, N, numbers)."""
    if output.ndim == 4 and is_channels_first(output.shape, size):
        output = output.transpose(0, 2, 3, 1)
    return output.reshape(len(output), -1, numbers)


def is_channels_first(shape: tuple[int, ...], size: Size) -> bool:
    """Whether a map of one of the strides is NCHW."""
    return shape[2:] in [map_size(size, stride)[::-1] for stride in _STRIDES]


def anchors(size: Size) -> tuple[Float64, Float64]:
    """Centers and sides of all anchors in pixels, map by map, cell by cell, scale by scale: (N, 2) each."""
    each = np.array([(scale * wide, scale * high) for scale in _SCALES for wide, high in _RATIOS])
    centers, sides = [], []
    for stride in _STRIDES:
        points = (cells(*map_size(size, stride)) + 0.5) * stride
        centers.append(np.repeat(points, _EACH, 0))
        sides.append(np.tile(each * 4 * stride, (len(points), 1)))
    return np.concatenate(centers), np.concatenate(sides)
