# SPDX-License-Identifier: Apache-2.0
"""The factor of each class of channels, by the predicted noise at the outputs of all that read it in INT8.

Classes that share a scale somewhere are decided together: tried are (share of a class in the ranges of its tensors)^p /
(largest weight that reads it)^r for a few p and r, the largest share or the mean one. To go on from there class by
class lowers the predicted noise, but not that of the outputs (docs/condition.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.channel_classes import ClassFamily
from qdqtool.conditioning.predict import Rounding, predicted_noise
from qdqtool.graph.channels.atoms import PINNED

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

LEAST_GAIN = 0.1  # decibels that a group of classes must win
LEAST_SPREAD = 2.0  # the largest factor over the smallest; with less, weights are only rounded more luckily
AS_MUCH = 0.1  # decibels that powers of two may win less and be taken
_POWERS = (0.25, 0.5, 0.75, 1.0)
_SMALLEST = 2.0**-16  # factors lie between this and its inverse


@dataclass(frozen=True, eq=False)
class ClassChoice:
    """What was decided.

    Attributes:
        factors: float64, by atom; 1 for what stays.
        gains: class -> decibels that its group is predicted to win.
    """

    factors: Float64
    gains: dict[int, float]


def choose_class_factors(families: Sequence[ClassFamily], size: int, rounding: Rounding) -> ClassChoice:
    """The factors of all classes."""
    factors = np.ones(size)
    gains: dict[int, float] = {}
    for group in linked_groups(families):
        found, decibel = _FactorGroup(group, size).choose(rounding)
        if decibel >= LEAST_GAIN:
            factors = factors * found
            gains.update(dict.fromkeys(np.nonzero(found != 1)[0].tolist(), decibel))
    return ClassChoice(factors, gains)


def weaken(families: Sequence[ClassFamily], choice: ClassChoice, share: float) -> ClassChoice:
    """A choice with its factors to a power below 1: less goes from activations into weights."""
    factors, gains = np.ones_like(choice.factors), dict[int, float]()
    for linked in linked_groups(families):
        group = _FactorGroup(linked, choice.factors.size)
        own = np.where(group.alive, choice.factors, 1.0)
        made = to_power_of_two(own**share) if (own == to_power_of_two(own)).all() else own**share
        made = made.astype(np.float32).astype(np.float64)
        decibel = _decibel(group.noise(np.ones_like(made)), group.noise(made))
        if decibel >= LEAST_GAIN:
            factors = factors * made
            gains.update(dict.fromkeys(np.nonzero(made != 1)[0].tolist(), decibel))
    return ClassChoice(factors, gains)


def choose_factors(family: ClassFamily, rounding: Rounding) -> tuple[Float64, float]:
    """The factors of one group of tensors by itself, by class, and the decibels that they win."""
    size = int(family.classes.max(initial=PINNED)) + 1
    return _FactorGroup([family], size).choose(rounding) if family.free.any() else (np.ones(size), 0.0)


def linked_groups(families: Sequence[ClassFamily]) -> list[list[ClassFamily]]:
    """Families that have a class in common, directly or by others, in their order."""
    groups: list[tuple[set[int], list[ClassFamily]]] = []
    for family in families:
        own = set(family.classes[family.free].tolist())
        if not own:
            continue
        met = [one for one in groups if one[0] & own]
        groups = [one for one in groups if not one[0] & own]
        members = [one for _, joined in met for one in joined]
        groups.append((own.union(*(classes for classes, _ in met)), [*members, family]))
    return [members for _, members in groups]


class _FactorGroup:
    """Families that are decided together."""

    def __init__(self, families: Sequence[ClassFamily], size: int) -> None:
        self.families, self.size = families, size
        self.alive = np.zeros(size, np.bool_)
        for one in families:
            seen = one.classes[one.free & (one.family.table.amax > 0)]
            self.alive[seen] = True
        self.floor = np.zeros(size)  # below it a channel would grow beyond a clipping value that is given
        for one in families:
            if one.family.clip is not None:
                share = np.minimum(one.family.table.amax / max(one.family.clip, 1e-30), 1.0)
                np.maximum.at(self.floor, one.classes, share)
        self.bound = any(one.family.clip is not None for one in families)
        self.anchored = not self.bound and any((~one.free).any() for one in families)

    def choose(self, rounding: Rounding) -> tuple[Float64, float]:
        """The best factors found, by atom, and the decibels that they win."""
        start = np.ones(self.size)
        before = self.noise(start)
        best, least = start, before
        for factors in self._shares():
            noise = self.noise(made := self._brought(factors))
            if noise < least:
                best, least = made, noise
        exact = np.where(best == 1, 1.0, to_power_of_two(best))
        exact = np.where(exact < self.floor, 2 * exact, exact) if self.bound else exact
        rounded = self.noise(exact)
        # Where scales are given, what rounding to a power of two leaves of their range is lost.
        if rounding == "power-of-two" or (not self.bound and _decibel(rounded, least) <= AS_MUCH):
            best, least = exact, rounded
        own = best[self.alive]
        if not own.size or own.max() < LEAST_SPREAD * own.min():
            return start, 0.0
        return best, _decibel(before, least)

    def noise(self, factors: Float64) -> float:
        """Noise over signal, summed over all that reads the group in INT8."""
        found = 0.0
        for one in self.families:
            own = factors[one.classes].astype(np.float32)
            found += float(predicted_noise(one.family.table, one.family.consumers, own, one.family.clip).sum())
        return found

    def _shares(self) -> list[Float64]:
        """(share of the ranges of its tensors)^p / (largest weight that reads it)^r, by class, for a few p and r."""
        largest, mean, heavy = np.zeros(self.size), np.zeros(self.size), np.zeros(self.size)
        counts = np.zeros(self.size)
        for one in self.families:
            amax = _clipped(one)
            share = np.maximum(amax / max(float(amax.max(initial=0)), 1e-30), _SMALLEST)
            np.maximum.at(largest, one.classes, share)
            np.add.at(mean, one.classes, np.log(share))
            np.add.at(counts, one.classes, 1)
            for consumer in one.family.consumers:
                if consumer.rounded != "no":
                    used = consumer.channels >= 0
                    peak = np.abs(consumer.cube).max(axis=(1, 3)).reshape(-1)
                    peak = peak / max(float(peak.max(initial=0)), 1e-30)
                    with np.errstate(invalid="ignore"):  # weights without end are refused where they are measured
                        np.maximum.at(heavy, one.classes[consumer.channels[used]], peak[used])
        mean = np.exp(mean / np.maximum(counts, 1))
        heavy = np.where(heavy > 0, heavy, heavy.max(initial=1e-30))
        powers = [(power, rest) for power in _POWERS for rest in dict.fromkeys((0.0, 1.0 - power))]
        return [share**power * heavy**-rest for share in (largest, mean) for power, rest in powers]

    def _brought(self, factors: Float64) -> Float64:
        """Within bounds; the largest divided value as it was where nothing else says how large all are."""
        made = np.where(self.alive, np.maximum(factors, 1e-30), 1.0)
        if not self.anchored:
            made = np.where(self.alive, made * self._level(made), 1.0)
        made = np.clip(np.maximum(made, self.floor), _SMALLEST, 1 / _SMALLEST)
        return np.where(self.alive, made, 1.0).astype(np.float32).astype(np.float64)

    def _level(self, factors: Float64) -> float:
        """How much larger the largest divided value is than the largest one: of each family where scales are given."""
        ratios, before, after = [1e-30], 1e-30, 0.0
        for one in self.families:
            amax = _clipped(one)
            divided = float((amax / factors[one.classes])[one.free].max(initial=0))
            ratios.append(divided / max(float(amax.max(initial=0)), 1e-30))
            before, after = max(before, float(amax.max(initial=0))), max(after, divided)
        return max(ratios) if self.bound else after / before


def to_power_of_two(factors: npt.NDArray[np.floating]) -> Float64:
    """The nearest power of two of each factor, by the logarithm: float64."""
    return np.exp2(np.rint(np.log2(factors.astype(np.float64))))


def _clipped(one: ClassFamily) -> Float64:
    """The largest value of each channel, but for what a clipping value that is given cuts off."""
    amax = one.family.table.amax
    return amax if one.family.clip is None else np.minimum(amax, one.family.clip)


def _decibel(before: float, after: float) -> float:
    return float(10 * np.log10(before / after)) if after > 0 and before > 0 else 0.0
