# SPDX-License-Identifier: Apache-2.0
"""Which boxes of one model another has lost, and which it made up; which images are worst. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.nms import overlaps

IOU = 0.5
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DetectionDifference:
    """The boxes of two models in one image."""

    reference: Detections
    candidate: Detections
    lost: Flags
    spurious: Flags

    @property
    def weight(self) -> float:
        """How bad it is: the scores of all lost and spurious boxes together."""
        alone = (*self.reference.scores[self.lost], *self.candidate.scores[self.spurious])
        return math.fsum(map(float, alone))


def differ(reference: Detections, candidate: Detections, iou: float = IOU) -> DetectionDifference:
    """Pair the boxes of two models: each reference box, the surest first, takes the free one that it overlaps most."""
    shared = overlaps(reference.boxes, candidate.boxes)
    shared[reference.labels[:, None] != candidate.labels[None]] = -1.0
    lost, spurious = np.ones(len(reference), np.bool_), np.ones(len(candidate), np.bool_)
    for row in np.argsort(-reference.scores, kind="stable"):
        open_to = np.where(spurious, shared[row], -1.0)
        best = int(open_to.argmax()) if len(candidate) else -1
        if best >= 0 and open_to[best] >= iou:
            lost[row] = spurious[best] = False
    return DetectionDifference(reference, candidate, lost, spurious)


def worst_first(differences: Sequence[DetectionDifference]) -> list[int]:
    """The numbers of the images, the heaviest difference first; equal ones in their own order."""
    return sorted(range(len(differences)), key=lambda index: -differences[index].weight)
