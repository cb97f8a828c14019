# SPDX-License-Identifier: Apache-2.0
"""Figures with intervals, and losses that are paired: both models are judged on the same draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqtool.evaluation.metrics import MeasuredModel, judge, loss_between, resampled_figure


def of_values(values: np.ndarray, images_of: tuple[int, ...] = ()) -> MeasuredModel:
    """A mean over images as the only metric, the same for every class."""
    columns = 1 + len(images_of)

    def resampled(weights: np.ndarray) -> np.ndarray:
        return np.repeat((weights @ values / weights.sum(1))[:, None, None], columns, 2)

    whole = np.full((1, columns), values.mean())
    return MeasuredModel(("m",), whole, tuple(range(len(images_of))), len(values), resampled, {}, images_of)


VALUES = np.random.default_rng(2).random(60)


def test_a_loss_is_paired() -> None:
    """The same change on every image is certain, although either figure for itself is not."""
    verdict = judge(of_values(VALUES * 0.5), of_values(VALUES * 0.5 + 0.125))
    loss = verdict.losses["m"][0]
    assert loss.value == pytest.approx(0.125)
    assert (loss.interval.low, loss.interval.high) == (pytest.approx(0.125), pytest.approx(0.125))
    own = verdict.figures["m"][0]
    assert own.interval.high - own.interval.low > 0.05
    assert verdict.baseline["m"][0].value == pytest.approx(own.value + 0.125)


def test_a_loss_is_positive_where_the_baseline_is_better() -> None:
    assert judge(of_values(VALUES * 0.5), of_values(VALUES)).losses["m"][0].value > 0
    assert judge(of_values(VALUES), of_values(VALUES * 0.5)).losses["m"][0].value < 0


def test_without_a_baseline_there_are_no_losses() -> None:
    verdict = judge(of_values(VALUES))
    assert (verdict.losses, verdict.baseline) == ({}, {})


def test_the_same_seed_gives_the_same_interval() -> None:
    one, two, other = (judge(of_values(VALUES), seed=seed).figures["m"][0].interval for seed in (0, 0, 1))
    assert one == two != other


def test_a_figure_stays_between_0_and_1_and_a_loss_need_not() -> None:
    almost = np.array([1.0] * 19 + [0.9])
    assert judge(of_values(almost)).figures["m"][0].interval.high <= 1
    assert judge(of_values(np.zeros(20)), of_values(1 - almost)).losses["m"][0].interval.low < 0.005
    assert judge(of_values(1 - almost), of_values(np.zeros(20))).losses["m"][0].interval.low < 0


def test_a_loss_is_no_more_than_there_was() -> None:
    some = np.array([0.4] * 2 + [0.0] * 3)
    (loss,) = judge(of_values(np.zeros(5)), of_values(some)).losses["m"]
    assert loss.interval.high <= some.mean() and loss.interval.low < loss.value <= loss.interval.high
    (gain,) = judge(of_values(some), of_values(np.zeros(5))).losses["m"]
    assert gain.interval.high <= 0, "a model that found nothing has nothing to lose"


def test_a_class_that_one_image_shows_has_no_interval() -> None:
    verdict = judge(of_values(VALUES, (1, 2)), of_values(VALUES, (1, 2)))
    for table in (verdict.figures, verdict.baseline, verdict.losses):
        over_all, lone, other = table["m"]
        assert math.isnan(lone.interval.low) and math.isnan(lone.interval.high)
        assert not math.isnan(over_all.interval.low) and not math.isnan(other.interval.low)
        assert lone.value == other.value


def test_models_that_were_judged_differently_are_not_compared() -> None:
    with pytest.raises(ValueError, match="the same way"):
        judge(of_values(VALUES), of_values(VALUES[:-1]))
    with pytest.raises(ValueError, match="the same way"):
        judge(of_values(VALUES, (2,)), of_values(VALUES))


def of_classes(values: np.ndarray, shows: np.ndarray) -> MeasuredModel:
    """A mean over classes: of each the mean over the images that show it.

    Args:
        values: float64[images, classes].
        shows: bool[images, classes].
    """

    def resampled(weights: np.ndarray) -> np.ndarray:
        count = weights @ shows
        each = np.where(count > 0, weights @ (values * shows) / np.maximum(count, 1), np.nan)
        return np.concatenate([np.nanmean(each, 1, keepdims=True), each], 1)[:, None]

    whole = resampled(np.ones((1, len(values)), np.int64))[0]
    images_of = tuple(int(one) for one in shows.sum(0))
    return MeasuredModel(("m",), whole, tuple(range(len(images_of))), len(values), resampled, {}, images_of)


def covered(images: int, seen: float, trials: int = 300) -> float:
    """How often the 95 % interval of a difference of means over 40 classes holds the truth, which is 0."""
    values, hits = np.random.default_rng(5), 0
    for _ in range(trials):
        shows = values.random((images, 40)) < seen
        shows[values.integers(images, size=40), np.arange(40)] = True
        one, other = (of_classes(values.normal(0.5, 0.1, (images, 40)), shows) for _ in range(2))
        found = loss_between(resampled_figure(one, 200), resampled_figure(other, 200)).interval
        hits += found.low <= 0 <= found.high
    return hits / trials


@pytest.mark.slow
@pytest.mark.parametrize(
    "seen", [0.02, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(0.5, marks=pytest.mark.slow)]
)
def test_the_interval_of_a_mean_over_rare_classes_holds_the_truth(seen: float) -> None:
    """Draws of the images alone say nothing of a class that one image shows: they hold it in 84 of 100 cases."""
    assert 0.92 < covered(24, seen) < 0.99


def test_classes_that_many_images_show_are_taken_as_they_are() -> None:
    """Classes differ, but they are the same ones in the next images: their spread is no uncertainty."""
    images = 4000
    values = np.linspace(0, 1, 20)[None] + np.random.default_rng(0).normal(0, 0.01, (images, 20))
    found = judge(of_classes(values, np.ones((images, 20), bool))).figures["m"][0]
    assert found.interval.high - found.interval.low < 0.006


def test_two_models_on_the_same_images_see_the_same_classes() -> None:
    """A change that is the same for every class is certain, whichever classes are drawn."""
    shows = np.random.default_rng(0).random((12, 30)) < 0.1
    shows[0] = True
    values = np.random.default_rng(1).random((12, 30)) * 0.5
    one, other = of_classes(values + 0.125, shows), of_classes(values, shows)
    for found in (
        loss_between(resampled_figure(one), resampled_figure(other)),
        judge(other, one).losses["m"][0],
    ):
        assert (found.value, found.interval.low, found.interval.high) == pytest.approx((0.125, 0.125, 0.125))


def test_a_verdict_and_a_figure_draw_alike() -> None:
    shows = np.random.default_rng(0).random((12, 30)) < 0.1
    shows[0] = True
    one, other = (of_classes(np.random.default_rng(k).random((12, 30)), shows) for k in (1, 2))
    loss = loss_between(resampled_figure(one), resampled_figure(other))
    assert judge(other, one).losses["m"][0].interval == loss.interval


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_loss_is_cut_off_where_no_more_can_be_lost_or_gained_by_both_functions(lost: int) -> None:
    whole, less = of_values(np.ones(7)), of_values(np.arange(7) >= lost)
    for better, worse in ((whole, less), (less, whole)):
        loss = loss_between(resampled_figure(better), resampled_figure(worse))
        assert loss == judge(worse, better).losses["m"][0]
        assert better.value("m") - 1 <= loss.interval.low and loss.interval.high <= better.value("m")
