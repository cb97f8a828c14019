# SPDX-License-Identifier: Apache-2.0
"""Ranges of channels by the C kernel beside NumPy: the same ends, bit for bit."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.amax import kernel
from qdqtool.amax.histogram import Histogram
from qdqtool.observers.pre_batchnorm_range import Affine, AffineRange
from tests.amax.kernel_runs import (
    MODULE,
    VARIANTS,
    Float32,
    Kind,
    by_numpy,
    compiled,
    kinds,
    vectors,
)


def range_of(channels: int) -> AffineRange:
    return AffineRange(Affine("y", (1.0,) * channels, (0.0,) * channels))


def assert_same_ranges(kind: Kind, channels: int, *batches: npt.NDArray[Any]) -> None:
    expected, states = range_of(channels), by_numpy(kind, *batches)
    for batch in batches:
        expected.add_in_numpy(batch.astype(np.float32))
    for variant in VARIANTS:
        made, bounds = kind(), range_of(channels)
        for batch in batches:
            MODULE.add_all([made], [batch], kernel.flatten, variant, [bounds])
        assert bounds.ends.tobytes() == expected.ends.tobytes(), MODULE.variants()[variant]
        assert made.state() == states


@compiled
@kinds
@pytest.mark.parametrize(
    "shape", [(3, 5, 7), (2, 3, 61, 70), (1, 40, 1, 1), (4, 6), (2, 9, 64), (1, 2, 20_001), (0, 4, 3)]
)
def test_ranges_of_rows_of_any_length(kind: Kind, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(4).standard_normal(shape) * 3).astype(np.float32)
    assert_same_ranges(kind, shape[1], x, np.maximum(x, 0), x - np.float32(1.0))
    for view in (np.asfortranarray(x), x[::-1], x[:, ::-1], x.astype(np.float16), x.astype(np.float16)[..., ::-1]):
        assert_same_ranges(kind, shape[1], view)


@compiled
@kinds
def test_ranges_hold_infinities_and_no_nan_nor_minus_zero(kind: Kind) -> None:
    x = np.random.default_rng(5).standard_normal((2, 9, 500)).astype(np.float32)
    x[0, 1, 7], x[1, 2, 499], x[:, 3], x[0, 4, ::3] = np.inf, -np.inf, np.nan, np.nan
    x[:, 5], x[:, 6, ::2], x[:, 7] = -0.0, -0.0, -np.inf
    x[:, 6, 1::2] = 0.0
    assert_same_ranges(kind, 9, x)
    assert_same_ranges(kind, 9, x[:1], x[1:], -x)
    bounds = range_of(9)
    MODULE.add_all([kind()], [x], kernel.flatten, 0, [bounds])
    assert bounds.ends[1, 1] == np.inf and bounds.ends[0, 2] == -np.inf
    assert bounds.ends[:, 3].tolist() == [np.inf, -np.inf] and np.isfinite(bounds.ends[:, 4]).all()
    assert not np.signbit(bounds.ends[:, 5:7]).any()


@compiled
@given(vectors, st.integers(1, 5))
def test_ranges_of_any_bits(x: Float32, channels: int) -> None:
    assert_same_ranges(Histogram, channels, x[: x.size // channels * channels].reshape(1, channels, -1))


@pytest.mark.parametrize("asked", ["numpy", "c"])
def test_a_batch_has_ranges_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    if asked == "c" and MODULE is None:
        pytest.skip(kernel.why())
    monkeypatch.setenv(kernel.VARIABLE, asked)
    x = np.random.default_rng(6).standard_normal((2, 3, 5000)).astype(np.float32)
    made, bounds = [Histogram() for _ in range(3)], range_of(3)
    kernel.add_all(made, [x[0], x, x[1]], [None, bounds, None])
    assert bounds.ends.tobytes() == np.array([x.min((0, 2)), x.max((0, 2))]).tobytes()
    assert [h.state() for h in made] == [by_numpy(Histogram, one) for one in (x[0], x, x[1])]
    before = [h.state() for h in made], bounds.ends.tobytes()
    for bad, ranges, error in (
        (np.ones((2, 4, 3), np.float32), [None, None, bounds], "3 channels on axis 1"),
        (np.ones(3, np.float32), [None, None, bounds], "3 channels on axis 1"),
        (np.float32(1.0), [None, None, bounds], "3 channels on axis 1"),
        (x, [None, bounds], "3 histograms, but 2 ranges"),
    ):
        with pytest.raises(ValueError, match=error):
            kernel.add_all(made, [x, x, np.asarray(bad)], ranges)
    with pytest.raises(TypeError):
        kernel.add_all(made, [x, x, x.astype(np.float64)], [None, bounds, bounds])
    assert ([h.state() for h in made], bounds.ends.tobytes()) == before


@compiled
@pytest.mark.parametrize(
    "ends",
    [
        np.zeros((2, 3)),
        np.zeros((3, 2), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 6), np.float32)[:, ::2],
        np.asfortranarray(np.zeros((2, 3), np.float32)),
        np.zeros((2, 3), ">f4"),
        np.zeros((2, 3), np.int32),
        np.frombuffer(bytes(24), np.float32).reshape(2, 3),
    ],
)
def test_ends_of_another_form_are_never_written(ends: npt.NDArray[Any]) -> None:
    bounds, before, histogram = types.SimpleNamespace(ends=ends), ends.copy(), Histogram()
    with pytest.raises(TypeError, match=r"ends of .*range"):
        MODULE.add_all([histogram], [np.ones((1, 3, 2), np.float32)], kernel.flatten, 0, [bounds])
    assert np.array_equal(ends, before) and histogram.is_empty


@compiled
def test_no_reference_to_a_range_is_lost_or_kept() -> None:
    x, bounds, histogram = np.ones((2, 3, 4), np.float32), range_of(3), Histogram()
    turned = np.asfortranarray(x)
    watched = (x, turned, bounds, bounds.ends, histogram)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(50):
        MODULE.add_all([histogram] * 2, [x, turned], kernel.flatten, 0, [bounds, bounds])
        for bad in (object(), types.SimpleNamespace(ends=None), types.SimpleNamespace(ends=np.ones(3))):
            with pytest.raises((AttributeError, TypeError)):
                MODULE.add_all([histogram] * 2, [turned, x], kernel.flatten, 0, [bounds, bad])
        with pytest.raises(ValueError, match="channels"):
            MODULE.add_all([histogram] * 2, [turned, x[0]], kernel.flatten, 0, [bounds, bounds])
        with pytest.raises(TypeError):
            MODULE.add_all([histogram], [x], kernel.flatten, 0, 5)
    assert [sys.getrefcount(one) for one in watched] == before
