# SPDX-License-Identifier: Apache-2.0
"""Batches walked sample by sample: rows where the model leaves the size free, batches where it fixes it."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.data.model_inputs import Input
from qdqtool.data.single_samples import SingleSamples, first_samples, row_count

FREE = Input("x", ("N", 3), np.dtype(np.float32))
BATCHES = [{"x": np.full((2, 3), place, np.float32)} for place in range(2)]


def test_batches_become_samples_again_and_again() -> None:
    samples = SingleSamples(BATCHES, [FREE])
    for _ in range(2):
        assert [(one["x"].shape, int(one["x"].flat[0])) for one in samples] == [((1, 3), 0)] * 2 + [((1, 3), 1)] * 2
        assert samples.seen == 4


def test_batches_stay_where_the_model_fixes_their_size() -> None:
    samples = SingleSamples(BATCHES, [Input("x", (2, 3), np.dtype(np.float32))])
    assert [one["x"].shape for one in samples] == [(2, 3)] * 2 and samples.seen == 4


def test_a_batch_whose_inputs_differ_in_length_is_one_sample() -> None:
    odd = {"x": np.zeros((4, 3), np.float32), "y": np.zeros((2, 3), np.float32)}
    samples = SingleSamples([odd], [FREE, Input("y", ("M", 3), np.dtype(np.float32))])
    assert [{name: len(array) for name, array in one.items()} for one in samples] == [{"x": 4, "y": 2}]


def test_a_scalar_is_one_sample() -> None:
    samples = SingleSamples([{"x": np.float32(1) * np.ones(())}], [Input("x", (), np.dtype(np.float32))])
    assert len(list(samples)) == samples.seen == 1


def test_rows_are_counted_where_the_arrays_agree() -> None:
    assert row_count(BATCHES[0]) == 2
    assert row_count({"x": np.zeros((2, 3)), "y": np.zeros(3)}) == row_count({"x": np.zeros(())}) == 0


@pytest.mark.parametrize(("most", "count"), [(1, 1), (2, 1), (3, 2), (99, 2)])
def test_the_first_samples_come_in_whole_batches(most: int, count: int) -> None:
    assert first_samples(BATCHES, most) == BATCHES[:count]


def test_of_the_first_samples_a_batch_of_unlike_arrays_is_one() -> None:
    odd = {"x": np.zeros((4, 3), np.float32), "y": np.zeros((2, 3), np.float32)}
    assert len(first_samples([odd] * 5, 3)) == 3
