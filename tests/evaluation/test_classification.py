# SPDX-License-Identifier: Apache-2.0
"""Ranks of the right class, and top-1 and top-5 from them."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.classification import classified, mean_nearness, nearness, ranks


def test_a_rank_is_the_number_of_classes_before() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.1, 0.7, 0.2], [3, 2, 1]], np.float32)
    assert ranks("m", scores, np.array([1, 0, 2])).tolist() == [0, 2, 2]


def test_of_equal_scores_the_lower_class_stands_first() -> None:
    """As numpy's argmax and a stable sort have it."""
    scores = np.array([[1, 1, 0, 1]] * 4, np.int8)
    assert ranks("m", scores, np.arange(4)).tolist() == [0, 1, 3, 2]


@pytest.mark.parametrize("seed", range(3))
def test_top_1_and_top_5_are_argmax_and_stable_sort(seed: int) -> None:
    values = np.random.default_rng(seed)
    scores = values.integers(-8, 8, (50, 12)).astype(np.float32)
    right = values.integers(0, 12, 50)
    measured = classified([ranks("m", scores[:20], right[:20]), ranks("m", scores[20:], right[20:])])
    five = np.argsort(-scores, 1, kind="stable")[:, :5]
    assert measured.value("top1") == (scores.argmax(1) == right).mean()
    assert measured.value("top5") == (five == right[:, None]).any(1).mean()
    assert measured.images == 50


def test_resampled_figures_count_an_image_as_often_as_it_is_drawn() -> None:
    measured = classified([np.array([0, 3, 9])])
    drawn = measured.resampled(np.array([[1, 1, 1], [3, 0, 0], [0, 1, 2]]))
    np.testing.assert_allclose(drawn[:, :, 0], [[1 / 3, 2 / 3], [1, 1], [0, 1 / 3]])


@pytest.mark.parametrize("right", [-1, 3])
def test_a_label_outside_the_classes_is_refused(right: int) -> None:
    with pytest.raises(QdqError, match=rf"3 scores, .*{right}"):
        ranks("m", np.zeros((1, 3), np.float32), np.array([right]))


def test_nan_is_refused() -> None:
    with pytest.raises(QdqError, match="NaN"):
        ranks("m", np.array([[0, np.nan]], np.float32), np.array([0]))


def test_nearness_is_the_share_of_probability_that_lies_where_it_did() -> None:
    first = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    other = np.array([[0.5, 0.4, 0.1], [0.0, 1.0, 0.0]])
    measured = mean_nearness(nearness(other, first))
    assert measured.metrics == ("nearness",) and np.isclose(measured.value("nearness"), (0.8 + 0.0) / 2)
    drawn = measured.resampled(np.array([[2, 0], [0, 2]]))
    assert np.allclose(drawn[:, 0, 0], [0.8, 0.0])
    assert nearness(first, first).tolist() == [1.0] * len(first)


def test_nearness_of_logits_is_that_of_their_probabilities() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1]])) + 5
    other = np.log(np.array([[0.5, 0.4, 0.1]])) - 3
    assert np.isclose(nearness(other, logits).mean(), 0.8)
