# SPDX-License-Identifier: Apache-2.0
"""DETR: classes by a Softmax whose last one says "no object", boxes as centers and sides in fractions of the input.

Carion et al. 2020: score = softmax(logits) without the last class. Conditional DETR and later have a Sigmoid: `rtdetr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.head import (
    Candidates,
    HeadLayout,
    HeadOutputs,
    RecognizedHead,
    Size,
    are_shares,
    counted,
    softmax,
)
from qdqtool.evaluation.decode.queries import IOU, MISSING, NO_FRACTIONS, are_fractions, boxes_and_classes, in_pixels
from qdqtool.evaluation.detections import Array


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    pair = boxes_and_classes(seen)
    if pair is None or seen.shapes[pair[1]][2] < 2:
        return MISSING
    boxes, classes = pair
    if boxes not in seen.arrays or classes not in seen.arrays:
        return "shapes do not show whether a class says that there is no object: give the outputs of one batch"
    if not are_fractions(seen.arrays[boxes]):
        return NO_FRACTIONS
    ready = are_shares(seen.arrays[classes])
    if not says_no_object(seen.arrays[classes], ready=ready):
        last = f"the last class of {classes} is not the likeliest of most queries, as no object is"
        return f"{last}; rtdetr reads scores without it"
    count = seen.shapes[classes][2] - 1
    read = partial(_candidates, boxes=boxes, classes=classes, ready=ready)
    description = f"{classes} {list(seen.shapes[classes])} and {boxes}, {counted(count)} and no object"
    return RecognizedHead(description, IOU, read, count, HeadLayout((classes, boxes), probabilities=ready))


def says_no_object(logits: Array, *, ready: bool = False) -> bool:
    """Whether the last class has more than half of the probability for more than half of the queries."""
    chances = logits if ready else softmax(logits)
    return logits.shape[-1] > 1 and bool((chances[..., -1] > 0.5).mean() > 0.5)


def _candidates(outputs: Mapping[str, Array], size: Size, *, boxes: str, classes: str, ready: bool) -> Candidates:
    chances = outputs[classes] if ready else softmax(outputs[classes])
    return in_pixels(outputs[boxes], size), np.asarray(chances[..., :-1], np.float32)
