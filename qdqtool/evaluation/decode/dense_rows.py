# SPDX-License-Identifier: Apache-2.0
"""A row for each candidate, its best class picked in the graph and nothing suppressed: DeepStream-Yolo's exports.

One output [batch, candidates, 6]: corners in pixels of the input, the best score, the number of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import strides_of
from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, one_column_each
from qdqtool.evaluation.decode.queries import are_fractions
from qdqtool.evaluation.decode.ssd import corners_in_order
from qdqtool.evaluation.detections import Array
from qdqtool.graph.output_rows import OutputRows

IOU = 0.45  # nms-iou-threshold of DeepStream-Yolo's configurations
COLUMNS = 6
HOLDS_CLASS = "has the number of a class in its last column: --decoder rows, or nms where boxes are suppressed"
_MOST_CLASSES = 1 << 14


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.shapes) != 1 or not seen.of_rank(3):
        return "not one output [batch, candidates, 6]"
    name, shape = next(iter(seen.shapes.items()))
    kind = rows_of(seen, name, shape)
    if kind is None:
        return f"{name} has not six columns of which the last is the number of a class"
    if kind == "picked":
        return f"the boxes of {name} are picked in the graph: --decoder nms"
    if name in seen.arrays and are_fractions(seen.arrays[name][..., :4]):
        return f"{name} holds centers and sides, not corners"
    return RecognizedHead(f"{name} {list(shape)}, best class picked in the graph", IOU, partial(_read, name=name))


def rows_of(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> OutputRows | None:
    """What the rows of an output are, whose last column is the number of a class; None where it is no such number.

    The graph tells, where it is known. Else values do: whole numbers behind corners in order and scores; there are as
    many rows as cells where nothing was picked.
    """
    if len(shape) != 3 or shape[2] != COLUMNS:
        return None
    if name in seen.rows:
        return None if seen.rows[name] == "features" else seen.rows[name]
    if name not in seen.arrays or not _are_rows(seen.arrays[name]):
        return None
    return "dense" if any(strides_of(shape[1], seen.size, each) for each in (1, 3)) else "picked"


def _are_rows(rows: Array) -> bool:
    scores, labels = rows[..., 4], rows[..., 5]
    whole = bool(((labels == np.round(labels)) & (labels >= 0) & (labels < _MOST_CLASSES)).all())
    return whole and bool(((scores >= -0.01) & (scores <= 1.01)).all()) and corners_in_order(rows[..., :4])


def _read(outputs: Mapping[str, Array], size: Size, *, name: str) -> Candidates:
    rows = outputs[name]
    labels = np.clip(np.nan_to_num(rows[..., 5]), 0, _MOST_CLASSES)
    return rows[..., :4].astype(np.float64), one_column_each(rows[..., 4], labels)
