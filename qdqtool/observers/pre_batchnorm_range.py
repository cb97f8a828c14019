# SPDX-License-Identifier: Apache-2.0
"""The range of what a convolution makes before its BatchNormalization, read from what comes out of the latter.

Fetching the tensor between the two keeps onnxruntime from folding them, which makes a run twice as slow, and inside
the fused group it is never rounded. With y = a x + b per channel::

    x lies between (min y - b) / a and (max y - b) / a        the same range to about 1e-4 of it

Only the range is had so, not the histogram.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.view import GraphView
from qdqtool.passes.fold_bn import folding_factors

Float32 = npt.NDArray[np.float32]
INF = np.float32(np.inf)
METHOD = "range before BatchNormalization"

# |b| / |a| above which (y - b) / a loses more than 1e-4 of a value's usual size: y is rounded to 2**-24 of itself.
_STEEPEST = 1e3
# Tensors that only one operator of these makes are folded by onnxruntime.
_FOLDED = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True)
class Affine:
    """How a tensor follows from another, per channel (axis 1).

    Attributes:
        source: y, the tensor that is fetched.
        factor: a, float64 as Python floats, none 0.
        shift: b.
        cut: whether an activation lies between y and what is fetched: then the range is that of the x that get through
            it, and channels of which nothing does are passed over.
    """

    source: str
    factor: tuple[float, ...]
    shift: tuple[float, ...]
    cut: bool = False

    def to_json(self) -> list[Any]:
        """As plain values."""
        return [self.source, list(self.factor), list(self.shift), self.cut]

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Affine:
        """What `to_json` gave.

        Raises:
            TypeError, ValueError: it is not that.
        """
        source, factor, shift, cut = document
        found = cls(str(source), tuple(map(float, factor)), tuple(map(float, shift)), bool(cut))
        numbers = (*found.factor, *found.shift)
        if len(found.factor) != len(found.shift) or not all(map(math.isfinite, numbers)) or 0.0 in found.factor:
            raise ValueError("factors of a range")
        return found


def before_norms(
    view: GraphView, names: Sequence[str], kept: Collection[str] = (), activated: Mapping[str, str] | None = None
) -> dict[str, Affine]:
    """Of wanted tensors those whose range follows from the BatchNormalization that alone reads them."""
    wanted, activated = frozenset(names), activated or {}
    found: dict[str, Affine] = {}
    for node in view.nodes:
        if node.op != "BatchNormalization" or node.inputs[0] not in wanted or node.outputs[0] not in wanted:
            continue
        made = view.producers.get(node.inputs[0])
        factors = folding_factors(view, node) if made is not None and made.op in _FOLDED else None
        if factors is not None and node.inputs[0] not in kept and _gentle(*factors):
            factor, shift = (tuple(map(float, one)) for one in factors)
            after = node.outputs[0]
            found[node.inputs[0]] = Affine(activated.get(after, after), factor, shift, after in activated)
    return found


def _gentle(factor: npt.NDArray[np.float64], shift: npt.NDArray[np.float64]) -> bool:
    """Whether x can be read back from a rounded y: no channel is flattened to its shift."""
    return bool(np.all(np.abs(factor) > 0) and np.all(np.abs(shift) <= _STEEPEST * np.abs(factor)))


class AffineRange:
    """The smallest and the largest x of ``y = a x + b``, over batches of y; merged like a set's bounds.

    What is kept is the range of each channel of y; x is computed from it at the end. Infinities in y are in it, so that
    `has_inf` tells them; NaN is not, it is found where y is counted. `kernel.add_all` fills `ends` while it counts y.

    Attributes:
        ends: float32[2, channels]: smallest y, +inf where nothing was added; largest y, -inf. Never -0.0.
    """

    __slots__ = ("_affine", "_cut", "ends")

    def __init__(self, affine: Affine) -> None:
        self._cut = affine.cut
        self._affine = np.array([affine.factor, affine.shift], np.float64)
        self.ends: Float32 = np.empty((2, len(affine.factor)), np.float32)
        self.ends[0], self.ends[1] = np.inf, -np.inf

    def add_in_numpy(self, y: Float32) -> None:
        """Take in one batch of y, float32[N, C, ...], as the C kernel does."""
        if not y.size:
            return
        rows = y.reshape(y.shape[0], y.shape[1], -1)
        with np.errstate(invalid="ignore"):  # of a signaling NaN
            lows, highs = rows.min((0, 2)), rows.max((0, 2))
            if np.isnan(lows).any():
                held = np.isnan(rows)
                lows, highs = np.where(held, INF, rows).min((0, 2)), np.where(held, -INF, rows).max((0, 2))
        self._widen(lows + np.float32(0.0), highs + np.float32(0.0))  # + 0.0 turns -0.0 into 0.0

    def merge(self, other: AffineRange) -> None:
        """Take in what another one has seen."""
        self._widen(*other.ends)

    def _widen(self, lows: Float32, highs: Float32) -> None:
        np.minimum(self.ends[0], lows, out=self.ends[0])
        np.maximum(self.ends[1], highs, out=self.ends[1])

    @property
    def low(self) -> float:
        """The smallest x, +inf where nothing was added."""
        return float(self._x()[0].min(initial=math.inf))

    @property
    def high(self) -> float:
        """The largest x, -inf where nothing was added."""
        return float(self._x()[1].max(initial=-math.inf))

    def _x(self) -> npt.NDArray[np.float64]:
        """Smallest and largest x of each channel; under a negative factor the largest y makes the smallest x."""
        through = self.ends[0] != self.ends[1] if self._cut else np.ones(self.ends.shape[1], np.bool_)
        if not through.any():
            through[:] = True
        factor, shift = self._affine[:, through]
        ends = (self.ends[:, through].astype(np.float64) - shift) / factor
        smallest_and_largest: npt.NDArray[np.float64] = np.where(factor > 0, ends, ends[::-1])
        return smallest_and_largest

    @property
    def amax(self) -> np.float32:
        """The largest |x|, 0 where nothing was added."""
        with np.errstate(over="ignore"):
            return np.float32(max(0.0, -self.low, self.high))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return self.low > self.high

    @property
    def has_inf(self) -> bool:
        """Whether y holds an infinity, or x leaves what float32 holds."""
        return not np.isfinite(self.amax)

    @property
    def all_zero(self) -> bool:
        """Whether every x is 0."""
        return not self.is_empty and self.amax == 0
