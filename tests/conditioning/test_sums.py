# SPDX-License-Identifier: Apache-2.0
"""Sums that no order changes: against math.fsum, with denormals, huge numbers and cancellation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqtool.conditioning.sums import ExactVectorSum


def total(rows: np.ndarray) -> np.ndarray:
    one = ExactVectorSum(rows.shape[1])
    for row in rows:
        one.add(row.astype(np.float32))
    return one.total()


def test_equals_fsum_to_the_bit_in_any_order() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(200, 5)) * 10.0 ** rng.integers(-30, 30, (200, 5))).astype(np.float32)
    exact = [math.fsum(column.tolist()) for column in rows.T]
    assert total(rows).tolist() == exact
    assert total(rows[::-1]).tolist() == exact
    assert total(rows[rng.permutation(200)]).tolist() == exact


@pytest.mark.parametrize(
    ("values", "sums"),
    [
        ([1e30, 1.0, -1e30], 1.0),
        ([1e-45, 1e-45], 2 * float(np.float32(1e-45))),
        ([-3.4e38, -3.4e38], 2 * float(np.float32(-3.4e38))),
        ([0.0, -0.0], 0.0),
        ([-1.5, 0.25], -1.25),
    ],
)
def test_hard_values(values: list[float], sums: float) -> None:
    assert total(np.array(values)[:, None])[0] == sums


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_has_no_sum_is_refused(odd: float) -> None:
    with pytest.raises(ValueError, match="no exact sum"):
        ExactVectorSum(1).add(np.array([odd], np.float32))
