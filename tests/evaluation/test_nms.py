# SPDX-License-Identifier: Apache-2.0
"""Suppression: against cases drawn on paper, and against a slow one written from the definition."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.nms import areas, overlaps, select, suppress

A, B, C = (0, 0, 10, 10), (5, 0, 15, 10), (40, 40, 50, 50)


def rows(*boxes: tuple[float, ...]) -> np.ndarray:
    return np.array(boxes, np.float64).reshape(-1, 4)


def test_overlaps_drawn_on_paper() -> None:
    found = overlaps(rows(A, C), rows(A, B, (0, 0, 10, 5), (20, 0, 30, 10)))
    np.testing.assert_allclose(found, [[1, 50 / 150, 50 / 100, 0], [0, 0, 0, 0]])


def test_empty_and_inverted_boxes_have_no_area_and_overlap_nothing() -> None:
    assert areas(rows((3, 3, 3, 9), (5, 5, 1, 1))).tolist() == [0, 0]
    assert overlaps(rows((3, 3, 3, 3)), rows((3, 3, 3, 3), A)).tolist() == [[0, 0]]


def test_the_weaker_of_two_that_overlap_goes_and_one_on_the_border_stays() -> None:
    boxes, scores, labels = rows(A, B, C), np.array([0.5, 0.9, 0.1]), np.zeros(3, np.int64)
    assert suppress(boxes, scores, labels, 0.3, 9).tolist() == [1, 2]
    assert suppress(boxes, scores, labels, 50 / 150, 9).tolist() == [1, 0, 2]  # only more than the threshold drops


def test_classes_do_not_suppress_one_another() -> None:
    assert suppress(rows(A, A, A), np.array([0.9, 0.8, 0.7]), np.array([0, 1, 0]), 0.5, 9).tolist() == [0, 1]


def test_equal_scores_stay_in_their_order_and_the_best_are_counted() -> None:
    boxes = rows(*[(20 * i, 0, 20 * i + 10, 10) for i in range(6)])
    scores = np.array([0.5, 0.7, 0.5, 0.7, 0.5, 0.5])
    assert suppress(boxes, scores, np.zeros(6, np.int64), 0.5, 4).tolist() == [1, 3, 0, 2]


def test_a_suppressed_box_suppresses_none() -> None:
    """B covers A and D; B falls to A, so D stays."""
    boxes = rows((0, 0, 10, 10), (4, 0, 14, 10), (8, 0, 18, 10))
    assert suppress(boxes, np.array([0.9, 0.8, 0.7]), np.zeros(3, np.int64), 0.3, 9).tolist() == [0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 60, (80, 2))
    boxes = np.concatenate((corner, corner + rng.uniform(5, 40, (80, 2))), 1)
    scores, labels = np.round(rng.uniform(size=80), 1), rng.integers(0, 3, 80)
    shared = overlaps(boxes, boxes)
    kept: list[int] = []
    for row in sorted(range(80), key=lambda row: (-scores[row], row)):
        if all(labels[row] != labels[other] or shared[row, other] <= 0.45 for other in kept):
            kept.append(row)
    assert suppress(boxes, scores, labels, 0.45, 100).tolist() == kept


def test_select_takes_every_class_above_the_threshold_and_the_familys_overlap() -> None:
    scores = np.array([[0.9, 0.6], [0.8, 0.2], [0.5, 0.7]], np.float32)
    boxes, values, labels = select(rows(A, B, C), scores, Selection(score=0.5), 0.3)
    assert labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(values, np.array([0.9, 0.7, 0.6], np.float32))
    np.testing.assert_array_equal(boxes, rows(A, C, A))
    assert len(select(rows(A, B, C), scores, Selection(score=0.5, iou=0.5), 0.3)[1]) == 4
    assert len(select(rows(A, B, C), scores, Selection(score=0.5, iou=0.5, most=2), 0.3)[1]) == 2


def test_select_enters_the_best_candidates_only() -> None:
    boxes = rows(*[(20 * i, 0, 20 * i + 10, 10) for i in range(6)])
    scores = np.array([[0.1], [0.6], [0.5], [0.4], [0.3], [0.2]], np.float32)
    assert select(boxes, scores, Selection(score=0.0, candidates=3), 0.5)[1].tolist() == pytest.approx([0.6, 0.5, 0.4])


def test_boxes_that_overflowed_are_dropped() -> None:
    boxes = rows((0, 0, np.inf, 10), (np.nan, 0, 1, 1), A)
    found, _, _ = select(boxes, np.full((3, 1), 0.9, np.float32), Selection(), 0.5)
    np.testing.assert_array_equal(found, rows(A))


def test_nothing_above_the_threshold() -> None:
    boxes, scores, labels = select(rows(A), np.array([[0.01]], np.float32), Selection(score=0.01), 0.5)
    assert (boxes.shape, scores.shape, labels.shape) == ((0, 4), (0,), (0,))


@pytest.mark.parametrize("wrong", [{"score": -0.1}, {"score": 1.5}, {"iou": 2.0}, {"most": 0}, {"candidates": 0}])
def test_thresholds_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(QdqError, match=next(iter(wrong))):
        Selection(**wrong)  # type: ignore[arg-type]
