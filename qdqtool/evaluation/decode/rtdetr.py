# SPDX-License-Identifier: Apache-2.0
"""RT-DETR, RF-DETR, D-FINE and Deformable DETR: a Sigmoid for each class, boxes in fractions of the input.

Four forms: logits and boxes apart (Hugging Face, RF-DETR's `dets` and `labels`); rows of box and chances, or of box,
score and class (Ultralytics); labels, boxes by their corners and scores (the authors' own exports, whose corners count
pixels of the size that they are given).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.detr import says_no_object
from qdqtool.evaluation.decode.grids import strides_of
from qdqtool.evaluation.decode.head import (
    Candidates,
    HeadLayout,
    HeadOutputs,
    RecognizedHead,
    Size,
    are_probabilities,
    are_shares,
    counted,
    one_column_each,
    sigmoid,
)
from qdqtool.evaluation.decode.queries import IOU, MISSING, NO_FRACTIONS, are_fractions, boxes_and_classes, in_pixels
from qdqtool.evaluation.detections import Array

_PICKED = 6  # columns of a row of box, score and class
_PARTS = {"boxes": ("box",), "scores": ("score",), "labels": ("label", "class")}


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    if len(seen.shapes) == 1:
        return _rows(seen, *next(iter(seen.shapes.items())))
    parts = _parts(seen)
    if parts is not None:
        read = partial(_read_parts, parts=parts, pixels=_beyond(seen, parts["boxes"]))
        return RecognizedHead(f"{', '.join(parts.values())}, picked in the graph", IOU, read)
    pair = boxes_and_classes(seen)
    if pair is None:
        return MISSING
    boxes, classes = pair
    if boxes not in seen.arrays or classes not in seen.arrays:
        return "shapes do not show whether classes go through a Sigmoid: give the outputs of one batch"
    if not are_fractions(seen.arrays[boxes]):
        return NO_FRACTIONS
    logits = seen.arrays[classes]
    if says_no_object(logits, ready=are_shares(logits)):
        return f"the last class of {classes} is the likeliest of most queries, as no object is: DETR's"
    ready, count = are_probabilities(logits), seen.shapes[classes][2]
    read = partial(_read_pair, boxes=boxes, classes=classes, ready=ready)
    layout = HeadLayout((classes, boxes), probabilities=ready)
    description = f"{classes} {list(seen.shapes[classes])} and {boxes}, {counted(count)}"
    return RecognizedHead(description, IOU, read, count, layout)


def _rows(seen: HeadOutputs, name: str, shape: tuple[int, ...]) -> RecognizedHead | str:
    """One output: rows of a box and what is said of it."""
    if len(shape) != 3 or shape[2] < 5 or any(strides_of(shape[1], seen.size, number) for number in (1, 3)):
        return f"{name} has not one row of 4 + classes for each query"
    if name not in seen.arrays:
        return "shapes do not show whether boxes are fractions of the input: give the outputs of one batch"
    rows = seen.arrays[name]
    if not are_fractions(rows[..., :4]):
        return NO_FRACTIONS
    picked = shape[2] == _PICKED and bool((rows[..., 5] == np.round(rows[..., 5])).all())
    if not picked and not are_probabilities(rows[..., 4:]):
        return f"{name} has other numbers than probabilities after its boxes"
    count = None if picked else shape[2] - 4
    what = "picked in the graph" if count is None else counted(count)
    read = partial(_read_rows, name=name, picked=picked)
    return RecognizedHead(f"{name} {list(shape)}, {what}", IOU, read, count)


def _parts(seen: HeadOutputs) -> dict[str, str] | None:
    """Part -> output, where names and shapes say labels, boxes and scores; else None."""
    if len(seen.shapes) != len(_PARTS):
        return None
    found = {
        part: [name for name in seen.shapes if any(word in name.lower() for word in words)]
        for part, words in _PARTS.items()
    }
    if any(len(names) != 1 for names in found.values()):
        return None
    parts = {part: names[0] for part, names in found.items()}
    boxes = seen.shapes[parts["boxes"]]
    flat = all(seen.shapes[parts[part]] == boxes[:2] for part in ("scores", "labels"))
    return parts if flat and len(boxes) == 3 and boxes[2] == 4 else None


def _beyond(seen: HeadOutputs, boxes: str) -> bool:
    """Whether corners count pixels; without values they do."""
    return boxes not in seen.arrays or bool(np.abs(seen.arrays[boxes]).max(initial=0) > 4)


def _read_pair(outputs: Mapping[str, Array], size: Size, *, boxes: str, classes: str, ready: bool) -> Candidates:
    chances = outputs[classes] if ready else sigmoid(outputs[classes])
    return in_pixels(outputs[boxes], size), np.asarray(chances, np.float32)


def _read_rows(outputs: Mapping[str, Array], size: Size, *, name: str, picked: bool) -> Candidates:
    rows = outputs[name]
    scores = one_column_each(rows[..., 4], rows[..., 5]) if picked else np.asarray(rows[..., 4:], np.float32)
    return in_pixels(rows, size), scores


def _read_parts(outputs: Mapping[str, Array], size: Size, *, parts: Mapping[str, str], pixels: bool) -> Candidates:
    boxes = outputs[parts["boxes"]].astype(np.float64)
    scale = np.ones(4) if pixels else np.array(size * 2, np.float64)
    return boxes * scale, one_column_each(outputs[parts["scores"]], outputs[parts["labels"]])
