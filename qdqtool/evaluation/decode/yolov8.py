# SPDX-License-Identifier: Apache-2.0
"""YOLOv8, v9, v11 and kin: no anchors, no object score, distances to the four sides as distributions of 16 bins.

Decoded in the graph: [batch, 4 + classes, cells], centers and sides in pixels. Raw: a map of 64 + classes channels for
each stride, or two maps. Box = (cell + 0.5 -/+ distance) * stride, score = sigmoid(class).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import cells, strides_of
from qdqtool.evaluation.decode.head import (
    Candidates,
    HeadLayout,
    HeadOutputs,
    RecognizedHead,
    Size,
    corners,
    counted,
    expected,
    joined,
    sigmoid,
)
from qdqtool.evaluation.decode.yolov5 import COCO as V5_COCO
from qdqtool.evaluation.detections import Array

IOU = 0.7
_BINS = 16
_BOX = 4 * _BINS
Levels = tuple[tuple[str, ...], ...]


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    flat, maps = seen.of_rank(3), seen.of_rank(4)
    if len(flat) == 1 and len(flat) + len(maps) == len(seen.shapes):
        return _decoded(seen, *next(iter(flat.items())))
    if maps and len(maps) == len(seen.shapes):
        return _raw(seen, maps)
    return "neither one output [batch, 4 + classes, cells] nor maps"


def _decoded(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> RecognizedHead | str:
    """One output; a map of prototypes beside it says how many of its channels are for masks."""
    masks = sum(other[1] for other in seen.of_rank(4).values())
    classes = seen.settings.classes or shape[1] - 4 - masks
    strides = strides_of(shape[2], seen.size)
    if not strides or not 0 < classes <= shape[1] - 4:
        return f"{name} has not one column of 4 + classes for each cell"
    description = f"{name} {list(shape)}, {counted(classes)}, decoded in the graph"
    layout = HeadLayout((name,), decoded=True, strides=strides)
    return RecognizedHead(description, IOU, partial(_read_decoded, name=name, classes=classes), classes, layout)


def _raw(seen: HeadOutputs, maps: Mapping[str, tuple[int, ...]]) -> RecognizedHead | str:
    by_size: dict[tuple[int, int], list[str]] = {}
    for name in maps:
        by_size.setdefault((maps[name][3], maps[name][2]), []).append(name)
    sizes = sorted(by_size, reverse=True)
    levels = tuple(_level(maps, by_size[size]) for size in sizes)
    if len(levels) < 2 or not all(levels):
        return f"no maps of {_BOX} + classes channels for two strides or more"
    if not all(seen.has_aspect_ratio(columns, rows) for columns, rows in sizes):
        return "maps have another aspect ratio than the input"
    found = {sum(maps[name][1] for name in names) - _BOX for names in levels}
    classes = min(found)
    if len(found) > 1 or seen.settings.classes not in (None, classes):
        return f"maps of {', '.join(str(one + _BOX) for one in sorted(found))} channels are not {_BOX} + classes"
    if len(levels[0]) == 1 and classes + _BOX == V5_COCO and seen.settings.classes is None:
        return f"{V5_COCO} channels are YOLOv5's for 80 classes"
    ready = all(len(names) == 2 and seen.are_probabilities(names[1:]) for names in levels)
    description = (
        f"{', '.join(name for names in levels for name in names)}, {counted(classes)}, raw maps of {_BINS} bins"
    )
    layout = HeadLayout(tuple(name for names in levels for name in names), probabilities=ready, levels=levels)
    return RecognizedHead(description, IOU, partial(_read_raw, levels=levels, ready=ready), classes, layout)


def _level(maps: Mapping[str, tuple[int, ...]], names: list[str]) -> tuple[str, ...]:
    """The maps of one stride, boxes first; () where they are not of this head."""
    if len(names) == 1 and maps[names[0]][1] > _BOX:
        return tuple(names)
    boxes = next((name for name in names if maps[name][1] == _BOX), None)
    return (boxes, *(name for name in names if name != boxes)) if boxes and len(names) == 2 else ()


def _read_decoded(outputs: Mapping[str, Array], size: Size, *, name: str, classes: int) -> Candidates:
    rows = outputs[name].swapaxes(1, 2)
    return corners(rows[..., :2], rows[..., 2:4]), rows[..., 4 : 4 + classes]


def _read_raw(outputs: Mapping[str, Array], size: Size, *, levels: Levels, ready: bool) -> Candidates:
    return joined(_of_level([outputs[name] for name in names], size, ready=ready) for names in levels)


def _of_level(maps: list[Array], size: Size, *, ready: bool) -> Candidates:
    batch, _, rows, columns = maps[0].shape
    values = np.concatenate(maps, 1).reshape(batch, -1, rows * columns).swapaxes(1, 2)
    distances = expected(values[..., :_BOX], _BINS)
    points = cells(columns, rows) + 0.5
    boxes = np.concatenate((points - distances[..., :2], points + distances[..., 2:]), -1)
    logits = values[..., _BOX:]
    stride = np.array(size * 2, np.float64) / (columns, rows, columns, rows)
    return boxes * stride, logits if ready else sigmoid(logits)
