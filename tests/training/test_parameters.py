# SPDX-License-Identifier: Apache-2.0
"""Parameters lie in one vector and come out as they went in; scales move in their logarithm."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.training.parameters import Parameters, channel_steps, steps_of_weight

F = np.float32


def some() -> dict[str, np.ndarray]:
    return {"w": np.arange(6, dtype=F).reshape(2, 3), "b": np.array(7, F), "s": np.array([0.5, 2.0], F)}


def test_values_come_back_and_are_views() -> None:
    parameters = Parameters(some())
    values = parameters.values()
    assert {name: value.tobytes() for name, value in values.items()} == {n: v.tobytes() for n, v in some().items()}
    assert {name: value.shape for name, value in values.items()} == {"w": (2, 3), "b": (), "s": (2,)}
    parameters.vector[6] = 8
    assert isinstance(values["b"], np.ndarray)
    assert values["b"] == 8
    assert list(parameters) == ["w", "b", "s"]
    assert len(parameters) == 3


def test_the_start_values_are_not_changed() -> None:
    start = some()
    Parameters(start).vector[...] = 0
    assert start["w"][1, 2] == 5


def test_scales_are_logarithms_and_stay_positive() -> None:
    parameters = Parameters(some(), scales=["s"])
    assert np.allclose(parameters.values()["s"], [0.5, 2.0])
    parameters.vector[-2:] -= 100
    assert (parameters.values()["s"] > 0).all()
    scalar = Parameters({"s": np.array(0.25, F)}, scales=["s"]).values()["s"]
    assert isinstance(scalar, np.ndarray)
    assert scalar.dtype == F
    assert scalar.shape == ()


def test_gradients_are_gathered_by_the_chain_rule() -> None:
    parameters = Parameters(some(), scales=["s"])
    into = np.ones(9, F)
    gradients = {"w": np.full((2, 3), 2, F), "b": np.array(3, F), "s": np.array([10, 10], F)}
    parameters.gather(gradients, parameters.values(), into)
    assert np.allclose(into, [3] * 6 + [4] + [6, 21])


def test_tied_scales_are_one_number_and_their_gradients_add_up() -> None:
    values = {"a": np.array(0.5, F), "b": np.array(0.5, F)}
    parameters = Parameters(values, scales=["a", "b"], shared_scales={"b": "a"})
    assert parameters.vector.size == 1
    into = np.zeros(1, F)
    parameters.gather({"a": np.array(1, F), "b": np.array(3, F)}, parameters.values(), into)
    assert np.allclose(into, 2)
    parameters.vector += 1
    assert parameters.values()["a"] == parameters.values()["b"]


def test_another_vector_of_the_same_order() -> None:
    parameters = Parameters(some())
    other = np.arange(9, dtype=F)[::-1].copy()
    assert parameters.values(other)["s"].tolist() == [1, 0]
    filled = parameters.filled({"w": np.array([[1], [2]], F), "b": 5}, 9)
    assert filled.tolist() == [1, 1, 1, 2, 2, 2, 5, 9, 9]


@pytest.mark.parametrize("value", [np.array([1, np.nan], F), np.array([np.inf], F), np.array([1.0])])
def test_what_is_no_finite_float32_is_refused(value: np.ndarray) -> None:
    with pytest.raises(QdqError, match=r"^w: .*finite float32"):
        Parameters({"w": value})


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(QdqError, match=r"^s: .*not positive"):
        Parameters({"s": np.zeros(2, F)}, scales=["s"])


def test_the_step_of_a_weight_is_its_scale_along_the_axis() -> None:
    weight = np.ones((2, 3), F)
    scale = np.array([0.1, 0.2, 0.3], F)
    assert steps_of_weight(weight, scale, 1).shape == (1, 3)
    assert steps_of_weight(weight, np.array([0.1, 0.2], F), 0).shape == (2, 1)
    assert steps_of_weight(weight, np.array(0.5, F)) == F(0.5)


def test_the_step_without_a_scale_follows_the_size_of_the_weights() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(F)
    one = steps_of_weight(weight)
    assert np.isclose(steps_of_weight(weight * F(10)), one * 10)
    assert 0.02 < float(one) < 0.05
    assert 0 < steps_of_weight(np.zeros(3, F)) < 1e-6


def test_steps_of_channels_go_with_their_size() -> None:
    """Channels of one layer divided by what the next one multiplies: the steps go along, a whole weight's do not."""
    random = np.random.default_rng(5)
    weight = random.normal(size=(32, 24, 3, 3)).astype(F)
    made, read = (np.exp2(random.integers(-2, 2, size)).astype(F) for size in (32, 24))
    factors = made[:, None, None, None] / read[None, :, None, None]
    one, other = channel_steps(weight), channel_steps(weight * factors)
    assert one.shape == (32, 24, 1, 1) and np.std(np.log(one)) < 0.2
    parts = other / one / factors
    assert parts.max() / parts.min() < 1.5, "but for a factor of the whole"
    assert np.isclose(np.mean(one), float(steps_of_weight(weight)), rtol=0.1)


def test_a_channel_of_zeros_has_a_step_and_a_vector_has_one() -> None:
    weight = np.ones((3, 2), F)
    weight[1] = 0
    found = channel_steps(weight)
    assert (found[1] > 0).all() and (found[1] < found[0]).all()
    vector = np.array([1.0, 2.0], F)
    assert channel_steps(vector) == steps_of_weight(vector)
    assert channel_steps(np.zeros((2, 2), F)) == steps_of_weight(np.zeros((2, 2), F))
