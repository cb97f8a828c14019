# SPDX-License-Identifier: Apache-2.0
"""Single-shot detectors with one output of classes and one of boxes: SSD, UltraFace. Offsets, or decoded in the graph.

Class 0 is the background. Whether boxes are decoded does not show in shapes, so values tell: corners are in order.
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
from qdqtool.evaluation.decode.priors import FACES, decode_offsets, priors_for
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 0.4
_LEAST_IOU, _FACE_IOU = 0.5, 0.35  # of a prior and a box in training: SSD; UltraFace and RetinaFace
_BOX_WORDS = ("box", "loc", "reg")


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    pair = boxes_and_scores(seen)
    if pair is None or len(seen.shapes) != 2:
        return "not two outputs [batch, priors, 4] and [batch, priors, classes with background]"
    boxes, scores = pair
    if boxes not in seen.arrays and seen.settings.decoded is None:
        return "shapes do not show whether boxes are decoded: say decoded=yes or decoded=no"
    decoded = seen.settings.decoded
    if decoded is None:
        decoded = corners_in_order(seen.arrays[boxes])
    read = partial(_candidates, boxes=boxes, scores=scores, shares=shares(seen, scores))
    classes = seen.shapes[scores][2] - 1
    description = f"{scores} {list(seen.shapes[scores])} and {boxes}, {counted(classes)} and background"
    pixels = decoded and boxes in seen.arrays and bool(np.median(seen.arrays[boxes][..., 2:]) > 2)
    found = priors_for(seen.shapes[boxes][1], seen.size)
    if found is None and not decoded:
        width, height = seen.size
        return f"no known set has {seen.shapes[boxes][1]} priors for {width}x{height}"
    known, priors = found or ("", None)
    how = "boxes decoded in the graph" if decoded else f"priors of {known}"
    return RecognizedHead(
        f"{description}, {how}",
        IOU,
        partial(read, pixels=pixels, priors=None if decoded else priors),
        classes,
        HeadLayout(
            (boxes, scores),
            decoded,
            shares(seen, scores),
            priors=priors,
            least_iou=_FACE_IOU if known in FACES else _LEAST_IOU,
            pixels=pixels,
        ),
    )


def boxes_and_scores(seen: HeadOutputs) -> tuple[str, str] | None:
    """The output of boxes and the one of classes, of as many rows; None where they cannot be determined."""
    fours = [name for name, shape in seen.of_rank(3).items() if shape[2] == 4]
    if len(fours) > 1:  # three classes and background are four numbers too
        fours = [name for name in fours if any(word in name.lower() for word in _BOX_WORDS)]
    if len(fours) != 1:
        return None
    rows = seen.shapes[fours[0]][1]
    others = [
        name
        for name, shape in seen.of_rank(3).items()
        if name != fours[0] and shape[1] == rows and shape[2] >= 2 and shape[2] != 10
    ]
    return (fours[0], others[0]) if len(others) == 1 else None


def corners_in_order(boxes: Array) -> bool:
    """Whether nearly every row is a box by its corners; offsets to priors are in order by chance only."""
    return bool((boxes[..., 2:] >= boxes[..., :2]).all(-1).mean() > 0.95)


def shares(seen: HeadOutputs, scores: str) -> bool:
    """Whether the classes went through a Softmax; where values are not at hand, they did."""
    return scores not in seen.arrays or are_shares(seen.arrays[scores])


def _candidates(
    outputs: Mapping[str, Array],
    size: Size,
    *,
    boxes: str,
    scores: str,
    shares: bool,
    pixels: bool,
    priors: Float64 | None,
) -> Candidates:
    probabilities = outputs[scores] if shares else softmax(outputs[scores])
    box = outputs[boxes] if priors is None else decode_offsets(outputs[boxes], priors)
    return box.astype(np.float64) * (1 if pixels else np.array(size * 2)), probabilities[..., 1:]
