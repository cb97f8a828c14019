# SPDX-License-Identifier: Apache-2.0
"""Moving averages: of the weights, and TAO's of the largest activations, whose scales follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


class WeightAverage:
    """average = decay * average + (1 - decay) * weights, with a smaller decay at first: (1 + t) / (10 + t).

    Attributes:
        vector: float32[size], the average.
    """

    def __init__(self, start: Float32, decay: float) -> None:
        self.vector = start.copy()
        self._decay = decay
        self._scratch = np.empty_like(start)

    def add(self, vector: Float32, step: int) -> None:
        """Take in the weights after step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        np.subtract(vector, self.vector, out=self._scratch)
        self._scratch *= np.float32(1 - decay)
        self.vector += self._scratch


class MovingMaxima:
    """Scales that follow the data: amax = decay * amax + (1 - decay) * max|x| of the batch, scale = amax / levels.

    As TAO does in training; tensors that share a scale have the largest of theirs.

    Attributes:
        scales: names of the scale initializers, in order.
        amax: float32[n].
    """

    def __init__(
        self,
        scales: Mapping[str, Float32],
        levels: Mapping[str, int],
        shared_scales: Mapping[str, str] | None = None,
        decay: float = 0.999,
    ) -> None:
        """Begin with the scales there are."""
        self.scales = tuple(scales)
        self._shapes = {name: value.shape for name, value in scales.items()}
        self._levels = np.array([levels[name] for name in self.scales], np.float32)
        start = np.array([value.reshape(()) for value in scales.values()], np.float32)
        self.amax = start * self._levels
        places = {name: place for place, name in enumerate(self.scales)}
        self._first = np.array([places[(shared_scales or {}).get(name, name)] for name in self.scales], np.intp)
        self._decay = np.float32(decay)

    def add(self, largest: Sequence[float] | Float32) -> None:
        """Take in max|x| of each scale's tensor in one batch, in the order of `scales`."""
        self.amax *= self._decay
        self.amax += (np.float32(1) - self._decay) * np.asarray(largest, np.float32)

    def values(self, amax: Float32 | None = None) -> dict[str, Float32]:
        """Scale initializer -> its value, never zero."""
        steps = (self.amax if amax is None else amax) / self._levels
        shared = np.zeros_like(steps)
        np.maximum.at(shared, self._first, steps)
        now = np.maximum(shared[self._first], np.finfo(np.float32).tiny)
        return {
            name: now[place : place + 1].reshape(self._shapes[name]).copy() for place, name in enumerate(self.scales)
        }
