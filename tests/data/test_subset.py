# SPDX-License-Identifier: Apache-2.0
"""Samples picked by what they hold: order, batch and copies change nothing."""

from __future__ import annotations

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.data.model_inputs import Input
from qdqtool.data.subset import pick_samples

FREE = (Input("x", ("N", 3), np.dtype(np.float32)),)
FIXED = (Input("x", (4, 3), np.dtype(np.float32)),)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


def batches(values: np.ndarray, size: int) -> list[Batch]:
    return [{"x": values[start : start + size]} for start in range(0, len(values), size)]


def bytes_of(picked: list[Batch]) -> list[bytes]:
    return [one["x"].tobytes() for one in picked]


def test_the_same_samples_in_the_same_order_however_they_come() -> None:
    values = rows(40)
    want = bytes_of(pick_samples(batches(values, 1), FREE, 6))
    assert len(want) == 6
    for size in (1, 7, 40):
        for order in (values, values[::-1]):
            assert bytes_of(pick_samples(batches(order, size), FREE, 6)) == want


def test_each_sample_is_one_row_and_one_of_the_data() -> None:
    values = rows(10)
    picked = pick_samples(batches(values, 5), FREE, 3)
    assert all(one["x"].shape == (1, 3) for one in picked)
    assert {one["x"].tobytes() for one in picked} <= {row.tobytes() for row in values}


def test_a_sample_that_comes_twice_counts_once() -> None:
    values = rows(5)
    doubled = np.concatenate([values, values])
    assert bytes_of(pick_samples(batches(doubled, 2), FREE, 8)) == bytes_of(pick_samples(batches(values, 1), FREE, 8))


def test_fewer_samples_than_wanted_are_all_taken() -> None:
    assert len(pick_samples(batches(rows(3), 1), FREE, 16)) == 3
    assert pick_samples([], FREE, 16) == []


def test_another_draw_of_data_gives_other_samples() -> None:
    assert bytes_of(pick_samples(batches(rows(9), 1), FREE, 2)) != bytes_of(
        pick_samples(batches(rows(9, 1), 1), FREE, 2)
    )


def test_a_fixed_batch_is_filled_from_rows_whatever_batch_they_were_in() -> None:
    values = rows(16)
    want = bytes_of(pick_samples(batches(values, 4), FIXED, 8))
    shuffled = values[np.random.default_rng(1).permutation(16)]
    assert bytes_of(pick_samples(batches(shuffled, 4), FIXED, 8)) == want and len(want) == 2


def test_a_fixed_batch_that_is_larger_than_what_is_wanted_is_filled_up() -> None:
    picked = pick_samples(batches(rows(4), 4), FIXED, 3)
    assert len(picked) == 1 and picked[0]["x"].shape == (4, 3)
    assert (picked[0]["x"][3] == picked[0]["x"][2]).all()


def test_inputs_that_share_no_first_axis_stay_whole() -> None:
    inputs = (Input("x", ("N", 3), np.dtype(np.float32)), Input("k", (2,), np.dtype(np.float32)))
    data: list[Batch] = [{"x": rows(2, seed), "k": np.zeros(2, np.float32)} for seed in range(3)]
    picked = pick_samples(data, inputs, 2)
    assert len(picked) == 2 and all(one["x"].shape == (2, 3) for one in picked)


def test_what_is_kept_is_a_copy() -> None:
    values = rows(2)
    picked = pick_samples(batches(values, 2), FREE, 2)
    values[:] = 0
    assert all(one["x"].any() for one in picked)
