# SPDX-License-Identifier: Apache-2.0
"""FastestDet: one map of object, box and classes, one box and one class a cell.

Center = (cell + tanh(xy)) / map, side = sigmoid(wh), both fractions of the input; score = object^0.6 * class^0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import cells
from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, corners, counted, sigmoid
from qdqtool.evaluation.detections import Array

IOU = 0.45


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.shapes) != 1 or not seen.of_rank(4):
        return "not one output [batch, 5 + classes, rows, columns]"
    name, shape = next(iter(seen.shapes.items()))
    if shape[1] < 6:
        return f"{name} has {shape[1]} channels, not 5 + classes"
    if (seen.size[0] / shape[3], seen.size[1] / shape[2]) != (16, 16):
        return f"{name} is not a map of stride 16"
    description = f"{name} {list(shape)}, {counted(shape[1] - 5)}, stride 16"
    return RecognizedHead(description, IOU, partial(_candidates, name=name), shape[1] - 5)


def _candidates(outputs: Mapping[str, Array], size: Size, *, name: str) -> Candidates:
    output = outputs[name]
    batch, channels, rows, columns = output.shape
    flat = output.reshape(batch, channels, rows * columns).swapaxes(1, 2)
    scale = np.array(size) / (columns, rows)
    centers = (np.tanh(flat[..., 1:3]) + cells(columns, rows)) * scale
    sides = sigmoid(flat[..., 3:5]) * np.array(size, np.float64)
    scores = np.maximum(flat[..., :1], 0) ** 0.6 * np.maximum(flat[..., 5:], 0) ** 0.4
    best = np.arange(channels - 5) == scores.argmax(-1)[..., None]
    return corners(centers, sides), np.where(best, scores, 0).astype(np.float32)
