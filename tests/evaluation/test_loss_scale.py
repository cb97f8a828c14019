# SPDX-License-Identifier: Apache-2.0
"""Words for a loss: by labels what the interval shows, without labels by the bounds of labeled models."""

from __future__ import annotations

import math

import pytest

from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.loss_scale import WITHOUT_LABELS, WORDS, Word, is_at_most, sentence_of, word_of
from qdqtool.evaluation.metrics import Figure, certain


@pytest.mark.parametrize(
    ("loss", "low", "high", "word"),
    [
        (0.001, -0.002, 0.009, "little"),
        (0.001, -0.037, 0.028, ""),  # small, and not known to be
        (0.02, 0.005, 0.04, "some"),
        (0.02, -0.005, 0.04, ""),
        (0.026, 0.005, 0.04, "much"),
        (math.nan, math.nan, math.nan, ""),
    ],
)
def test_by_labels_bounds_are_shares_of_the_metric(loss: float, low: float, high: float, word: Word) -> None:
    """2 and 5 % of a metric of 0.5 are 0.01 and 0.025."""
    assert word_of("map", Figure(loss, Interval(low, high)), 0.5) == word


@pytest.mark.parametrize("metric", WITHOUT_LABELS)
def test_without_labels_little_needs_the_whole_interval(metric: str) -> None:
    scale = WITHOUT_LABELS[metric]
    assert 0 < scale.little < scale.much < 1
    below = scale.little / 2
    assert word_of(metric, Figure(below, Interval(0.0, scale.little * 0.9))) == "little"
    assert word_of(metric, Figure(below, Interval(0.0, scale.little * 1.1))) == "some"
    assert word_of(metric, Figure(scale.much, Interval(0.0, 1.0))) == "much"
    assert word_of(metric, certain(below)) == "little" and word_of(metric, certain(scale.much)) == "much"


def test_only_what_the_interval_shows_is_said_to_be_lost() -> None:
    """A model that surely lost 85 % of its mAP was said to be one that may lose 5 %."""
    shown, open_ = Figure(0.56, Interval(0.5, 0.62)), Figure(0.56, Interval(0.01, 0.62))
    assert sentence_of("much", shown, 0.65, 100) == "the task's metric loses 5 % of itself or more"
    assert sentence_of("some", Figure(0.02, Interval(0.015, 0.025)), 0.65, 100).startswith(
        "the task's metric loses 2 %"
    )
    assert sentence_of("much", open_, 0.65, 100) == sentence_of("much", shown, None, 100) == WORDS["much"]
    assert (
        sentence_of("much", certain(0.56), 0.65, 100) == WORDS["much"]
        and sentence_of("little", shown, 1, 100) == WORDS["little"]
    )


def test_a_loss_of_the_bound_is_no_more_than_the_bound() -> None:
    assert 0.49 - 0.48 > 0.01 and is_at_most(0.49 - 0.48, 0.01) and is_at_most(0.0, 0.0)
    assert not is_at_most(0.0101, 0.01) and not is_at_most(math.nan, 0.01)


@pytest.mark.parametrize(
    ("loss", "low", "high", "wanted"),
    [(0.005, -0.010, 0.020, "900"), (0.02, -0.01, 0.05, "230"), (-0.002, -0.014, 0.0101, "110")],
    ids=["below the bound", "above it", "better"],
)
def test_a_loss_that_is_not_shown_comes_with_the_number_of_samples_that_would(
    loss: float, low: float, high: float, wanted: str
) -> None:
    figure = Figure(loss, Interval(low, high))
    assert word_of("mAP", figure, 0.5) == ""
    assert sentence_of("", figure, 0.5, 100) == f"{WORDS['']}; at the same loss, about {wanted} would"
    assert sentence_of("", certain(math.nan), 0.5, 100) == WORDS[""]
