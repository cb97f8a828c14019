# SPDX-License-Identifier: Apache-2.0
"""All that is trained as one float32 vector, each parameter a view of it. Not how it is moved (`optimizers.py`).

Scales are kept as logarithms, so that no step makes one negative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.formats import INT8

Float32 = npt.NDArray[np.float32]

_LEAST = 1e-8
_SMALL, _LARGE = 0.02, 5.0  # of the whole weight's: what is next to 0 may grow


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in the vector, and whether it is the logarithm of a scale."""

    start: int
    stop: int
    shape: tuple[int, ...]
    logarithm: bool


class Parameters:
    """Named float32 arrays in one vector, in a fixed order.

    Attributes:
        slots: name -> place; names of a shared scale have one.
        vector: float32[size], moved in place by the optimizer.
    """

    def __init__(
        self,
        values: Mapping[str, Float32],
        scales: Collection[str] = (),
        shared_scales: Mapping[str, str] | None = None,
    ) -> None:
        """Lay the parameters out."""
        self.slots: dict[str, Slot] = {}
        size = 0
        for name, value in values.items():
            if value.dtype != np.float32 or not np.isfinite(value).all():
                raise QdqError(
                    name, "is not a finite float32, which training needs", "repair the model, or --freeze it"
                )
            if name in scales and not (value > 0).all():
                raise QdqError(name, "is a scale that is not positive", "calibrate the model again")
            first = (shared_scales or {}).get(name, name)
            if first != name:
                self.slots[name] = self.slots[first]
                continue
            self.slots[name] = Slot(size, size + value.size, value.shape, name in scales)
            size += value.size
        self.vector = np.zeros(size, np.float32)
        for name, value in values.items():
            if (shared_scales or {}).get(name, name) == name:
                self._view(name)[...] = np.log(value) if self.slots[name].logarithm else value

    def _view(self, name: str, vector: Float32 | None = None) -> Float32:
        slot = self.slots[name]
        source = self.vector if vector is None else vector
        return source[slot.start : slot.stop].reshape(slot.shape)  # of shape () it stays an array

    def values(self, vector: Float32 | None = None) -> dict[str, Float32]:
        """What a graph is fed: views of the vector, scales as themselves."""
        found: dict[str, Float32] = {}
        for name, slot in self.slots.items():
            view = self._view(name, vector)
            found[name] = np.exp(view, out=np.empty(slot.shape, np.float32)) if slot.logarithm else view
        return found

    def gather(self, gradients: Mapping[str, Float32], fed: Mapping[str, Float32], into: Float32) -> None:
        """Add gradients to a vector of the same order.

        By the chain rule, d loss / d log s = s * d loss / d s; those of a shared scale add up.
        """
        for name, slot in self.slots.items():
            part = into[slot.start : slot.stop]
            gradient = gradients[name].reshape(-1)
            if slot.logarithm:
                gradient = gradient * fed[name].reshape(-1)
            part += gradient

    def filled(self, value_of: Mapping[str, npt.ArrayLike], other: float) -> Float32:
        """A vector of the same order: each named parameter filled with a value that broadcasts to it."""
        filled = np.full(self.vector.size, other, np.float32)
        for name, value in value_of.items():
            self._view(name, filled)[...] = value
        return filled

    def __iter__(self) -> Iterator[str]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)


def steps_of_weight(value: Float32, scale: Float32 | None = None, axis: int | None = None) -> Float32:
    """The size of one INT8 step of each weight, broadcast against it: the unit in which a rate is given.

    A weight changes what is computed only when it crosses half a step, so that is the natural size of an update, layer
    by layer and channel by channel, whatever the weights' magnitude is.

    Args:
        value: the weight, bias or affine parameter.
        scale: of its pair, 0-d or 1-d along `axis`; None for a parameter without one: its root mean square stands for
            the range, a vector of zeros has the least unit there is.
        axis: of the scale.

    Returns:
        float32 that broadcasts to `value`.
    """
    if scale is not None:
        if axis is None or scale.ndim == 0:
            return np.asarray(scale, np.float32).reshape(())
        shape = [1] * value.ndim
        shape[axis] = scale.size
        return scale.reshape(shape)
    mean_square = float(np.mean(np.square(value, dtype=np.float64))) if value.size else 0.0
    return np.asarray(max(4.0 * mean_square**0.5 / INT8.largest, _LEAST), np.float32)


def channel_steps(value: Float32) -> Float32:
    """The same for a weight of a network in float, channel by channel: 4 / 127 of rms[o] * rms[i] / rms.

    rms[o] is the root mean square over all of the weight that makes channel o (axis 0 or 1), rms[i] over what reads
    channel i. Where BatchNormalization is folded, channels differ by a hundred times, and what is divided in one layer
    is multiplied in the next one: there one step for a whole weight would move small channels by many times their size.

    Returns:
        float32 that broadcasts to `value`.
    """
    if value.ndim < 2 or not value.any():
        return steps_of_weight(value)
    square = np.square(value, dtype=np.float64)
    ways = (tuple(axis for axis in range(value.ndim) if axis != own) for own in (0, 1))
    first, second = (np.sqrt(square.mean(axis=axes, keepdims=True)) for axes in ways)
    whole = float(np.sqrt(square.mean()))
    size = np.clip(first * second / whole, _SMALL * whole, _LARGE * whole)
    return np.asarray(np.maximum(4.0 * size / INT8.largest, _LEAST), np.float32)
