# SPDX-License-Identifier: Apache-2.0
"""Sums over weights: large ones in parts, and what no runtime takes is a guess."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from qdqtool.datafree import linear
from qdqtool.datafree.moments import gaussian

WEIGHT = np.random.default_rng(1).integers(-8, 8, (6, 10)).astype(np.float32)


@pytest.mark.parametrize("left", [False, True])
def test_a_large_matrix_in_parts_gives_the_same_sums(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gaussian(np.arange(10.0)[:, None] if left else np.arange(6.0)[None], np.ones((1, 1)))
    whole = linear.matrix_product(x, WEIGHT, left)
    monkeypatch.setattr(linear, "BLOCK_BYTES", 80)
    parts = linear.matrix_product(x, WEIGHT, left)
    assert np.array_equal(parts.mean, whole.mean) and np.array_equal(parts.var, whole.var)
    assert parts.mean.shape == ((6, 1) if left else (1, 10))


def test_a_large_convolution_in_parts_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gaussian(np.arange(5.0).reshape(1, 5, 1), np.ones((1, 5, 1)))
    weight = WEIGHT.reshape(6, 5, 2)
    whole = linear.convolution(x, weight, np.zeros(()), 1)
    monkeypatch.setattr(linear, "BLOCK_BYTES", 80)
    parts = linear.convolution(x, weight, np.zeros(()), 1)
    assert np.array_equal(parts.mean, whole.mean) and np.array_equal(parts.var, whole.var)


def test_no_float64_copy_of_a_large_matrix_is_made() -> None:
    """64 MiB of a filled constant, which is one number: in float64 it would be 128 MiB, twice."""
    weight = np.broadcast_to(np.float32(0.5), (4096, 4096))
    tracemalloc.start()
    found = linear.matrix_product(gaussian(np.zeros((1, 4096)), np.ones((1, 4096))), weight, False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.var.shape == (1, 4096) and np.allclose(found.var, 1024)  # 4096 * 0.5^2, exact in float64
    assert peak < 100 << 20


def test_parameters_of_different_lengths_are_a_guess() -> None:
    found = linear.normalized(np.ones(3), np.zeros(4), None, -1)
    assert found.mean.size == 1 and not found.known


@pytest.mark.parametrize(("rank", "shape"), [(None, (1,)), (0, (1,)), (1, (1,)), (2, (1, 4)), (4, (1, 4, 1, 1))])
def test_channels_stand_at_their_axis_where_the_output_has_it(rank: int | None, shape: tuple[int, ...]) -> None:
    found = linear.normalized(np.arange(1.0, 5.0), np.zeros(4), rank, 1)
    assert found.mean.size == found.var.size == int(np.prod(shape))
    assert rank is None or rank < 2 or found.mean.shape == shape
