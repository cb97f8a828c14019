# SPDX-License-Identifier: Apache-2.0
"""The objects that are really in an image, as labels tell them. Where labels come from is in labels.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ANY_CLASS = -1  # the label of a region in which detections of no class count (KITTI's DontCare)


@dataclass(frozen=True)
class Truth:
    """The labeled boxes of one image.

    Attributes:
        boxes: float64[n, 4], x1, y1, x2, y2 in pixels of the original image.
        labels: int64[n], class numbers from 0, or ANY_CLASS where `crowd`.
        crowd: bool[n], regions of many objects (COCO's iscrowd): detections inside count neither for nor against.
        difficult: bool[n], single objects that need not be found (VOC's difficult): who finds one is not blamed.
    """

    boxes: Float64
    labels: Int64
    crowd: Bool
    difficult: Bool

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counted(self) -> Bool:
        """bool[n], the boxes that a detector is asked for."""
        return ~(self.crowd | self.difficult)


def truth_of(
    boxes: Sequence[Sequence[float]] | npt.NDArray[Any],
    labels: Sequence[int] | npt.NDArray[Any],
    crowd: Sequence[bool] | None = None,
    difficult: Sequence[bool] | None = None,
) -> Truth:
    """A truth from plain lists; nothing is crowd or difficult unless given."""
    count = len(labels)
    flags = [np.zeros(count, bool) if flag is None else np.asarray(flag, bool) for flag in (crowd, difficult)]
    return Truth(np.asarray(boxes, np.float64).reshape(-1, 4), np.asarray(labels, np.int64), flags[0], flags[1])


def classes_in(truths: Sequence[Truth]) -> list[int]:
    """The classes of which at least one box is counted, in order: only these have an average precision."""
    present: set[int] = set()
    for truth in truths:
        present.update(truth.labels[truth.counted].tolist())
    return sorted(present)
