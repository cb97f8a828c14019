# SPDX-License-Identifier: Apache-2.0
"""Words for a loss: by labels what the interval shows, without labels by the bounds of labeled models."""

from __future__ import annotations

import math

import pytest

from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.loss_scale import WITHOUT_LABELS, Word, word_of
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
