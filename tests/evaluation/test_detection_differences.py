# SPDX-License-Identifier: Apache-2.0
"""Lost and spurious boxes: pairs by class and overlap, the surest first; images sorted by what differs."""

from __future__ import annotations

import pytest

from qdqtool.evaluation.detection_differences import differ, worst_first
from tests.evaluation.scenes_of_boxes import found

A, NEAR_A, FAR = (0, 0, 10, 10), (1, 0, 11, 10), (50, 50, 60, 60)


def test_same_class_and_half_the_area_make_partners() -> None:
    one = differ(found((A, 0.9, 0), (FAR, 0.5, 1)), found((NEAR_A, 0.7, 0), (FAR, 0.5, 2)))
    assert (one.lost.tolist(), one.spurious.tolist()) == ([False, True], [False, True])
    assert one.weight == pytest.approx(1.0)


def test_the_threshold_of_overlap_itself_is_enough() -> None:
    half = found(((0, 0, 10, 5), 0.7, 0))
    assert not differ(found((A, 0.9, 0)), half).lost.any()
    assert differ(found((A, 0.9, 0)), half, iou=0.51).lost.all()


def test_a_candidate_has_one_partner_and_the_surest_chooses_first() -> None:
    one = differ(found((NEAR_A, 0.6, 0), (A, 0.9, 0)), found((A, 0.8, 0)))
    assert one.lost.tolist() == [True, False]
    two = differ(found((A, 0.9, 0)), found((NEAR_A, 0.8, 0), (A, 0.3, 0)))
    assert two.spurious.tolist() == [True, False]  # the one that it overlaps most, not the surest


def test_nothing_on_either_side() -> None:
    assert differ(found(), found()).weight == 0
    assert differ(found((A, 0.5, 0)), found()).lost.tolist() == [True]
    assert differ(found(), found((A, 0.5, 0))).spurious.tolist() == [True]


def test_images_are_sorted_by_the_scores_of_what_differs() -> None:
    small = differ(found((A, 0.4, 0)), found())
    same = differ(found((A, 0.9, 0)), found((A, 0.9, 0)))
    large = differ(found((A, 0.4, 0)), found((FAR, 0.5, 0)))
    assert worst_first([same, small, large, same, small]) == [2, 1, 4, 0, 3]
