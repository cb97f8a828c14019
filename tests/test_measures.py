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

from qdqtool.measures import (
    ChangeSums,
    ExactSum,
    Measure,
    MeasureSums,
    channel_loss,
    decibel,
    largest_difference,
    sample_losses,
)

Array = npt.NDArray[Any]


def measured(reference: Array, other: Array, cuts: tuple[int, ...] = ()) -> Measure:
    running = MeasureSums()
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
    reported = measured(zero, one).to_json()
    assert (reported["sqnr_db"], reported["cosine"], reported["identical"]) == (None, None, False)
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


@pytest.mark.parametrize(
    ("one", "other", "broken"),
    [
        (1e200, 2e200, 1),
        (1e154, -1e154, 1),  # each has a square, their difference has none
        (1e300, 1e300, 0),  # the same in both is no fault
        (1e100, 2e100, 0),  # beyond float32, not beyond float64
    ],
)
def test_what_has_no_square_is_no_number_here(one: float, other: float, broken: int) -> None:
    assert measured(np.array([[one, 1.0]]), np.array([[other, 1.0]])).broken == broken


def test_a_value_that_float64_can_square_is_counted_beside_one_that_it_cannot() -> None:
    got = measured(np.array([[1e200, 1e100]]), np.array([[1e200, 2e100]]))
    assert (got.elements, got.broken, got.largest_error) == (1, 0, 1e100)


@pytest.mark.filterwarnings("error")
def test_a_change_from_inf_to_inf_counts_as_the_largest_and_says_nothing() -> None:
    sums = ChangeSums()
    inf = np.array([np.inf, 1], np.float32)
    sums.add(inf, inf)
    assert sums.change().relative == 1.0


def test_scalars_large_blocks_and_rows_that_are_no_samples() -> None:
    running = MeasureSums()
    running.add(np.float32(2).reshape(()), np.float32(1).reshape(()), 1)
    assert running.measure("t").sqnr == pytest.approx(10 * math.log10(4))
    ref = np.ones(3_000_000, np.float32)
    running = MeasureSums()
    running.add(ref, ref * np.float32(0.5), 4)
    got = running.measure("t")
    assert (got.elements, got.noise, got.cosine) == (3_000_000, 0.25, 1.0)


def total(rows: Array) -> Array:
    one = ExactSum(rows.shape[1])
    for row in rows:
        one.add(row)
    return one.total()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_sums_equal_fsum_to_the_bit_in_any_order(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(200, 5)) * 10.0 ** rng.integers(-30, 30, (200, 5))).astype(dtype)
    exact = [math.fsum(column.tolist()) for column in rows.T]
    assert total(rows).tolist() == exact
    assert total(rows[::-1]).tolist() == exact
    assert total(rows[rng.permutation(200)]).tolist() == exact
    assert exact == [float(sum(map(Fraction, column.tolist()))) for column in rows.T]


@pytest.mark.parametrize(
    ("values", "sums"),
    [
        ([1e30, 1.0, -1e30], 1.0),
        ([1e-45, 1e-45], 2e-45),
        ([5e-324, 5e-324, 1.0, -1.0], 1e-323),
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308),
        ([2.0**53, 1.0, 2.0**-1000], 2.0**53 + 2),
        ([0.0, -0.0], 0.0),
        ([-1.5, 0.25], -1.25),
        ([], 0.0),
    ],
)
def test_hard_sums(values: list[float], sums: float) -> None:
    assert total(np.array(values)[:, None])[0] == sums


def test_a_sum_does_not_overflow_where_it_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.measures._CARRY_AFTER", 3)
    rows = np.random.default_rng(2).normal(size=(500, 3)) * 1e3
    assert total(rows).tolist() == [math.fsum(column.tolist()) for column in rows.T]


def test_a_sum_does_not_grow_with_what_is_added() -> None:
    one = ExactSum(2)
    for _ in range(1000):
        one.add(np.array([1.25, 1e-3]))
    assert one._buckets.shape[1] < 10


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_has_no_sum_is_refused(odd: float) -> None:
    with pytest.raises(ValueError, match="no exact sum"):
        ExactSum(1).add(np.array([odd], np.float32))


def test_decibel() -> None:
    assert [decibel(0.0), decibel(0.01), decibel(math.inf)] == [math.inf, 20.0, -math.inf]


def test_the_worst_tensor_is_named() -> None:
    ours = {"a": np.array([100.0, 1.0], np.float32), "b": np.array([0.011, 0.0], np.float32)}
    theirs = {"a": np.array([100.0, 2.0], np.float32), "b": np.array([0.01, 0.0], np.float32)}
    worst, name = largest_difference(ours, theirs)
    assert name == "b" and worst == pytest.approx(0.1, rel=1e-5)
    assert largest_difference(ours, ours)[0] == 0


@pytest.mark.parametrize("other", [np.zeros(3), np.array([np.nan, 1]), np.array([np.inf, 1])])
def test_other_shapes_and_other_holes_are_infinitely_far(other: np.ndarray) -> None:
    assert largest_difference({"a": np.array([0.0, 1.0])}, {"a": other})[0] == float("inf")


def test_equal_holes_are_passed_over() -> None:
    value = np.array([np.nan, 1.0])
    assert largest_difference({"a": value}, {"a": value}) == (0.0, "a")


def test_zeros_are_no_division_by_zero() -> None:
    assert largest_difference({"a": np.zeros(2)}, {"a": np.zeros(2)})[0] == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e200, np.inf, np.nan])
@pytest.mark.parametrize("where", ["reference", "model", "both"])
def test_values_without_end_lose_a_share_and_say_nothing(value: float, where: str) -> None:
    plain = [np.arange(8.0).reshape(1, 2, 4) * number for number in (1, 2, 3)]
    wild = [np.where(array == array.max(), value, array) for array in plain]
    pair = {"reference": (wild, plain), "model": (plain, wild), "both": (wild, wild)}[where]
    assert 0.0 <= channel_loss(*pair) <= 1.0
    assert where != "model" or channel_loss(*pair) > 0.0


def test_tokens_that_hardly_vary_are_no_channels_of_their_own() -> None:
    """Of six tokens two are padding, whose features move by a hundredth of what the others do."""
    random = np.random.default_rng(0)
    size = np.array([1, 1, 1, 1, 0.01, 0.01])[:, None]
    wanted = [size * random.standard_normal((1, 6, 16)) for _ in range(8)]
    got = [array + 0.02 * random.standard_normal(array.shape) for array in wanted]
    assert channel_loss(wanted, got) > 0.3 and sample_losses(wanted, got).min() > 0.3
    assert channel_loss(wanted, got, features=True) < 0.002 > sample_losses(wanted, got, features=True).max()
    channels = [np.moveaxis(array, 2, 1)[:, :4] for array in (*wanted, *got)]
    assert channel_loss(channels[:8], channels[8:]) < 0.002, "the shortest axis of what is no features"
