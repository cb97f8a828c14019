# SPDX-License-Identifier: Apache-2.0
"""Moving averages of weights, and scales that follow the largest activations."""

from __future__ import annotations

import numpy as np

from qdqtool.training.averages import MovingMaxima, WeightAverage

F = np.float32


def test_the_average_follows_fast_at_first_and_slowly_then() -> None:
    average = WeightAverage(np.zeros(2, F), 0.9)
    average.add(np.ones(2, F), 1)  # decay 2 / 11
    assert np.allclose(average.vector, 9 / 11)
    before = average.vector.copy()
    average.add(np.zeros(2, F), 1000)
    assert np.allclose(average.vector, before * 0.9)


def test_the_average_is_a_copy() -> None:
    start = np.ones(2, F)
    average = WeightAverage(start, 0.5)
    average.add(np.zeros(2, F), 1)
    assert start.tolist() == [1, 1]


def scales() -> dict[str, np.ndarray]:
    return {"a": np.array(0.1, F), "b": np.array([0.2], F)}


def test_maxima_move_a_thousandth_and_scales_with_them() -> None:
    maxima = MovingMaxima(scales(), {"a": 127, "b": 255})
    maxima.add([25.4, 102.0])
    values = maxima.values()
    assert np.allclose(values["a"], 0.1 * 0.999 + 0.2 * 0.001, rtol=1e-6)
    assert np.allclose(values["b"], 0.2 * 0.999 + 0.4 * 0.001, rtol=1e-6)
    assert {name: value.shape for name, value in values.items()} == {"a": (), "b": (1,)}
    assert all(isinstance(value, np.ndarray) and value.dtype == F for value in values.values())


def test_what_is_tied_has_the_largest() -> None:
    maxima = MovingMaxima(scales(), {"a": 127, "b": 127}, shared_scales={"b": "a"}, decay=0.0)
    maxima.add([1.27, 2.54])
    assert np.allclose([maxima.values()["a"], maxima.values()["b"][0]], 0.02)
    maxima.add([5.08, 2.54])
    assert maxima.values()["a"] == maxima.values()["b"][0] == F(5.08) / F(127)


def test_scales_of_another_time() -> None:
    maxima = MovingMaxima(scales(), {"a": 127, "b": 127})
    assert np.allclose(maxima.values(np.array([12.7, 25.4], F))["b"], 0.2)


def test_a_scale_is_never_zero() -> None:
    maxima = MovingMaxima(scales(), {"a": 127, "b": 127}, decay=0.0)
    maxima.add([0.0, 0.0])
    assert all((value > 0).all() for value in maxima.values().values())
