# SPDX-License-Identifier: Apache-2.0
"""What has been counted so far: histograms, and which batches are in them. Not where it is kept (state_file.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdqtool.amax import kernel
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.histogram_kinds import KINDS, AnyHistogram
from qdqtool.data.loader import Task
from qdqtool.errors import QdqError
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.pre_batchnorm_range import AffineRange

Float32 = npt.NDArray[np.float32]


class BatchSet:
    """A set of batch numbers, one bit each: a million batches take 125 kB."""

    def __init__(self, bits: bytes | bytearray = b"") -> None:
        self._bits = bytearray(bits)

    def add(self, index: int) -> None:
        """Take a number in."""
        place = index >> 3
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1 - len(self._bits), len(self._bits))))
        self._bits[place] |= 1 << (index & 7)

    def copy(self) -> BatchSet:
        """The same numbers, which later ones do not join."""
        return BatchSet(self._bits)

    def __contains__(self, index: int) -> bool:
        place = index >> 3
        return place < len(self._bits) and bool(self._bits[place] >> (index & 7) & 1)

    def __len__(self) -> int:
        return int.from_bytes(self._bits, "little").bit_count()

    def merge(self, other: BatchSet) -> None:
        """Take in all numbers of another set."""
        if len(other._bits) > len(self._bits):
            self._bits.extend(bytes(len(other._bits) - len(self._bits)))
        mine, theirs = np.frombuffer(self._bits, np.uint8), np.frombuffer(other._bits, np.uint8)
        mine[: theirs.size] |= theirs

    def to_bytes(self) -> bytes:
        """One bit per number, lowest first, without trailing zeros."""
        return bytes(self._bits).rstrip(b"\0")


class ObserverState:
    """The histograms of the fetched tensors, and what is in them.

    Attributes:
        histograms: kind -> tensor -> histogram, for the fetched tensors of that kind.
        ranges: the tensors that have a range only.
        sources: what each of those is read from.
        samples: how many samples are in them.
        done: which batches are in them; where the tensors are fetched in several passes, those of the pass at work.
        passed: how many passes are complete.
    """

    def __init__(self, plan: ObservationPlan) -> None:
        self.histograms: dict[str, dict[str, AnyHistogram]] = {
            kind: {name: KINDS[kind]() for name in one.observed} for kind, one in plan.derivations.items()
        }
        self.ranges = {name: AffineRange(affine) for name, affine in plan.affine.items()}
        self.sources = {name: affine.source for name, affine in plan.affine.items()}
        self.samples = 0
        self.done = BatchSet()
        self.passed = 0

    def begin_pass(self, number: int) -> None:
        """Go on with a pass over the data: with what is in it already, or, for the next one, from its first batch."""
        if number != self.passed:
            self.passed, self.done = number, BatchSet()

    def counter(self, names: Sequence[str], lengths: Sequence[int] | None = None) -> Counter:
        """What counts arrays that come in the order of `names` into this observation."""
        return Counter(self, names, [len(names)] if lengths is None else lengths)

    def merge(self, other: ObserverState) -> None:
        """Take in another observation of the same plan, of other batches; for mergeable histograms only."""
        for name, theirs in other.histograms[Histogram.kind].items():
            mine = self.histograms[Histogram.kind][name]
            if isinstance(mine, Histogram) and isinstance(theirs, Histogram) and not theirs.is_empty:
                mine.merge(theirs)
        for name, bounds in other.ranges.items():
            self.ranges[name].merge(bounds)
        self.samples += other.samples
        self.done.merge(other.done)

    def of_all(self, plan: ObservationPlan) -> dict[str, dict[str, AnyHistogram]]:
        """Kind -> histograms of every tensor of the plan, fetched or derived, in graph order."""
        return {kind: plan.derive(kind, found) for kind, found in self.histograms.items()}


class _Batch(NamedTuple):
    """What one kind counts of a batch: which arrays, into which histograms, and the ranges that follow from them."""

    positions: list[int]
    histograms: list[AnyHistogram]
    ranges: list[AffineRange | None]


class _Part(NamedTuple):
    """Arrays that are counted together: their tensors, and what each kind of histogram counts of them."""

    names: tuple[str, ...]
    kinds: list[_Batch]


class Counter:
    """Counts the arrays of one batch after the other; made once per session, for what is fetched has one order."""

    def __init__(self, observation: ObserverState, names: Sequence[str], lengths: Sequence[int]) -> None:
        self._observation = observation
        ends = itertools.accumulate(lengths)
        self._parts = [self._part(tuple(names[end - length : end])) for end, length in zip(ends, lengths, strict=True)]

    def _part(self, names: tuple[str, ...]) -> _Part:
        observation, place = self._observation, {name: position for position, name in enumerate(names)}
        # The source of a range is always among the mergeable ones: where TensorRT's are counted, no range is derived.
        ranges = {source: observation.ranges[name] for name, source in observation.sources.items()}
        kinds = [
            _Batch(
                [place[name] for name in found if name in place],
                [one for name, one in found.items() if name in place],
                [ranges.get(name) if KINDS[kind].mergeable else None for name in found if name in place],
            )
            for kind, found in observation.histograms.items()
        ]
        return _Part(names, kinds)

    def add(self, task: Task, arrays: Iterable[Float32]) -> None:
        """Count one batch.

        Args:
            task: where the batch stands.
            arrays: float32 of any shape, in the order of the names this counter was made for; what is counted together
                is held together, and no more.

        Raises:
            QdqError: a tensor holds NaN; the first in graph order is named.
        """
        stream = iter(arrays)
        for part in self._parts:
            self._add_part(part, list(itertools.islice(stream, len(part.names))), task)
        self._observation.done.add(task.index)
        if not self._observation.passed:
            self._observation.samples += task.count

    @staticmethod
    def _add_part(part: _Part, arrays: Sequence[Float32], task: Task) -> None:
        for one in part.kinds:
            kernel.add_all(one.histograms, [arrays[position] for position in one.positions], one.ranges)
        for one in part.kinds:
            for position, histogram in zip(one.positions, one.histograms, strict=True):
                if histogram.nans:
                    raise _holds_nan(part.names[position], task)


def _holds_nan(name: str, task: Task) -> QdqError:
    reason = f"holds NaN (batch from sample {task.first} on)"
    return QdqError(name, reason, "repair the model or leave the sample out")


def mergeable_of(found: Mapping[str, Mapping[str, AnyHistogram]]) -> dict[str, Histogram]:
    """Tensor -> mergeable histogram; {} where none was counted."""
    return {name: one for name, one in found.get(Histogram.kind, {}).items() if isinstance(one, Histogram)}
