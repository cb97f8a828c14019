# SPDX-License-Identifier: Apache-2.0
"""Differences are relative to the size of the tensor they are in."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.training.differ import largest_difference


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
