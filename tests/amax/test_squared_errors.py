# SPDX-License-Identifier: Apache-2.0
"""The squared error of a scale: C beside NumPy, bit for bit, and both beside the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.amax import kernel
from qdqtool.amax.histogram import BINS, Histogram
from qdqtool.amax.methods import amax_mse
from qdqtool.amax.squared_errors import (
    Side,
    side_in_numpy,
    sides_of,
    squared_errors,
    squared_errors_in_numpy,
)
from tests.amax.kernel_runs import MODULE, compiled

Float64 = np.ndarray[Any, np.dtype[np.float64]]
SIZE = 5 + 3 * (BINS + 1)


def some_counts(seed: int, filled: int, apart: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    rng = np.random.default_rng(seed)
    counts = np.zeros(BINS, np.int64)
    counts[rng.integers(0, BINS // apart, filled) * apart] = rng.integers(1, 10**6, filled)
    return counts


def some_side(seed: int, top: int = 127) -> Side:
    made = side_in_numpy(some_counts(seed, 100), 0.25, top)
    assert made is not None
    return made


def hist_of(values: Any) -> Histogram:
    made = Histogram()
    made.add(np.asarray(values, np.float32))
    return made


@compiled
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([1, 2, 3, 4, 8, 12]),
    st.sampled_from([np.int32, np.int64]),
)
def test_c_lays_out_as_numpy_does(seed: int, filled: int, apart: int, kind: type) -> None:
    counts, block = some_counts(seed, filled, apart).astype(kind), np.empty(SIZE)
    assert MODULE.lay_out_side(counts, 0.5, 127, block)
    expected = side_in_numpy(counts, 0.5, 127)
    assert expected is not None and block.tobytes() == expected.block.tobytes()


@compiled
def test_one_bin_and_none() -> None:
    block = np.empty(SIZE)
    for bin_ in (0, 1, 4, BINS - 1):
        counts = np.zeros(BINS, np.int64)
        counts[bin_] = 3
        assert MODULE.lay_out_side(counts, 0.5, 127, block)
        expected = side_in_numpy(counts, 0.5, 127)
        assert expected is not None and block.tobytes() == expected.block.tobytes()
    assert not MODULE.lay_out_side(np.zeros(BINS, np.int32), 0.5, 127, block)
    assert side_in_numpy(np.zeros(BINS, np.int32), 0.5, 127) is None


@compiled
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from([8, 9, 16, 127, 128]), max_size=2),
    st.lists(st.floats(2.0**-12, 64.0), max_size=9),
)
def test_c_gives_the_bits_of_numpy(seed: int, tops: list[int], scales: list[float]) -> None:
    sides, at = [some_side(seed + index, top) for index, top in enumerate(tops)], np.array(scales)
    assert squared_errors(sides, at).tobytes() == squared_errors_in_numpy(sides, at).tobytes()


def test_errors_are_those_of_rounding() -> None:
    values = np.concatenate([np.arange(0, 4096, 64), -np.arange(64, 8192, 128)]).astype(np.float64)
    for scale in (3.0, 20.0, 80.0):
        rounded = np.clip(np.round(values / scale), -128, 127) * scale
        found = squared_errors(sides_of(hist_of(values)), np.array([scale]))
        assert found == pytest.approx([float(((values - rounded) ** 2).sum())], rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(1.0, 6.0))
def test_only_what_is_above_the_limit_is_left_out(seed: int, tail: float) -> None:
    values = np.random.default_rng(seed).standard_normal(500)
    hist = hist_of(np.sign(values) * np.abs(values) ** tail)
    sides, scales = sides_of(hist), np.geomspace(2.0**-12, 1.0, 100) * float(hist.amax) / 127
    whole = squared_errors_in_numpy(sides, scales)
    most = float(np.median(whole))
    found = squared_errors(sides, scales, most)
    left_out = np.isinf(found)
    assert (whole[left_out] > most).all()
    assert found[~left_out].tobytes() == whole[~left_out].tobytes()


@compiled
def test_small_scales_are_not_summed() -> None:
    hist = hist_of(np.random.default_rng(3).standard_normal(5000))
    sides, scales = sides_of(hist), np.geomspace(2.0**-12, 1.0, 100) * float(hist.amax) / 127
    least = float(squared_errors(sides, scales).min())
    assert np.isinf(squared_errors(sides, scales, least)).sum() > 60


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 6.0), st.booleans())
def test_the_best_clipping_value_does_not_depend_on_what_computes(seed: int, tail: float, whole: bool) -> None:
    values = np.random.default_rng(seed).standard_normal(300)
    values = np.sign(values) * np.abs(values) ** tail
    values = np.round(values * 9) if whole else values
    hist, other = hist_of(values), hist_of(values)
    found = amax_mse(hist)
    kernel.choose.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kernel.VARIABLE, "numpy")
        assert amax_mse(other).tobytes() == found.tobytes()
    kernel.choose.cache_clear()


def test_scales_that_are_not_contiguous() -> None:
    sides, scales = [some_side(6)], np.linspace(0.1, 30.0, 20)
    assert np.array_equal(squared_errors(sides, scales[::2]), squared_errors(sides, scales[::2].copy()))


@compiled
@pytest.mark.parametrize(
    ("scales", "sides", "errors"),
    [
        (np.ones(2, np.float32), (np.full(SIZE, 8.0),), np.zeros(2)),
        (np.ones(2), (np.full(SIZE - 1, 8.0),), np.zeros(2)),
        (np.ones(2), (np.full(SIZE, 129.0),), np.zeros(2)),
        (np.ones(2), (np.full(SIZE, 7.0),), np.zeros(2)),
        (np.ones(2), (np.full(SIZE, 8.0),), np.zeros(3)),
        (np.ones(2), (np.full(SIZE, 8.0),), [0.0, 0.0]),
        (np.ones(2), (np.full(SIZE, 8.0),) * 3, np.zeros(2)),
        (np.ones(2), [np.full(SIZE, 8.0)], np.zeros(2)),
    ],
)
def test_what_c_does_not_take(scales: Any, sides: Any, errors: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        MODULE.squared_errors(scales, sides, np.inf, errors)


@compiled
@pytest.mark.parametrize(
    ("counts", "block"),
    [
        (np.zeros(BINS), np.zeros(SIZE)),
        (np.zeros(BINS - 1, np.int64), np.zeros(SIZE)),
        (np.zeros(BINS, np.int16), np.zeros(SIZE)),
        (np.zeros(BINS, np.int64), np.zeros(SIZE + 1)),
        (np.zeros(BINS, np.int64), None),
    ],
)
def test_what_c_does_not_lay_out(counts: Any, block: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        MODULE.lay_out_side(counts, 1.0, 127, block)


@compiled
@pytest.mark.parametrize("most", [1.0, np.inf])
def test_c_reads_inside_of_its_tables_whatever_the_scales_are(most: float) -> None:
    errors = np.empty(5)
    MODULE.squared_errors(np.array([np.nan, np.inf, -np.inf, -1e300, 1e300]), (some_side(8).block,), most, errors)
    assert errors.shape == (5,)


def test_without_the_kernel_numpy_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, scales = sides_of(hist_of(np.linspace(-3, 5, 1000))), np.linspace(0.1, 30.0, 20)
    expected = squared_errors(sides, scales)
    kernel.choose.cache_clear()
    try:
        monkeypatch.setenv(kernel.VARIABLE, "numpy")
        assert squared_errors(sides, scales).tobytes() == expected.tobytes()
        assert [side.block.tobytes() for side in sides_of(hist_of(np.linspace(-3, 5, 1000)))] == [
            side.block.tobytes() for side in sides
        ]
    finally:
        kernel.choose.cache_clear()
