# SPDX-License-Identifier: Apache-2.0
"""Detections and labeled boxes for tests: drawn on paper, or many at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import Truth, truth_of

FIRST, SECOND, NOWHERE = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)
Box = tuple[float, float, float, float]


def found(*rows: tuple[tuple[float, ...], float, int]) -> Detections:
    """Detections of rows: corners, score, class."""
    return Detections(
        np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int64),
    )


def found_of(boxes: Sequence[Box], scores: Sequence[float] = (), labels: Sequence[int] = ()) -> Detections:
    """Detections with falling scores and class 0 unless given."""
    count = len(boxes)
    values = scores or list(np.linspace(0.9, 0.5, count))
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(values, np.float32),
        np.array(labels or [0] * count, np.int64),
    )


def random_scenes(
    seed: int, images: int = 12, classes: int = 4, *, ties: bool = True
) -> tuple[list[Detections], list[Truth]]:
    """Detections near the boxes and beside them, with scores that tie or not; some boxes crowded or difficult."""
    values = np.random.default_rng(seed)
    found, truths = [], []
    for _ in range(images):
        count = int(values.integers(0, 6))
        corner = values.uniform(0, 80, (count, 2))
        boxes = np.concatenate([corner, corner + values.uniform(8, 40, (count, 2))], 1)
        labels = values.integers(0, classes, count)
        crowd = values.random(count) < 0.2
        truths.append(truth_of(boxes, labels, crowd, (values.random(count) < 0.2) & ~crowd))
        near = np.repeat(boxes, 2, 0) + values.normal(0, 2, (2 * count, 4))
        far = values.uniform(0, 80, (5, 2))
        every = np.concatenate([near, np.concatenate([far, far + values.uniform(5, 40, (5, 2))], 1)])
        classes_of = np.concatenate([np.repeat(labels, 2), values.integers(0, classes, 5)])
        scores = np.round(values.random(len(every)), 1 if ties else 12)
        found.append(Detections(every.astype(np.float32), scores.astype(np.float32), classes_of.astype(np.int64)))
    return found, truths
