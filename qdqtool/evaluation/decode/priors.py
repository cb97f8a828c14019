# SPDX-License-Identifier: Apache-2.0
"""The default boxes of single-shot detectors, as fractions of the input, and what is predicted relative to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from qdqtool.evaluation.decode.grids import Size, cells
from qdqtool.evaluation.decode.head import corners
from qdqtool.evaluation.nms import Float64

VARIANCES = (0.1, 0.2)


@dataclass(frozen=True)
class Level:
    """The priors of one map.

    Attributes:
        step: pixels of the input from one cell to the next.
        sides: width and height of each prior of a cell, in pixels.
        cells: columns and rows where they do not follow from the step.
    """

    step: float
    sides: tuple[tuple[float, float], ...]
    cells: Size | None = None


def make_priors(levels: Sequence[Level], size: Size) -> Float64:
    """Center and sides of every prior, fractions of the input, cut to 0..1: float64 (N, 4), map by map, row by row."""
    found = []
    for level in levels:
        columns, rows = level.cells or (ceil(size[0] / level.step), ceil(size[1] / level.step))
        centers = (cells(columns, rows) + 0.5) * level.step
        each = np.array(level.sides, np.float64)
        boxes = np.concatenate((np.repeat(centers, len(each), 0), np.tile(each, (len(centers), 1))), 1)
        found.append(boxes / (size * 2))
    return np.clip(np.concatenate(found), 0, 1)


def decode_offsets(offsets: npt.NDArray[np.float32], priors: Float64) -> Float64:
    """Offsets (..., N, 4) and priors to corners in fractions of the input (Liu et al. 2016, SSD).

    center = prior + offset * variance * side; side = prior side * exp(offset * variance).
    """
    centers = priors[:, :2] + offsets[..., :2] * VARIANCES[0] * priors[:, 2:]
    with np.errstate(over="ignore"):
        return corners(centers, np.exp(offsets[..., 2:].astype(np.float64) * VARIANCES[1]) * priors[:, 2:])


def squares(*sides: float) -> tuple[tuple[float, float], ...]:
    """Square priors of a cell."""
    return tuple((side, side) for side in sides)


def around(least: float, largest: float, ratios: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """SSD's priors of a cell: two squares, then each ratio of the sides lying and standing."""
    middle = sqrt(least * largest)
    found = [(least, least), (middle, middle)]
    for ratio in ratios:
        long, short = least * sqrt(ratio), least / sqrt(ratio)
        found += [(long, short), (short, long)]
    return tuple(found)


_ULTRAFACE = tuple(
    Level(step, squares(*sides))
    for step, sides in ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256)))
)
_SSD300 = tuple(
    Level(step, around(least, largest, ratios), (side, side))
    for step, side, least, largest, ratios in (
        (8, 38, 30, 60, (2,)),
        (16, 19, 60, 111, (2, 3)),
        (32, 10, 111, 162, (2, 3)),
        (64, 5, 162, 213, (2, 3)),
        (100, 3, 213, 264, (2,)),
        (300, 1, 264, 315, (2,)),
    )
)
_MOBILENET300 = tuple(
    Level(step, around(60 + 45 * index, 105 + 45 * index, (2, 3)), (side, side))
    for index, (step, side) in enumerate(((16, 19), (32, 10), (64, 5), (100, 3), (150, 2), (300, 1)))
)
_RETINAFACE = tuple(Level(step, squares(*sides)) for step, sides in ((8, (16, 32)), (16, (64, 128)), (32, (256, 512))))

# Which priors a detector was trained with is nowhere in its file; their number tells among those in use.
PRIOR_SETS: Mapping[str, tuple[Level, ...]] = {
    "UltraFace": _ULTRAFACE,
    "RetinaFace": _RETINAFACE,
    "SSD300 of VGG": _SSD300,
    "SSD300 of MobileNet": _MOBILENET300,
}
FACES = ("UltraFace", "RetinaFace")
_ONLY_300 = ("SSD300 of VGG", "SSD300 of MobileNet")


def priors_for(count: int, size: Size) -> tuple[str, Float64] | None:
    """The name and the boxes of the known set that has so many priors for this input; None where none has."""
    for name, levels in PRIOR_SETS.items():
        if name in _ONLY_300 and size != (300, 300):
            continue
        priors = make_priors(levels, size)
        if len(priors) == count:
            return name, priors
    return None
