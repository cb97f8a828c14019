# SPDX-License-Identifier: Apache-2.0
"""Labeled boxes as values: which of them count."""

from __future__ import annotations

import numpy as np

from qdqtool.evaluation.ground_truth import ANY_CLASS, classes_in, truth_of


def test_plain_boxes_all_count() -> None:
    truth = truth_of([(0, 0, 1, 1), (1, 1, 2, 2)], [3, 5])
    assert len(truth) == 2
    assert truth.counted.tolist() == [True, True]
    assert truth.boxes.dtype == np.float64


def test_crowds_and_difficult_boxes_do_not_count() -> None:
    truth = truth_of(np.zeros((3, 4)), [1, 1, 1], [True, False, False], [False, True, False])
    assert truth.counted.tolist() == [False, False, True]


def test_no_box_is_a_truth_too() -> None:
    truth = truth_of([], [])
    assert truth.boxes.shape == (0, 4)
    assert classes_in([truth]) == []


def test_classes_are_those_with_a_counted_box() -> None:
    one = truth_of(np.zeros((3, 4)), [7, 2, ANY_CLASS], [False, False, True])
    other = truth_of(np.zeros((2, 4)), [2, 4], [False, False], [False, True])
    assert classes_in([one, other]) == [2, 7]
