# SPDX-License-Identifier: Apache-2.0
"""The divergences of the entropy search in C beside those in NumPy: the same answers, and nothing read out of place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.amax import kernel
from qdqtool.amax.entropy_search import LEVELS, NEAR, SURE, best_bin, divergences_in_numpy
from tests.amax.kernel_runs import MODULE, compiled

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Float64 = np.ndarray[Any, np.dtype[np.float64]]


def some_counts(seed: int, size: int, tail: float, holes: float) -> Int64:
    """What values of some spread leave in bins: all filled, or some of them empty."""
    rng = np.random.default_rng(seed)
    values = np.abs(rng.standard_normal(20_000)) ** tail
    counts = np.bincount((values / values.max() * (size - 1)).astype(np.int64), minlength=size)
    counts[rng.random(size) < holes] = 0
    counts[-1] += 1
    return counts.astype(np.int64)


def prefix_sums(counts: Int64) -> Float64:
    h = counts.astype(np.float64)
    parts = [h, (h > 0).astype(np.float64), h * np.log(np.maximum(h, 0.5))]
    return np.stack([np.concatenate([[0.0], np.cumsum(part)]) for part in parts])


def by_c(sums: Float64, kept: Int64, sure: float = SURE) -> Float64:
    values = np.empty(kept.size)
    MODULE.divergences(sums, kept, sure, values)
    return values


spreads = given(
    st.integers(0, 2**32 - 1), st.integers(LEVELS + 1, 600), st.floats(0.5, 4.0), st.sampled_from([0.0, 0.3, 0.9])
)


@compiled
@spreads
def test_c_agrees_with_numpy_wherever_it_answers(seed: int, size: int, tail: float, holes: float) -> None:
    counts = some_counts(seed, size, tail, holes)
    kept = np.flatnonzero(counts[LEVELS - 1 :] > 0) + LEVELS
    sums = prefix_sums(counts)
    if (sums[1][kept] < 2).any():
        return
    expected, found = divergences_in_numpy(sums, kept), by_c(sums, kept)
    known = np.isfinite(found)
    assert np.abs(found[known] - expected[known]).max() < NEAR / 10
    assert (expected[~known] > expected.min() + SURE / 2).all()


@compiled
def test_most_candidates_are_left_early_where_one_is_far_better() -> None:
    counts = some_counts(2, 2048, 1.0, 0.0)
    kept = np.flatnonzero(counts[LEVELS - 1 :] > 0) + LEVELS
    found = by_c(prefix_sums(counts), kept)
    assert np.isinf(found).sum() > kept.size / 4
    assert np.isfinite(by_c(prefix_sums(counts), kept, np.inf)).all()


@spreads
def test_the_answer_does_not_depend_on_what_computes(seed: int, size: int, tail: float, holes: float) -> None:
    counts = some_counts(seed, size, tail, holes)
    found = best_bin(counts)
    kernel.choose.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kernel.VARIABLE, "numpy")
        assert best_bin(counts) == found
    kernel.choose.cache_clear()


@compiled
@pytest.mark.parametrize(
    ("sums", "kept", "values"),
    [
        (np.ones((3, 200), np.float32), np.array([150]), np.zeros(1)),
        (np.ones((2, 200)), np.array([150]), np.zeros(1)),
        (np.ones(600), np.array([150]), np.zeros(1)),
        (np.ones((3, LEVELS)), np.array([LEVELS]), np.zeros(1)),
        (np.ones((3, 200)), np.array([150], np.int32), np.zeros(1)),
        (np.ones((3, 200)), np.array([200]), np.zeros(1)),
        (np.ones((3, 200)), np.array([LEVELS - 1]), np.zeros(1)),
        (np.ones((3, 200)), np.array([-1]), np.zeros(1)),
        (np.ones((3, 200)), np.array([150]), np.zeros(2)),
        (np.ones((3, 200)), np.array([150]), np.zeros(1, np.float32)),
        (np.ones((3, 200)), [150], np.zeros(1)),
    ],
)
def test_what_c_does_not_take(sums: Any, kept: Any, values: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        MODULE.divergences(sums, kept, SURE, values)
