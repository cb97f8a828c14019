# SPDX-License-Identifier: Apache-2.0
"""The sums behind the squared error of a scale: C beside NumPy, bit for bit, and both beside their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.amax import kernel
from qdqtool.amax.hinge_sums import hinge_sums, hinge_sums_in_numpy
from qdqtool.amax.histogram import BINS
from tests.amax.kernel_runs import MODULE, compiled

Float64 = np.ndarray[Any, np.dtype[np.float64]]


def tables_of(counts: Float64) -> Float64:
    """Of values that stand at the lower edges of their bins."""
    below = np.append(np.cumsum(counts), counts.sum())
    hinge = np.concatenate([[0.0], np.cumsum(below[:-1])])
    return np.stack([np.zeros(BINS + 1), below, hinge])


def some_counts(seed: int, filled: int) -> Float64:
    rng = np.random.default_rng(seed)
    counts = np.zeros(BINS)
    counts[rng.integers(0, BINS, filled)] = rng.integers(1, 10**9, filled)
    return counts


@compiled
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([8, 9, 16, 127, 128]),
    st.lists(st.floats(2.0**-12, 64.0), max_size=9),
)
def test_c_gives_the_bits_of_numpy(seed: int, filled: int, top: int, steps: list[float]) -> None:
    tables = tables_of(some_counts(seed, filled))
    tables[0] = np.random.default_rng(seed).random(BINS + 1)
    at = np.array(steps)
    assert hinge_sums(at, tables, top).tobytes() == hinge_sums_in_numpy(at, tables, top).tobytes()


def test_sums_are_what_values_lack_to_the_edges() -> None:
    counts = some_counts(5, 40)
    values, many = np.flatnonzero(counts), counts[counts > 0]
    for step in (0.75, 20.0, 33.5):
        lacking = sum(float(many @ np.maximum((k - 0.5) * step - values, 0.0)) for k in range(1, 128))
        assert hinge_sums(np.array([step]), tables_of(counts), 127) == pytest.approx([lacking], rel=1e-12)


def test_other_layouts_of_the_same_numbers() -> None:
    tables, steps = tables_of(some_counts(6, 100)), np.linspace(0.1, 30.0, 20)
    expected = hinge_sums(steps[::2].copy(), tables, 127)
    assert np.array_equal(hinge_sums(steps[::2], np.asfortranarray(tables), 127), expected)


@compiled
@pytest.mark.parametrize(
    ("steps", "tables", "top", "sums"),
    [
        (np.ones(2, np.float32), np.zeros((3, BINS + 1)), 127, np.zeros(2)),
        (np.ones(2), np.zeros((3, BINS)), 127, np.zeros(2)),
        (np.ones(2), np.zeros((3, BINS + 1)), 129, np.zeros(2)),
        (np.ones(2), np.zeros((3, BINS + 1)), 7, np.zeros(2)),
        (np.ones(2), np.zeros((3, BINS + 1)), 127, np.zeros(3)),
        (np.ones(2), np.zeros((3, BINS + 1)), 127, [0.0, 0.0]),
    ],
)
def test_what_c_does_not_take(steps: Any, tables: Any, top: int, sums: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        MODULE.hinge_sums(steps, tables, top, sums)


@compiled
def test_c_reads_inside_of_its_tables_whatever_the_steps_are() -> None:
    tables, sums = tables_of(some_counts(8, 100)), np.empty(5)
    MODULE.hinge_sums(np.array([np.nan, np.inf, -np.inf, -1e300, 1e300]), tables, 127, sums)
    assert np.isnan(sums[0]) and not np.isfinite(sums[1])


def test_without_the_kernel_numpy_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, steps = tables_of(some_counts(7, 100)), np.linspace(0.1, 30.0, 20)
    expected = hinge_sums(steps, tables, 128)
    kernel.choose.cache_clear()
    try:
        monkeypatch.setenv(kernel.VARIABLE, "numpy")
        assert hinge_sums(steps, tables, 128).tobytes() == expected.tobytes()
    finally:
        kernel.choose.cache_clear()
