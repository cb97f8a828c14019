# SPDX-License-Identifier: Apache-2.0
"""Whether a cache was made from another export of a model: its scales against what constants hold, and shifted names.

Exports number their tensors, so most names of one export stand for other tensors in the next. TensorRT takes such a
cache without a word. Constants tell: a calibrator clips what it sees.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qdqtool.cache.text import Cache
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.formats import INT8

_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
_WIDENED = 2.01  # a histogram of several batches is up to twice as wide as the largest value
_NOTHING = 1e-5  # TensorRT gives tensors of zeros an amax of 1.2e-7 at times
_MANY = 3  # constants whose amax is too large, where none is all zero
_FARTHEST = 2000  # shift that is tried
_LOST, _LOST_PART = 5, 0.05  # names that fit only when shifted, and their part, from which a shift is proof


@dataclass(frozen=True)
class ConstantFact:
    """What a constant of a model holds.

    Attributes:
        amax: its largest absolute value; None where it holds no value at all.
        neighbors: the other tensors that its readers read and make: tools give a constant their scale, at a Concat.
    """

    amax: float | None
    neighbors: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportEvidence:
    """What speaks against a cache and a model of one export.

    Attributes:
        constants: entry -> why that constant cannot have such a scale.
        empty: those of them that hold zeros or nothing, which no range can be taken from.
        integers: entries whose tensors are integers, which have no scale.
        shift: what the names that are numbers differ by: added to them, all fit; 0 where they fit no better shifted.
        fits: how many names that are numbers are float tensors of the model: shifted, as they are, of how many.
    """

    constants: Mapping[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    shift: int = 0
    fits: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_proof(self) -> bool:
        """Whether the cache cannot be that of the model: its constants contradict it, or all names fit when shifted."""
        return self._contradicts or self._is_shifted

    @property
    def _contradicts(self) -> bool:
        """A constant of zeros with a range, or several constants too large."""
        return bool(self.empty) or len(self.constants) >= _MANY

    @property
    def _is_shifted(self) -> bool:
        """Whether all numbered names fit when shifted, and clearly fewer as they are."""
        shifted, as_is, total = self.fits
        return bool(self.shift) and shifted - as_is >= max(_LOST, _LOST_PART * total)

    def __bool__(self) -> bool:
        """Whether there is anything to say."""
        return self.is_proof or bool(self.shift)

    def sentences(self) -> list[str]:
        """The evidence, a sentence each; none where there is none."""
        said = []
        if self._contradicts:
            name = next(iter(self.empty or self.constants))
            many = f"{counted(len(self.constants), 'constant')} contradict{'' if len(self.constants) > 1 else 's'} it"
            said.append(f"{many}, such as {name} ({self.constants[name]})")
            if self.integers:
                have = "integer tensor has" if len(self.integers) == 1 else "integer tensors have"
                said.append(f"{len(self.integers)} {have} a scale, such as {self.integers[0]}")
        if self.shift:
            shifted, as_is, total = self.fits
            way = "minus" if self.shift < 0 else "plus"
            said.append(f"numbered names {way} {abs(self.shift)} fit {shifted} of {total}, as they are {as_is}")
        return said

    def to_json(self) -> dict[str, Any]:
        """As `cache check --json` prints it."""
        fits = dict(zip(("shifted", "as_they_are", "of"), self.fits, strict=True))
        facts = {"constants": dict(self.constants), "integers": list(self.integers), "shift": self.shift, "fits": fits}
        return {"proof": self.is_proof, **facts}


def find_evidence(
    entries: Mapping[str, np.float32],
    floats: Iterable[str],
    constants: Mapping[str, ConstantFact],
    integers: Collection[str] = (),
) -> ExportEvidence:
    """What in a cache contradicts a model.

    A constant contradicts where its amax by the cache is more than twice what it holds: calibrators of TensorRT clip,
    and a histogram is at most doubled. One that has the scale of a tensor beside it does not: tools share scales.
    """
    against: dict[str, str] = {}
    empty = []
    for name, scale in entries.items():
        fact = constants.get(name)
        amax = INT8.amax_of(scale)
        if fact is None or amax <= max(_NOTHING, _WIDENED * (fact.amax or 0.0)) or _is_shared(scale, fact, entries):
            continue
        held = "no values" if fact.amax is None else "zeros only" if fact.amax == 0 else f"amax {fact.amax:.3g}"
        against[name] = f"it holds {held}, the cache says amax {amax:.3g}"
        if not fact.amax:
            empty.append(name)
    shift, fits = _find_shift(entries, floats)
    wrong = tuple(name for name in entries if name in integers) if against else ()
    return ExportEvidence(against, tuple(empty), wrong, shift, fits)


def shifted_names(cache: Cache, by: int) -> dict[str, str]:
    """New names for the entries whose names are numbers, `by` added to each: old name -> new name.

    Raises:
        QdqError: no name is a number, one would fall below 0, or `by` is 0.
    """
    if not by:
        raise QdqError("--shift-names", "0 changes no name", "leave it out")
    numbers = [name for name in (*cache.entries, *(name for name, *_ in cache.dropped)) if _NUMBER.fullmatch(name)]
    if not numbers:
        raise QdqError("--shift-names", "the cache has no name that is a number", "leave it out")
    low = min(map(int, numbers))
    if low + by < 0:
        raise QdqError("--shift-names", f"the name {low} {by:+d} is below 0", f"give {-low} or more")
    return {name: str(int(name) + by) for name in numbers}


def _is_shared(scale: np.float32, fact: ConstantFact, entries: Mapping[str, np.float32]) -> bool:
    beside = (entries[name] for name in fact.neighbors if name in entries)
    return any(other.tobytes() == scale.tobytes() for other in beside)


def _find_shift(entries: Iterable[str], floats: Iterable[str]) -> tuple[int, tuple[int, int, int]]:
    """The smallest shift by which every name that is a number fits, where some do not as they are; and the counts."""
    mine = _numbers(entries)
    theirs = np.array(sorted(_numbers(floats)), np.int64)
    if not mine:
        return 0, (0, 0, 0)
    given = np.array(mine, np.int64)
    as_is = int(np.isin(given, theirs).sum())
    total = len(mine)
    if as_is == total or not theirs.size or total < _MANY:
        return 0, (as_is, as_is, total)
    low, high = int(theirs[0] - given.min()), int(theirs[-1] - given.max())
    for by in sorted(range(max(low, -_FARTHEST), min(high, _FARTHEST) + 1), key=lambda by: (abs(by), by)):
        if np.isin(given + by, theirs).all():
            return by, (total, as_is, total)
    return 0, (as_is, as_is, total)


def _numbers(names: Iterable[str]) -> Sequence[int]:
    return [int(name) for name in names if _NUMBER.fullmatch(name)]
