# SPDX-License-Identifier: Apache-2.0
"""YOLOX: one box a cell, offset and log size in strides, object and class probabilities. Raw or decoded in the graph.

Box = ((cell + xy) * stride, exp(wh) * stride), score = object * class (Ge et al. 2021, YOLOX).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.dense_rows import HOLDS_CLASS, rows_of
from qdqtool.evaluation.decode.grids import STRIDES, all_cells, cell_count
from qdqtool.evaluation.decode.head import Candidates, HeadLayout, HeadOutputs, RecognizedHead, Size, corners, counted
from qdqtool.evaluation.detections import Array

IOU = 0.65
_FARTHEST = 16  # raw offsets stay within a few strides' fractions; decoded centers spread over the whole input


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.shapes) != 1 or not seen.of_rank(3):
        return "not one output [batch, cells, 5 + classes]"
    name, shape = next(iter(seen.shapes.items()))
    if shape[1] != cell_count(seen.size, STRIDES) or shape[2] < 6:
        return f"{name} has not one row of 5 + classes for each cell of strides 8, 16, 32"
    if rows_of(seen, name, shape):
        return f"{name} {HOLDS_CLASS}"
    decoded = seen.settings.decoded
    if decoded is None:
        decoded = name in seen.arrays and _is_decoded(seen.arrays[name])
    how = "decoded in the graph" if decoded else "strides 8, 16, 32"
    read = partial(_candidates, name=name, decoded=decoded)
    description = f"{name} {list(shape)}, {counted(shape[2] - 5)}, {how}"
    return RecognizedHead(description, IOU, read, shape[2] - 5, HeadLayout((name,), decoded))


def _is_decoded(output: Array) -> bool:
    far = np.abs(output[..., :2]).max(-1) > _FARTHEST
    return bool(far.size and far.mean() > 0.5 and (output[..., 2:4] > 0).mean() > 0.9)


def _candidates(outputs: Mapping[str, Array], size: Size, *, name: str, decoded: bool) -> Candidates:
    output = outputs[name]
    centers, sides = output[..., :2], output[..., 2:4]
    if not decoded:
        grid, stride = all_cells(size, STRIDES)
        with np.errstate(over="ignore"):
            centers, sides = (centers + grid) * stride, np.exp(sides) * stride
    return corners(centers, sides), output[..., 4:5] * output[..., 5:]
