# SPDX-License-Identifier: Apache-2.0
"""Draws of images and the intervals that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqtool.evaluation import bootstrap as room
from qdqtool.evaluation.bootstrap import bootstrap, draws, interval, student_interval


def test_every_draw_takes_as_many_images_as_there_are() -> None:
    weights = np.concatenate(list(draws(9, 50)))
    assert weights.shape == (50, 9)
    assert (weights.sum(1) == 9).all()
    assert (weights >= 0).all()
    assert len(np.unique(weights, axis=0)) > 45


def test_the_seed_decides_the_draws_and_the_blocks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draws(9, 50, seed=3)))
    monkeypatch.setattr(room, "_CELLS", 70)
    blocks = list(draws(9, 50, seed=3))
    assert [len(one) for one in blocks] == [7] * 7 + [1]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert not np.array_equal(np.concatenate(list(draws(9, 50, seed=4))), whole)


def test_the_spread_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(5).normal(size=400)
    drawn = bootstrap(lambda weights: weights @ values / 400, 400, resamples=4000)
    found = interval(float(values.mean()), drawn)
    error = 1.96 * values.std() / math.sqrt(400)
    assert found.low == pytest.approx(values.mean() - error, abs=0.08 * error)
    assert found.high == pytest.approx(values.mean() + error, abs=0.08 * error)


def test_the_interval_lies_around_the_figure_and_not_around_the_draws() -> None:
    drawn = np.linspace(0.5, 0.7, 1001)
    found = interval(0.3, drawn)
    assert (found.low, found.high) == (pytest.approx(0.205), pytest.approx(0.395))
    assert interval(0.6, drawn).low == pytest.approx(np.quantile(drawn, 0.025))


def test_draws_without_a_figure_are_left_out() -> None:
    assert interval(0.5, np.array([np.nan, 0.4, 0.6, np.nan])).low == pytest.approx(0.405)
    assert math.isnan(interval(0.5, np.array([np.nan])).low)


def test_one_image_has_no_interval() -> None:
    """Every draw of it is the same, which is no certainty."""
    found = interval(0.5, bootstrap(lambda weights: np.full(len(weights), 0.5), 1))
    assert not found.known and found.text() == "-"
    two = interval(0.5, bootstrap(lambda weights: weights @ np.array([0.4, 0.6]) / 2, 2))
    assert two.known and two.text() == f"{two.low:.4f} to {two.high:.4f}"


def test_few_samples_have_a_wider_interval_than_a_normal_one() -> None:
    """Student's t of 7 degrees of freedom is 2.365; a figure from 0 to 1 has no interval beyond."""
    each = np.array([0.4, 0.6] * 4)
    half = 2.365 * np.std(each, ddof=1) / math.sqrt(8)
    assert student_interval(0.5, each).high == pytest.approx(0.5 + half, abs=1e-3)
    assert student_interval(0.01, each).low == 0 and student_interval(0.99, each).high == 1
    assert not student_interval(0.5, each[:1]).known
