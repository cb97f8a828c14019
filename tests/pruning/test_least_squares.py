# SPDX-License-Identifier: Apache-2.0
"""Weights by least squares: what is exact comes out, what is not known stays, and held-out samples decide."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.pruning.least_squares import FittedWeights, LeastSquares, joined

X = np.random.default_rng(3).normal(2, 1, size=(400, 3)).astype(np.float32)
W = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
SAMPLES = np.arange(400)


def fitted(y: np.ndarray, start: np.ndarray, *, intercept: bool = True, x: np.ndarray = X) -> FittedWeights:
    squares = LeastSquares(start, intercept=intercept)
    squares.add(x[:200], y[:200].astype(np.float32), SAMPLES[:200])
    squares.add(x[200:], y[200:].astype(np.float32), SAMPLES[: len(x) - 200])
    found = squares.solve()
    assert found is not None
    return found


def test_what_was_made_of_the_rows_comes_out() -> None:
    found = fitted(X @ W.T + [4, -1], np.zeros_like(W))
    assert found.weights == pytest.approx(W, abs=2e-2) and found.bias == pytest.approx([4, -1], abs=0.1)
    assert found.after < 1e-3 * found.before


def test_weights_that_are_right_stay_to_the_bit() -> None:
    found = fitted(X @ W.T, W, intercept=False)
    assert found.weights == pytest.approx(W, abs=1e-6) and (found.bias == 0).all()


def test_without_a_bias_the_means_are_part_of_what_is_fitted() -> None:
    """Y = 6 for x near 2: a slope alone says 3, a slope and a bias say 0 and 6."""
    x = np.random.default_rng(4).normal(2, 1e-3, size=(400, 1)).astype(np.float32)
    y = np.full((400, 1), 6.0)
    assert fitted(y, np.zeros((1, 1)), intercept=False, x=x).weights.item() == pytest.approx(3, rel=1e-2)
    both = fitted(y, np.zeros((1, 1)), x=x)
    assert both.weights.item() == pytest.approx(0, abs=1e-3) and both.bias == pytest.approx([6.0])


def test_noise_leaves_the_weights_where_they_were() -> None:
    """Five rows of noise about W: whatever is fitted to three of them does worse on the one that is held out."""
    start = np.array([[1.0, -2.0, 0.5]])
    rows = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    squares = LeastSquares(start, intercept=False)
    squares.add(rows, (rows @ start.T + [[9], [9], [9], [0]]).astype(np.float32), np.arange(4))
    found = squares.solve()
    assert found is not None and (found.weights == start).all() and found.after == found.before


def test_a_value_that_never_moves_gets_no_weight_of_its_own() -> None:
    x = X.copy()
    x[:, 1] = 0
    found = fitted(x @ W.T, np.array([[0.0, 7.0, 0.0], [0.0, 7.0, 0.0]]), x=x)
    assert found.weights[:, 1] == pytest.approx([7.0, 7.0]), "the ridge is towards the weight that is there"
    assert found.weights[:, [0, 2]] == pytest.approx(W[:, [0, 2]], abs=2e-2)


def test_one_sample_is_fitted_without_one_held_out() -> None:
    squares = LeastSquares(np.zeros((1, 3)), intercept=False)
    squares.add(X[:50], (X[:50] @ W[:1].T).astype(np.float32), np.zeros(50, np.int64))
    found = squares.solve()
    assert found is not None and np.isnan(found.after)
    assert found.weights == pytest.approx(W[:1], abs=0.2)


def test_no_rows_and_rows_without_a_number_give_nothing() -> None:
    assert LeastSquares(W, intercept=True).solve() is None
    squares = LeastSquares(W, intercept=True)
    squares.add(np.full((8, 3), np.nan, np.float32), np.ones((8, 2), np.float32), np.arange(8))
    assert squares.solve() is None


def test_groups_are_joined_in_order() -> None:
    parts = [FittedWeights(np.full((1, 2), float(n)), np.array([float(n)]), n, n / 2) for n in (1, 2)]
    whole = joined(parts)
    assert whole.weights.tolist() == [[1, 1], [2, 2]] and whole.bias.tolist() == [1, 2]
    assert (whole.before, whole.after) == (3, 1.5)
