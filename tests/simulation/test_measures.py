# SPDX-License-Identifier: Apache-2.0
"""SQNR, cosine and largest error against their definitions; no order or batch size changes a bit; NaN is counted."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.simulation.measures import ExactSum, Measure, Running, decibel

Array = npt.NDArray[Any]


def measured(reference: Array, other: Array, cuts: tuple[int, ...] = ()) -> Measure:
    running = Running()
    for one, two in zip(np.split(reference, cuts), np.split(other, cuts), strict=True):
        running.add(one, two, len(one))
    return running.measure("t")


def pair(samples: int = 6) -> tuple[Array, Array]:
    r = np.random.default_rng(4)
    reference = (r.normal(size=(samples, 3, 5)) * 10.0 ** r.integers(-3, 4, (samples, 1, 1))).astype(np.float32)
    return reference, (reference + r.normal(size=reference.shape) * 0.1).astype(np.float32)


def test_the_definitions() -> None:
    ref, x = (array.astype(np.float64) for array in pair())
    got = measured(*pair())
    assert got.sqnr == pytest.approx(10 * np.log10((ref**2).sum() / ((ref - x) ** 2).sum()), abs=1e-9)
    assert got.noise == pytest.approx(((ref - x) ** 2).sum() / (ref**2).sum(), rel=1e-12)
    assert got.cosine == pytest.approx((ref * x).sum() / np.sqrt((ref**2).sum() * (x**2).sum()), rel=1e-12)
    assert got.largest_error == np.abs(ref - x).max()
    assert (got.elements, got.broken) == (90, 0)


def test_no_order_and_no_batch_size_changes_a_bit() -> None:
    ref, x = pair(5)
    want = measured(ref, x)
    for order in itertools.permutations(range(5)):
        assert measured(ref[list(order)], x[list(order)]) == want
    for cuts in [(1,), (2, 4), (1, 2, 3, 4)]:
        assert measured(ref, x, cuts) == want


def test_sums_over_samples_and_not_means_of_figures() -> None:
    """A sample of loud signal weighs more: 10 log10 of the sums, not the mean of decibels."""
    ref = np.array([[1.0], [100.0]], np.float32)
    x = np.array([[2.0], [100.0]], np.float32)
    assert measured(ref, x).sqnr == pytest.approx(10 * math.log10(10001))


def test_equal_zero_and_opposite() -> None:
    one, zero = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    assert (measured(one, one).sqnr, measured(one, one).cosine) == (math.inf, 1.0)
    assert measured(zero, one).sqnr == -math.inf and math.isnan(measured(zero, one).cosine)
    assert measured(zero, zero).sqnr == math.inf
    assert measured(one, -one).cosine == -1.0
    assert measured(one, -one).largest_error == measured(-one, one).largest_error == 2.0
    told = measured(zero, one).to_json()
    assert (told["sqnr_db"], told["cosine"], told["identical"]) == (None, None, False)
    assert measured(one, one).to_json()["identical"] is True


def test_nan_and_inf_are_counted_and_left_out() -> None:
    ref = np.array([[1, np.nan, -np.inf, 2, 3, np.inf]], np.float32)
    x = np.array([[1, np.nan, -np.inf, np.nan, 3.5, -np.inf]], np.float32)
    got = measured(ref, x)
    assert got.broken == 2  # the NaN for a 2, the Inf of the other sign; what both have is no fault
    assert got.elements == 2
    assert (got.largest_error, got.sqnr) == (0.5, pytest.approx(10 * math.log10(10 / 0.25)))
    assert measured(ref[:, 1:3], x[:, 1:3]).to_json()["identical"] is True
    assert measured(ref[:, 3:4], x[:, 3:4]).to_json()["identical"] is False


def test_what_has_no_square_is_no_number_here() -> None:
    assert measured(np.array([[1e200]]), np.array([[2e200]])).broken == 1


def test_scalars_large_blocks_and_rows_that_are_no_samples() -> None:
    running = Running()
    running.add(np.float32(2).reshape(()), np.float32(1).reshape(()), 1)
    assert running.measure("t").sqnr == pytest.approx(10 * math.log10(4))
    ref = np.ones(3_000_000, np.float32)
    running = Running()
    running.add(ref, ref * np.float32(0.5), 4)
    got = running.measure("t")
    assert (got.elements, got.noise, got.cosine) == (3_000_000, 0.25, 1.0)


def test_exact_sum_is_that_of_fractions() -> None:
    r = np.random.default_rng(1)
    values = (r.normal(size=300) * 10.0 ** r.integers(-18, 18, 300)).tolist()
    want = float(sum(map(Fraction, values)))
    for seed in range(5):
        total = ExactSum()
        for index in np.random.default_rng(seed).permutation(len(values)):
            total.add(values[index])
        assert total.value == want
    assert len(total._parts) < 20, "memory does not grow with what is added"


def test_decibel() -> None:
    assert [decibel(0.0), decibel(0.01), decibel(math.inf)] == [math.inf, 20.0, -math.inf]
