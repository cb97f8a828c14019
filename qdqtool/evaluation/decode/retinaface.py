# SPDX-License-Identifier: Apache-2.0
"""RetinaFace: SSD's offsets to two square priors a cell, classes and landmarks in three outputs; faces only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, softmax
from qdqtool.evaluation.decode.priors import decode_offsets, priors_for
from qdqtool.evaluation.decode.ssd import boxes_and_scores, shares
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.nms import Float64

IOU = 0.4


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    pair = boxes_and_scores(seen)
    points = [name for name, shape in seen.of_rank(3).items() if shape[2] == 10]
    if pair is None or len(points) != 1 or len(seen.shapes) != 3:
        return "not outputs [batch, priors, 4], [batch, priors, 2] and [batch, priors, 10]"
    boxes, scores = pair
    found = priors_for(seen.shapes[boxes][1], seen.size)
    if found is None or found[0] != "RetinaFace" or seen.shapes[scores][2] != 2:
        return f"{seen.shapes[boxes][1]} rows are not two priors for each cell of the strides 8, 16 and 32"
    read = partial(_candidates, boxes=boxes, scores=scores, shares=shares(seen, scores), priors=found[1])
    return RecognizedHead(f"{scores}, {boxes} and {points[0]}, {seen.shapes[boxes][1]} priors, faces", IOU, read, 1)


def _candidates(
    outputs: Mapping[str, Array], size: Size, *, boxes: str, scores: str, shares: bool, priors: Float64
) -> Candidates:
    probabilities = outputs[scores] if shares else softmax(outputs[scores])
    return decode_offsets(outputs[boxes], priors) * np.array(size * 2), probabilities[..., 1:]
