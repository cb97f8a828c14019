# SPDX-License-Identifier: Apache-2.0
"""Optimizers against their formulas in float64, in place, and taken up again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqtool.training.optimizers import AdamW, Optimizer, Sgd, clip_to_norm

F = np.float32
GRADIENTS = np.random.default_rng(3).normal(size=(5, 7)).astype(F)


def adam(gradients: np.ndarray, b1: float, b2: float, epsilon: float) -> np.ndarray:
    m = v = np.zeros(gradients.shape[1])
    for t, g in enumerate(gradients.astype(np.float64), 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        direction = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + epsilon)
    return direction


@pytest.mark.parametrize(("betas", "epsilon"), [((0.9, 0.999), 1e-8), ((0.5, 0.9), 0.1)])
def test_adamw_is_adam(betas: tuple[float, float], epsilon: float) -> None:
    optimizer = AdamW(7, betas, epsilon)
    for gradient in GRADIENTS:
        direction = optimizer.direction(gradient)
    assert direction.dtype == F
    assert np.allclose(direction, adam(GRADIENTS, *betas, epsilon), rtol=1e-5)


def test_the_first_step_of_adamw_is_the_sign() -> None:
    assert np.allclose(AdamW(7).direction(GRADIENTS[0] * F(1e-3)), np.sign(GRADIENTS[0]), rtol=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_momentum(nesterov: bool) -> None:
    optimizer, speed = Sgd(7, 0.9, nesterov), np.zeros(7)
    for gradient in GRADIENTS:
        direction = optimizer.direction(gradient)
        speed = 0.9 * speed + gradient
    wanted = GRADIENTS[-1] + 0.9 * speed if nesterov else speed
    assert np.allclose(direction, wanted, rtol=1e-5)


def test_gradients_are_left_alone() -> None:
    for optimizer in (AdamW(7), Sgd(7), Sgd(7, nesterov=True)):
        gradient = GRADIENTS[0].copy()
        optimizer.direction(gradient)
        assert gradient.tobytes() == GRADIENTS[0].tobytes()


@pytest.mark.parametrize("make", [lambda: AdamW(7), lambda: Sgd(7), lambda: Sgd(7, nesterov=True)])
def test_it_is_taken_up_again_to_the_bit(make: type[Optimizer]) -> None:
    whole, first, second = make(), make(), make()
    for gradient in GRADIENTS:
        wanted = whole.direction(gradient)
    for gradient in GRADIENTS[:3]:
        first.direction(gradient)
    second.restore({name: array.copy() for name, array in first.state().items()})
    for gradient in GRADIENTS[3:]:
        direction = second.direction(gradient)
    assert direction.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("make", [lambda: AdamW(7), lambda: Sgd(7)])
def test_it_forgets(make: type[Optimizer]) -> None:
    optimizer = make()
    first = optimizer.direction(GRADIENTS[0]).copy()
    optimizer.direction(GRADIENTS[1])
    optimizer.forget()
    assert optimizer.direction(GRADIENTS[0]).tobytes() == first.tobytes()


def test_a_long_gradient_is_shortened_and_a_short_one_is_not() -> None:
    gradient = np.array([3, 4], F)
    assert clip_to_norm(gradient, 1.0) == 5
    assert np.allclose(gradient, [0.6, 0.8])
    for largest in (0.0, 6.0):
        gradient = np.array([3, 4], F)
        assert clip_to_norm(gradient, largest) == 5
        assert gradient.tolist() == [3, 4]


def test_what_is_no_number_is_reported_and_left() -> None:
    assert math.isnan(clip_to_norm(np.array([1, np.nan], F), 1.0))
    assert math.isinf(clip_to_norm(np.array([1, np.inf], F), 1.0))
    assert clip_to_norm(np.array([1e30, 0], F), 0.0) == pytest.approx(1e30)
