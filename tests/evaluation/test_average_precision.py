# SPDX-License-Identifier: Apache-2.0
"""The precision curve under weights: worked by hand, and in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.evaluation import average_precision as module
from qdqtool.evaluation.average_precision import ClassMatches, average_precisions

RECALLS = np.linspace(0, 1, 101)


def matches_of(
    hit: list[int], image: list[int], positives: list[int], ignored: list[int] | None = None
) -> ClassMatches:
    off = np.zeros(len(hit), bool) if ignored is None else np.array(ignored, bool)
    return ClassMatches(0, np.array(image, np.int64), np.array([hit], bool), off[None], np.array(positives, np.int64))


def ap(matches: ClassMatches, weights: list[int], curve: str = "coco") -> float:
    return float(average_precisions(matches, np.array([weights]), curve, RECALLS)[0, 0])  # type: ignore[arg-type]


def test_hit_miss_hit() -> None:
    """Recall 1/2 at precision 1, recall 1 at 2/3: 51 of 101 recalls read 1."""
    one = matches_of([1, 0, 1], [0, 0, 0], [2])
    assert ap(one, [1]) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert ap(one, [1], "integrated") == pytest.approx((1 + 2 / 3) / 2)
    assert ap(one, [1], "sampled") == pytest.approx((6 + 5 * 2 / 3) / 11)


def test_precision_is_made_falling() -> None:
    one = matches_of([0, 1, 1, 1], [0] * 4, [3])
    assert ap(one, [1], "integrated") == pytest.approx(3 / 4)


def test_a_weight_repeats_an_image_and_zero_leaves_it_out() -> None:
    """Image 0 has a hit, image 1 a miss above it and an unfound box."""
    one = matches_of([0, 1], [1, 0], [1, 1])
    assert ap(one, [1, 1], "integrated") == pytest.approx(1 / 2 * 1 / 2)
    assert ap(one, [2, 0], "integrated") == pytest.approx(1)
    assert ap(one, [3, 1], "integrated") == pytest.approx(3 / 4 * 3 / 4)
    assert ap(one, [0, 2], "integrated") == 0


def test_a_hit_of_an_image_left_out_does_not_lift_the_curve() -> None:
    one = matches_of([1, 0, 1], [0, 1, 1], [1, 1])
    assert ap(one, [0, 1], "integrated") == pytest.approx(1 / 2)
    assert ap(one, [0, 1], "coco") == pytest.approx(1 / 2)


def test_what_is_ignored_is_neither_hit_nor_miss() -> None:
    assert ap(matches_of([0, 1], [0, 0], [1], [1, 0]), [1], "integrated") == 1
    assert ap(matches_of([1, 1], [0, 0], [1], [1, 0]), [1], "integrated") == 1
    assert ap(matches_of([0, 1], [0, 0], [1], [0, 0]), [1], "integrated") == 1 / 2


def test_without_a_box_there_is_no_figure_and_without_a_hit_it_is_zero() -> None:
    assert np.isnan(ap(matches_of([0], [0], [0, 1]), [1, 0]))
    assert ap(matches_of([0], [0], [0, 1]), [0, 1]) == 0
    assert ap(matches_of([], [], [1]), [1]) == 0


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0)
    one = matches_of(values.integers(0, 2, 40).tolist(), values.integers(0, 6, 40).tolist(), [7, 5, 4, 6, 5, 6])
    weights = values.multinomial(6, [1 / 6] * 6, size=30)
    whole = average_precisions(one, weights, "coco", RECALLS)
    monkeypatch.setattr(module, "_CELLS", 200)
    np.testing.assert_array_equal(average_precisions(one, weights, "coco", RECALLS), whole)
    assert whole.shape == (30, 1)
