# SPDX-License-Identifier: Apache-2.0
"""NanoDet: class probabilities and distributions over the distances to the four sides (generalized focal loss).

NanoDet has an output of classes and one of distances for each stride and measures from the middle of the cell's pixels;
NanoDet-Plus has one output, classes before distances, and measures from the cell's first pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import all_cells, map_size, strides_of
from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, counted, expected
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 0.6
_BINS = 8
_STRIDES = (8, 16, 32, 64)
Pairs = tuple[tuple[str, str], ...]


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    flat = seen.of_rank(3)
    if len(seen.shapes) == 1 and flat:
        return _plus(seen)
    boxes = {shape[1]: name for name, shape in flat.items() if shape[2] == 4 * _BINS}
    scores = {shape[1]: name for name, shape in flat.items() if shape[2] != 4 * _BINS}
    counts = {stride: columns * rows for stride in _STRIDES for columns, rows in [map_size(seen.size, stride)]}
    strides = tuple(stride for stride, count in counts.items() if count in boxes and count in scores)
    if len(strides) < 2 or 2 * len(strides) != len(seen.shapes):
        return f"no pairs [batch, cells, classes] and [batch, cells, {4 * _BINS}] for each stride"
    pairs = tuple((scores[counts[stride]], boxes[counts[stride]]) for stride in strides)
    classes = seen.shapes[pairs[0][0]][2]
    description = (
        f"{pairs[0][0]} and {2 * len(strides) - 1} more, {counted(classes)}, strides {', '.join(map(str, strides))}"
    )
    return RecognizedHead(description, IOU, partial(_candidates, pairs=pairs, strides=strides), classes)


def _plus(seen: HeadOutputs) -> RecognizedHead | str:
    name, shape = next(iter(seen.shapes.items()))
    strides, classes = strides_of(shape[1], seen.size), shape[2] - 4 * _BINS
    if len(strides) != 4 or classes < 1:
        return f"{name} is not [batch, cells of strides 8 to 64, classes + {4 * _BINS}]"
    return RecognizedHead(
        f"NanoDet-Plus, {name} {list(shape)}, {counted(classes)}", IOU, partial(_read_plus, name=name), classes
    )


def _candidates(outputs: Mapping[str, Array], size: Size, *, pairs: Pairs, strides: tuple[int, ...]) -> Candidates:
    scores = np.concatenate([outputs[name] for name, _ in pairs], 1)
    logits = np.concatenate([outputs[name] for _, name in pairs], 1)
    grid, stride = all_cells(size, strides)
    return _boxes(logits, grid * stride + (stride - 1) / 2, stride), scores


def _read_plus(outputs: Mapping[str, Array], size: Size, *, name: str) -> Candidates:
    output = outputs[name]
    grid, stride = all_cells(size, _STRIDES)
    return _boxes(output[..., -4 * _BINS :], grid * stride, stride), output[..., : -4 * _BINS]


def _boxes(logits: Array, points: Float64, stride: Float64) -> Float64:
    distances = expected(logits, _BINS) * stride
    return np.concatenate((points - distances[..., :2], points + distances[..., 2:]), -1)
