# SPDX-License-Identifier: Apache-2.0
"""The histogram after a Sigmoid against one that counted what it makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from qdqtool.amax.behind_sigmoid import behind_sigmoid
from qdqtool.amax.histogram import BINS, POSITIVE, Histogram
from qdqtool.amax.methods import amax_mse
from tests.amax.test_histogram import Float32, hist_of, vectors


def gate(x: Float32) -> Float32:
    with np.errstate(over="ignore"):
        return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(np.float32)


@pytest.mark.parametrize("spread", [0.1, 2.0, 30.0])
def test_the_histogram_behind_a_sigmoid_is_within_a_bin_of_what_comes_out(spread: float) -> None:
    x = (np.random.default_rng(3).standard_normal(20_000) * spread).astype(np.float32)
    x[:9] = 0.0
    seen, real = behind_sigmoid(hist_of(x)), hist_of(gate(x))
    assert (seen.low, seen.high, seen.exponents, seen.count) == (real.low, real.high, real.exponents, real.count)
    apart = np.abs(np.cumsum(seen.counts[POSITIVE]) - np.cumsum(real.counts[POSITIVE])).max()
    width = 2.0 ** max(hist_of(x).exponents) / BINS  # of what it reads; the slope of a sigmoid is at most 1/4
    assert (
        apart <= np.diff(np.searchsorted(np.sort(gate(x)), (0.5 - width / 4, 0.5 + width / 4)))[0] + 9 + 20_000 / BINS
    )
    assert amax_mse(seen) == pytest.approx(amax_mse(real), rel=0.01)


@given(vectors)
def test_every_value_is_counted_behind_a_sigmoid(x: Float32) -> None:
    before = hist_of(x)
    seen = behind_sigmoid(before)
    assert (seen.count, seen.nans, seen.infs) == (x.size, np.isnan(x).sum(), 0)
    assert seen.finite == 0 or 0.0 <= seen.low <= seen.high <= 1.0
    assert Histogram.from_arrays(seen.to_arrays()).state() == seen.state()
    assert before.state() == hist_of(x).state()


def test_infinities_are_the_ends_of_a_sigmoid() -> None:
    seen = behind_sigmoid(hist_of(np.array([-np.inf, np.inf, np.inf, np.nan, 200.0, -200.0], np.float32)))
    assert (seen.low, seen.high, seen.zeros, seen.nans, int(seen.counts.sum())) == (0.0, 1.0, 2, 1, 3)
