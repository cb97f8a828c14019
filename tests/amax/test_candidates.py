# SPDX-License-Identifier: Apache-2.0
"""What is worth a trial: each method's proposal, alike ones once; ACIQ against a search over its own formula."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from qdqtool.amax.candidates import MOST, Candidate, amax_aciq, candidates, distinct
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import amax_entropy_stable, amax_mse, amax_percentile


def hist_of(values: np.ndarray) -> Histogram:
    hist = Histogram()
    hist.add(values.astype(np.float32))
    return hist


def test_a_wide_tensor_gets_one_candidate_per_method() -> None:
    hist = hist_of(np.random.default_rng(0).standard_normal(200_000) ** 5)
    found = {one.method: one.amax for one in candidates(hist)}
    assert {"mse", "max", "percentile=99.9", "entropy-stable"} <= found.keys()
    assert found["mse"] == amax_mse(hist) and found["max"] == hist.amax
    assert found["percentile=99.9"] == amax_percentile(hist, 99.9)
    assert found["entropy-stable"] == amax_entropy_stable(hist)


def test_alike_candidates_come_once_under_the_first_name() -> None:
    clipped = np.minimum(np.abs(np.random.default_rng(1).standard_normal(50_000)) * 20, 6.0)  # a Relu6: all end at 6
    assert next(one.method for one in candidates(hist_of(clipped))) == "mse"
    assert "max" not in {one.method for one in candidates(hist_of(clipped))}
    near, far = Candidate("b", np.float32(1.01)), Candidate("c", np.float32(1.03))
    assert distinct([Candidate("a", np.float32(1)), near, far]) == [Candidate("a", np.float32(1)), far]


def test_of_many_the_outermost_and_evenly_spread_ones_stay_in_their_order() -> None:
    many = [Candidate(str(i), np.float32(1.1**i)) for i in reversed(range(40))]
    kept = distinct(many)
    sizes = [int(one.method) for one in kept]
    assert len(kept) == MOST and sizes == sorted(sizes, reverse=True) and (sizes[0], sizes[-1]) == (39, 0)
    assert max(a - b for a, b in itertools.pairwise(sizes)) <= 4


def test_zeros_alone_have_no_candidate() -> None:
    assert candidates(hist_of(np.zeros(100))) == []
    assert amax_aciq(hist_of(np.zeros(100))) == 0


def test_the_order_of_the_data_changes_nothing() -> None:
    values = np.random.default_rng(2).standard_normal(10_000) ** 3
    assert candidates(hist_of(values)) == candidates(hist_of(values[::-1]))


@pytest.mark.parametrize("kind", ["laplace", "normal"])
@pytest.mark.parametrize("one_sided", [False, True])
def test_aciq_is_the_least_of_its_formula(kind: str, one_sided: bool) -> None:
    """Clipping by Monte Carlo, rounding as step^2 / 12: within 5 %, where the sum is flat."""
    rng = np.random.default_rng(3)
    values = rng.laplace(0, 2, 100_000) if kind == "laplace" else rng.normal(0, 2, 100_000)
    values = np.abs(values) if one_sided else values
    hist = hist_of(values)
    tried = np.linspace(6.0, 24.0, 37)
    cost = [float((np.maximum(np.abs(values) - a, 0) ** 2).mean()) + (2 * a / 256) ** 2 / 12 for a in tried]
    at = float(amax_aciq(hist))
    assert cost[int(np.abs(tried - at).argmin())] <= min(cost) * 1.1
    assert at == pytest.approx(2 * (9.8968 if kind == "laplace" else 3.9240), rel=0.05)


def test_aciq_leaves_zeros_out_and_stays_below_the_largest_value() -> None:
    values = np.abs(np.random.default_rng(4).laplace(0, 1, 100_000))
    assert amax_aciq(hist_of(np.append(values, np.zeros(900_000)))) == amax_aciq(hist_of(values))
    flat = hist_of(np.full(1000, 3.0))
    assert float(amax_aciq(flat)) == 3.0 and math.isfinite(float(flat.amax))
