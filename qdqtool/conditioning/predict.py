# SPDX-License-Identifier: Apache-2.0
"""What dividing the channels of tensors of one scale does to the error at their readers' outputs.

With factors f, clipping value t and weights w: a consumer's noise is
    sum_c W_c e_c(t f_c)  +  sum_o,c,k (Q(w f) / f - w)^2 X_c,      W_c = sum_o,k w^2
over its signal sum_c W_c X_c; e_c is the error of channel c (its histogram), X_c its mean square, Q the rounding of the
weight per output channel. Channels count as independent: their common mean is left to the bias correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_histograms import ErrorTable
from qdqtool.formats import INT8
from qdqtool.runtime.array_file import drop_pages

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Rounding = Literal["float", "power-of-two"]

_PART = 1 << 17  # values of a weight that are rounded at a time
_CLIPS = 2.0 ** (-np.arange(40) / 4)  # from the largest value down, four to the octave


@dataclass(frozen=True, eq=False)
class Weight:
    """A consumer of one class of tensors.

    Attributes:
        key: its first output.
        values: float32 or float64 [groups, outputs, inputs, taps]; see `cube_view`. It may lie in a file.
        channels: int64 [groups * inputs], the row of the error table that each input channel holds; -1: none.
        rounded: whether the weight itself is quantized: "channel", "tensor" or "no".
    """

    key: str
    values: npt.NDArray[np.floating]
    channels: npt.NDArray[np.int64]
    rounded: str

    @property
    def cube(self) -> Float64:
        """The values as float64, made each time: those of all weights of a large model are not held at once."""
        made = self.values.astype(np.float64, copy=False)
        drop_pages(self.values)
        return made

    def parts(self, *, whole: bool) -> Iterator[Float64]:
        """`cube` in parts of some outputs that fit into a cache; in one where it is small, or `whole` says so."""
        size = self.values.size
        rows = self.values.shape[1] if whole or size <= _PART else max(1, _PART * self.values.shape[1] // size)
        for first in range(0, self.values.shape[1], rows):
            yield self.values[:, first : first + rows].astype(np.float64, copy=False)
        drop_pages(self.values)

    @cached_property
    def power(self) -> Float64:
        """Sum of squares of what each input channel is multiplied with: float64 [groups * inputs]."""
        found: Float64 = np.square(self.cube).sum(axis=(1, 3)).reshape(-1)
        return found


def predicted_noise(
    table: ErrorTable, consumers: Sequence[Weight], factors: Float32, clip: float | None = None
) -> Float64:
    """Noise over signal of each consumer at the clipping value given, or at the best one: float64[consumers]."""
    wide = factors.astype(np.float64)
    top = float((table.amax / wide).max(initial=0.0))
    if not top > 0 or not consumers:
        return np.zeros(len(consumers))
    _, noise = _at_best_clip(table, consumers, wide, clip)
    fixed = np.array([_rounding(table, consumer, wide) for consumer in consumers])
    found: Float64 = noise + fixed
    return found


def best_clip(table: ErrorTable, consumers: Sequence[Weight], factors: Float64) -> float:
    """The clipping value at which all consumers together lose least; of no use without consumers."""
    return _at_best_clip(table, consumers, factors, None)[0]


def _at_best_clip(
    table: ErrorTable, consumers: Sequence[Weight], factors: Float64, clip: float | None
) -> tuple[float, Float64]:
    """A clipping value, and what rounding and clipping cost each consumer there."""
    top = float((table.amax / factors).max(initial=0.0))
    clips = top * _CLIPS if clip is None else np.array([clip])
    noise = relative_shares(table, consumers) @ table.at(np.multiply.outer(clips, factors)).T
    best = int(noise.sum(axis=0).argmin())
    return float(clips[best]), noise[:, best]


def relative_shares(table: ErrorTable, consumers: Sequence[Weight]) -> Float64:
    """How much of each consumer's relative noise each row brings per unit of its error: float64 [consumers, rows]."""
    shares = [_share(table, consumer) for consumer in consumers]
    return np.stack(shares) if shares else np.zeros((0, table.amax.size))


def _share(table: ErrorTable, consumer: Weight) -> Float64:
    """How much of a consumer's relative noise each row of the table brings per unit of its error: float64 [rows]."""
    used = consumer.channels >= 0
    rows = np.bincount(consumer.channels[used], weights=consumer.power[used], minlength=table.amax.size)
    found: Float64 = rows / max(float(rows @ table.energy), 1e-30)
    return found


def _rounding(table: ErrorTable, consumer: Weight, factors: Float64) -> float:
    """Relative noise from rounding the weight, symmetric to [-127, 127] steps of its largest value."""
    if consumer.rounded == "no":
        return 0.0
    used, shape = consumer.channels >= 0, consumer.values.shape
    own = np.where(used, factors[consumer.channels], 1.0).reshape(shape[0], 1, shape[2], 1)
    energy = np.where(used, table.energy[consumer.channels], 0.0).reshape(own.shape)
    whole = consumer.rounded != "channel"
    noise = sum(_rounding_noise(part, own, energy, whole=whole) for part in consumer.parts(whole=whole))
    return noise / max(float((consumer.power * energy.reshape(-1)).sum()), 1e-30)


def _rounding_noise(cube: Float64, own: Float64, energy: Float64, *, whole: bool) -> float:
    """The noise from rounding some of a weight's outputs, with one step for all of it or one for each output."""
    scaled = cube * own
    step = np.abs(scaled).max(axis=(0, 1, 2, 3) if whole else (2, 3), keepdims=True) / INT8.largest
    step[step == 0] = 1.0
    off = (np.rint(scaled / step) * step - scaled) / own
    return float((np.square(off) * energy).sum())
