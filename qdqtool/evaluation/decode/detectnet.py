# SPDX-License-Identifier: Apache-2.0
"""DetectNet_v2 (TAO, DeepStream): for each class a map of coverage and four maps of distances to the sides.

Side = cell * stride + 0.5 -/+ 35 * distance, score = coverage; cells are clustered by NMS, where TAO has DBSCAN too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import cells
from qdqtool.evaluation.decode.head import Candidates, HeadLayout, HeadOutputs, RecognizedHead, Size, counted
from qdqtool.evaluation.detections import Array

IOU = 0.5
NORM = 35.0  # pixels that a distance of 1 stands for


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    maps = sorted(seen.of_rank(4), key=lambda name: seen.shapes[name][1])
    if len(maps) != 2 or len(seen.shapes) != 2:
        return "not two outputs [batch, classes, rows, columns] and [batch, 4 * classes, rows, columns]"
    cover, boxes = maps
    classes, rows, columns = seen.shapes[cover][1:]
    if seen.shapes[boxes][1:] != (4 * classes, rows, columns):
        return f"{boxes} has not four maps for each of {cover}"
    if not seen.has_aspect_ratio(columns, rows):
        return f"{cover} has another aspect ratio than the input"
    description = f"{cover} and {boxes}, {counted(classes)}, stride {seen.size[0] / columns:g}"
    decode = partial(_candidates, cover=cover, boxes=boxes)
    return RecognizedHead(description, IOU, decode, classes, HeadLayout((cover, boxes)))


def _candidates(outputs: Mapping[str, Array], size: Size, *, cover: str, boxes: str) -> Candidates:
    """Every class of every cell has a box of its own: a row for each, with one score that is not 0."""
    batch, classes, rows, columns = outputs[cover].shape
    stride = np.array(size, np.float64) / (columns, rows)
    points = cells(columns, rows) * stride + 0.5
    sides = outputs[boxes].reshape(batch, classes, 4, rows * columns).swapaxes(2, 3) * NORM
    found = np.concatenate((points - sides[..., :2], points + sides[..., 2:]), -1)
    scores = np.zeros((batch, classes, rows * columns, classes), np.float32)
    for one in range(classes):
        scores[:, one, :, one] = outputs[cover][:, one].reshape(batch, -1)
    return found.reshape(batch, -1, 4), scores.reshape(batch, -1, classes)
