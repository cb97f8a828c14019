# SPDX-License-Identifier: Apache-2.0
"""Optimizers in NumPy, in place, over one float32 vector: which way to go. How far is the schedule's matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.training.options import UpdateOptions, optimizer_of

Float32 = npt.NDArray[np.float32]


class Optimizer(Protocol):
    """Turns gradients into directions, and remembers."""

    def direction(self, gradient: Float32) -> Float32:
        """What is to be subtracted, for a rate of 1; the optimizer's own array, valid until the next call."""
        ...

    def state(self) -> dict[str, Float32]:
        """What is remembered, by name."""
        ...

    def restore(self, state: Mapping[str, Float32]) -> None:
        """Take up what `state` gave."""
        ...

    def forget(self) -> None:
        """Begin anew, as after a step that went wrong."""
        ...


class AdamW:
    """Adam (Kingma and Ba 2015); decay is applied beside it, decoupled (Loshchilov and Hutter 2019).

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  direction = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)
    """

    def __init__(self, size: int, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self._betas = betas
        self._epsilon = np.float32(epsilon)
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._count = np.zeros((), np.float32)
        self._out, self._scratch = np.empty(size, np.float32), np.empty(size, np.float32)

    def direction(self, gradient: Float32) -> Float32:
        """See `Optimizer`."""
        one, two = self._betas
        self._count += 1
        count = int(self._count)
        out, scratch = self._out, self._scratch
        np.multiply(gradient, np.float32(1 - one), out=scratch)
        self._mean *= np.float32(one)
        self._mean += scratch
        np.square(gradient, out=scratch)
        scratch *= np.float32(1 - two)
        self._square *= np.float32(two)
        self._square += scratch
        np.multiply(self._square, np.float32(1 / (1 - two**count)), out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += self._epsilon
        np.multiply(self._mean, np.float32(1 / (1 - one**count)), out=out)
        out /= scratch
        return out

    def state(self) -> dict[str, Float32]:
        """See `Optimizer`."""
        return {"mean": self._mean, "square": self._square, "count": self._count}

    def restore(self, state: Mapping[str, Float32]) -> None:
        """See `Optimizer`."""
        for name, own in self.state().items():
            own[...] = state[name]

    def forget(self) -> None:
        """See `Optimizer`."""
        for own in self.state().values():
            own[...] = 0


class Sgd:
    """Gradient descent with momentum: b = momentum b + g; direction = b, or g + momentum b by Nesterov."""

    def __init__(self, size: int, momentum: float = 0.9, nesterov: bool = False) -> None:
        self._momentum = np.float32(momentum)
        self._nesterov = nesterov
        self._speed, self._out = np.zeros(size, np.float32), np.empty(size, np.float32)

    def direction(self, gradient: Float32) -> Float32:
        """See `Optimizer`."""
        self._speed *= self._momentum
        self._speed += gradient
        if not self._nesterov:
            return self._speed
        np.multiply(self._speed, self._momentum, out=self._out)
        self._out += gradient
        return self._out

    def state(self) -> dict[str, Float32]:
        """See `Optimizer`."""
        return {"speed": self._speed}

    def restore(self, state: Mapping[str, Float32]) -> None:
        """See `Optimizer`."""
        self._speed[...] = state["speed"]

    def forget(self) -> None:
        """See `Optimizer`."""
        self._speed[...] = 0


def clip_to_norm(gradient: Float32, largest: float) -> float:
    """Shorten a gradient, in place, to a global norm; its norm before is returned, NaN or Inf where it is none."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(np.einsum("i,i->", gradient, gradient, dtype=np.float64)))
    if largest and np.isfinite(norm) and norm > largest:
        gradient *= np.float32(largest / norm)
    return norm


def make_optimizer(options: UpdateOptions, size: int) -> Optimizer:
    """The optimizer that was asked for, for a vector of so many elements."""
    name, settings = optimizer_of(options.optimizer)
    return Sgd(size, **settings) if name == "sgd" else AdamW(size, **settings)
