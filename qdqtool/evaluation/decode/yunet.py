# SPDX-License-Identifier: Apache-2.0
"""YuNet: for each stride class, object, box and landmarks; faces only.

Box = ((cell + xy) * stride, exp(wh) * stride), score = sqrt(class * object), both cut to 0..1 (Wu et al. 2023, YuNet).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from qdqtool.evaluation.decode.grids import STRIDES, all_cells, map_size
from qdqtool.evaluation.decode.head import Candidates, HeadOutputs, RecognizedHead, Size, corners
from qdqtool.evaluation.detections import Array

IOU = 0.45
Levels = tuple[tuple[str, str, str], ...]


def recognize(seen: HeadOutputs) -> RecognizedHead | str:
    """The head that these outputs are, or why they are not."""
    levels = []
    for stride in STRIDES:
        columns, rows = map_size(seen.size, stride)
        names = {name: shape[2] for name, shape in seen.of_rank(3).items() if shape[1] == columns * rows}
        ones = [name for name, last in names.items() if last == 1]
        fours = [name for name, last in names.items() if last == 4]
        if len(ones) != 2 or len(fours) != 1:  # class and object count alike, so which is which does not matter
            return f"no outputs [batch, cells, 1] twice and [batch, cells, 4] for stride {stride}"
        levels.append((ones[0], ones[1], fours[0]))
    description = f"{levels[0][0]}, {levels[0][1]}, {levels[0][2]} and those of the strides 16 and 32, faces"
    return RecognizedHead(description, IOU, partial(_candidates, levels=tuple(levels)), 1)


def _candidates(outputs: Mapping[str, Array], size: Size, *, levels: Levels) -> Candidates:
    first, second, boxes = (np.concatenate([outputs[name] for name in names], 1) for names in zip(*levels, strict=True))
    grid, stride = all_cells(size, STRIDES)
    with np.errstate(over="ignore"):
        box = corners((grid + boxes[..., :2]) * stride, np.exp(boxes[..., 2:]) * stride)
    return box, np.sqrt(np.clip(first, 0, 1) * np.clip(second, 0, 1))
