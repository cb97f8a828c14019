# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The magnitudes and sums of constants, read in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.precision import constant_values
from qdqtool.precision.constant_values import ConstantValues, largest_sum, values_of
from tests.graphs import view_of


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float[3] c = {1.0, -5.0, 0.0}", ConstantValues(5.0, 1.0)),
        ("float c = {-0.25}", ConstantValues(0.25, 0.25)),
        ("float[2] c = {0.0, 0.0}", ConstantValues(0.0, np.inf)),
        ("int64[2] c = {-7, 2}", ConstantValues(7.0, 2.0)),
    ],
)
def test_largest_and_smallest_magnitude(given: str, expected: ConstantValues) -> None:
    view = view_of(f"g (float[3] x) => (float[3] y) <{given}> {{ k = Cast<to = 1>(c) y = Add(x, k) }}")
    assert values_of(view, "c") == expected


def test_what_is_no_constant_has_no_values() -> None:
    assert values_of(view_of("g (float[3] x) => (float[3] y) { y = Relu(x) }"), "x") is None


def test_behind_integers_the_scale_says_the_most_and_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[1,2] x) => (float[1,2] y) <int8[2,2] q = {1, 2, 3, 4}, float[2] s = {0.5, 2.0}> { w = DequantizeLinear<axis = 1>(q, s) y = MatMul(x, w) }"
    found = values_of(view_of(text), "w")
    assert found is not None and found.largest == 510.0


def test_nan_and_infinity_are_passed_over() -> None:
    view = view_of("g (float[2] x) => (float[2] y) <float[2] c> { y = Add(x, c) }")
    view.initializers["c"].raw_data = np.array([np.inf, 3.0], "<f4").tobytes()
    assert values_of(view, "c") == ConstantValues(3.0, 3.0)


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_sums_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, block: int, axis: int) -> None:
    monkeypatch.setattr(constant_values, "BLOCK_BYTES", block)
    weight = np.random.default_rng(2).normal(size=(6, 5, 3, 2)).astype(np.float32)
    others = tuple(at for at in range(4) if at != axis % 4)
    total, largest, terms = largest_sum(weight, axis)
    assert total == pytest.approx(np.abs(weight).sum(others).max(), rel=1e-6)
    assert largest == np.abs(weight).max() and terms == weight.size // weight.shape[axis]


def test_an_empty_weight_adds_up_nothing() -> None:
    assert largest_sum(np.zeros((0, 3), np.float32), 0) == (0.0, 0.0, 0)
