# SPDX-License-Identifier: Apache-2.0
"""YOLOv5 and YOLOv7: three anchors a cell, object and classes. Decoded in the graph, or raw maps of logits.

With s = sigmoid: center = (2 s(xy) - 0.5 + cell) * stride, side = (2 s(wh))^2 * anchor, score = s(object) * s(class).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.dense_rows import HOLDS_CLASS, rows_of
from qdqtool.evaluation.decode.grids import cells, strides_of
from qdqtool.evaluation.decode.head import (
    Candidates,
    HeadOutputs,
    RecognizedHead,
    Size,
    corners,
    counted,
    joined,
    sigmoid,
)
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 0.65
# Width and height of the anchors that the published models have, for three and for four maps.
ANCHORS = {
    3: (10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326),
    4: (19, 27, 44, 40, 38, 94, 96, 68, 86, 152, 180, 137, 140, 301, 303, 264, 238, 542, 436, 615, 739, 380, 925, 792),
}
COCO, _V8_COCO = 255, 144  # channels of a map for 80 classes: 3 * (5 + 80), and YOLOv8's 64 + 80


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    maps = seen.of_rank(5)
    flat = seen.of_rank(3)
    if len(flat) == 1 and len(flat) + len(maps) == len(seen.shapes):
        return _decoded(seen, *next(iter(flat.items())))
    if len(maps) == len(seen.shapes):
        return _raw(seen, {name: (shape[1], shape[3], shape[2], shape[4]) for name, shape in maps.items()})
    maps = seen.of_rank(4)
    if len(maps) == len(seen.shapes) > 1:
        wrong = _not_three_anchors(seen, {shape[1] for shape in maps.values()})
        return wrong or _raw(seen, {name: (3, shape[3], shape[2], shape[1] // 3) for name, shape in maps.items()})
    return "neither one output [batch, 3 * cells, 5 + classes] nor maps of three anchors"


def _not_three_anchors(seen: HeadOutputs, channels: set[int]) -> str:
    """Why maps of these channels are not YOLOv5's; "" where they may be."""
    one = min(channels)
    if len(channels) > 1 or one % 3 or one < 18:
        return f"maps have {', '.join(map(str, sorted(channels)))} channels, not 3 * (5 + classes)"
    if one == _V8_COCO and seen.settings.classes is None:
        return f"{_V8_COCO} channels are YOLOv8's for 80 classes"
    if seen.settings.classes not in (None, one // 3 - 5):
        return f"maps of {one} channels are not 3 * (5 + {seen.settings.classes})"
    return ""


def _decoded(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> RecognizedHead | str:
    if not strides_of(shape[1], seen.size, each=3) or shape[2] < 6:
        return f"{name} has not three rows of 5 + classes for each cell"
    if rows_of(seen, name, shape):
        return f"{name} {HOLDS_CLASS}"
    description = f"{name} {list(shape)}, {counted(shape[2] - 5)}, decoded in the graph"
    return RecognizedHead(description, IOU, partial(_read_decoded, name=name), shape[2] - 5)


def _raw(seen: HeadOutputs, maps: Mapping[str, tuple[int, ...]]) -> RecognizedHead | str:
    """A head of raw maps: name -> anchors, columns, rows, numbers an anchor."""
    order = sorted(maps, key=lambda name: -maps[name][1])
    anchors = seen.settings.anchors or ANCHORS.get(len(maps), ())
    if len(anchors) != 6 * len(maps):
        return f"{len(maps)} maps need {6 * len(maps)} numbers as anchors=, there are {len(anchors)}"
    if {maps[name][0] for name in order} != {3} or len({maps[name][3] for name in order}) != 1:
        return "maps differ in classes, or have not three anchors"
    if not all(seen.has_aspect_ratio(maps[name][1], maps[name][2]) for name in order):
        return "maps have another aspect ratio than the input"
    classes = maps[order[0]][3] - 5
    if classes < 1:
        return f"{order[0]} has {classes + 5} numbers an anchor, not 5 + classes"
    ready = seen.are_probabilities(order)
    sides = np.array(anchors, np.float64).reshape(len(order), 3, 2)
    description = f"{', '.join(order)}, {counted(classes)}, raw maps{' after a sigmoid' if ready else ''}"
    return RecognizedHead(description, IOU, partial(_read_raw, order=tuple(order), sides=sides, ready=ready), classes)


def _read_decoded(outputs: Mapping[str, Array], size: Size, *, name: str) -> Candidates:
    output = outputs[name]
    return corners(output[..., :2], output[..., 2:4]), output[..., 4:5] * output[..., 5:]


def _read_raw(
    outputs: Mapping[str, Array], size: Size, *, order: tuple[str, ...], sides: Float64, ready: bool
) -> Candidates:
    return joined(_of_map(outputs[name], size, side, ready=ready) for name, side in zip(order, sides, strict=True))


def _of_map(output: Array, size: Size, sides: Float64, *, ready: bool) -> Candidates:
    if output.ndim == 4:
        batch, channels, rows, columns = output.shape
        output = output.reshape(batch, 3, channels // 3, rows, columns).transpose(0, 1, 3, 4, 2)
    batch, _, rows, columns, numbers = output.shape
    values = output.reshape(batch, 3, rows * columns, numbers)
    values = values if ready else sigmoid(values)
    stride = np.array(size, np.float64) / (columns, rows)
    centers = (2 * values[..., :2] - 0.5 + cells(columns, rows)) * stride
    boxes = corners(centers, (2 * values[..., 2:4]) ** 2 * sides[:, None])
    scores = values[..., 4:5] * values[..., 5:]
    return boxes.reshape(batch, -1, 4), scores.reshape(batch, -1, numbers - 5)
