# SPDX-License-Identifier: Apache-2.0
"""Shuffled batches for training, without end, and the samples held out of it. What a sample is, `DataLoader` says.

Every choice follows from the seed, the epoch and the sample's number, so that any place in the sequence can be taken up
again. Data that fit in memory are held there; larger folders of images are read file by file in shuffled order; other
data stream through a shuffle buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from qdqtool.data.loader import Batch, DataLoader, Task
from qdqtool.errors import QdqError

_ORDER, _CHANGE, _HELD_CHANGE = 0, 1, 2  # what a stream of random numbers is for
_EACH, _EACH_OF_FEW = 10, 5  # of so many samples one is held out; of fewer than 100 more, or what is measured is noise
_FEW, _MOST = 100, 64

Draw = np.random.Generator
Load = Callable[[], Batch]


class Augment(Protocol):
    """Changes one sample; see augment.py."""

    def __call__(self, sample: Batch, draw: Draw) -> Batch:
        """The changed sample, of the same shapes; the one that is given stays as it is."""
        ...


@dataclass(frozen=True)
class BatchOptions:
    """How batches are made.

    Attributes:
        batch: samples in one; 1 where the model fixes its batch.
        seed: of the order and of what `augment` draws.
        memory: bytes of samples that may be held.
        augment: what is done to each training sample; None for nothing.
        held_copies: how many changed copies of each held-out sample are held out beside it, where samples are changed.
    """

    batch: int = 1
    seed: int = 0
    memory: int = 1 << 30
    augment: Augment | None = None
    held_copies: int = 0


MOST_REPEATED = 256  # samples in a batch, where there are fewer: some are in it more than once


class Batches:
    """Training data.

    Attributes:
        count: how many samples there are to train on.
        held: the batches that are held out, each of the full size: samples as they are, then changed copies.
        held_samples: how many samples those are, copies left out.
        notes: what is to be said of them, a sentence each.
    """

    def __init__(self, loader: DataLoader, options: BatchOptions) -> None:
        """Walk the data once."""
        self._loader = loader
        self._options = options
        self._apart = loader.description["kind"] == "images"
        self._store, total = _read(loader, options.memory, lazily=self._apart)
        if options.batch > max(total, MOST_REPEATED):
            raise QdqError("--batch", f"{options.batch} is more than the {total} samples", "give fewer")
        chosen = held_out(total)
        self._train = [k for k in range(total) if k not in chosen] or [0]
        self.count = len(self._train)
        self.held_samples = len(chosen)
        self.held = tuple(self._held(chosen))
        _check_alike(self.held)
        self.notes = tuple(self._format_notes(total))

    def _format_notes(self, total: int) -> Iterator[str]:
        yield from self._loader.notes
        if total == 1:
            yield "there is only one sample: it is used both for training and for measuring"
        if self._store is None and not self._apart:
            yield f"the data are larger than {self._options.memory >> 20} MiB: shuffled through a buffer of that size"

    def _held(self, chosen: Sequence[int]) -> Iterator[Batch]:
        """The held-out samples in full batches; the last one is filled up from the first ones."""
        wanted = frozenset(chosen)
        samples = [self._store[k] for k in chosen] if self._store is not None else self._picked(wanted)
        samples = [*samples, *self._copies(samples)]
        size = self._options.batch
        for start in range(0, len(samples), size):
            yield _joined([samples[k % len(samples)] for k in range(start, start + size)])

    def _copies(self, samples: Sequence[Batch]) -> Iterator[Batch]:
        """All samples changed once, then all of them once more, and so on."""
        options = self._options
        if options.augment is None:
            return
        for copy, (number, sample) in itertools.product(range(options.held_copies), enumerate(samples)):
            yield options.augment(sample, np.random.default_rng([options.seed, _HELD_CHANGE, copy, number]))

    def _picked(self, wanted: frozenset[int]) -> list[Batch]:
        if self._apart:
            return [task.load() for task in self._loader.tasks() if task.index in wanted]
        return [sample for number, sample in enumerate(_samples(self._loader)) if number in wanted]

    def from_sample(self, first: int) -> Iterator[Batch]:
        """Batches from one place of the endless sequence on.

        Raises:
            QdqError: a sample cannot be read any more.
        """
        return self._groups(first, lambda number: True)

    def from_batch(self, first: int, rank: int = 0, size: int = 1) -> Iterator[Batch]:
        """The same, from one batch of the sequence on; of `size` workers, the batches that fall to one of them.

        Samples of other workers' batches are not read where each is a file of its own, or all are in memory.
        """
        return self._groups(first * self._options.batch, lambda number: number % size == rank)

    def _groups(self, first: int, taken: Callable[[int], bool]) -> Iterator[Batch]:
        size = self._options.batch
        samples = self._sequence(first)
        for number in itertools.count():
            group = [next(samples) for _ in range(size)]
            if taken(number):
                yield _joined([self._changed(place, load()) for place, load in group])

    @property
    def batch(self) -> int:
        """Items of the data in one batch."""
        return self._options.batch

    @property
    def samples_per_batch(self) -> int:
        """Samples in one batch, whatever an item of the data holds."""
        return self._loader.count(self.held[0])

    @property
    def changes(self) -> bool:
        """Whether a sample comes in another form each time."""
        return self._options.augment is not None

    def _changed(self, number: int, sample: Batch) -> Batch:
        if self._options.augment is None:
            return sample
        return self._options.augment(sample, np.random.default_rng([self._options.seed, _CHANGE, number]))

    def _sequence(self, first: int) -> Iterator[tuple[int, Load]]:
        epoch, skipped = divmod(first, self.count)
        for here in itertools.count(epoch):
            draw = np.random.default_rng([self._options.seed, _ORDER, here])
            skip = skipped if here == epoch else 0
            samples = self._epoch(draw, skip)
            yield from enumerate(samples, here * self.count + skip)

    def _epoch(self, draw: Draw, skip: int) -> Iterator[Load]:
        """The samples of one epoch in its order, without the first `skip`, each read when it is called for."""
        if self._store is not None:
            order = draw.permutation(self.count)
            return (partial(self._store.__getitem__, self._train[k]) for k in order[skip:])
        if self._apart:
            return self._by_file(draw.permutation(self.count)[skip:].tolist())
        wanted = frozenset(self._train)
        stream = (sample for number, sample in enumerate(_samples(self._loader)) if number in wanted)
        buffered = itertools.islice(shuffled(stream, draw, self._options.memory), skip, None)
        return (partial(_given, sample) for sample in buffered)

    def _by_file(self, order: Sequence[int]) -> Iterator[Load]:
        tasks: list[Task] = list(self._loader.tasks())
        return (tasks[self._train[k]].load for k in order)

    def every(self) -> Iterator[Batch]:
        """All samples once, in file order, held-out ones too."""
        return iter(self._store) if self._store is not None else _samples(self._loader)


class MeasuredBatches(Collection[Batch]):
    """All samples of other data than is trained on, in full batches; read each time that they are walked.

    Attributes:
        samples: how many there are.
    """

    def __init__(self, loader: DataLoader, batch: int) -> None:
        """Walk the data once."""
        self._loader, self._batch = loader, batch
        self.samples = sum(1 for _ in _samples(loader))

    def __len__(self) -> int:
        return -(-self.samples // self._batch)

    def __contains__(self, batch: object) -> bool:
        return any(one is batch for one in self)

    def __iter__(self) -> Iterator[Batch]:
        """The last batch is filled up from the first samples."""
        samples = itertools.chain.from_iterable(_samples(self._loader) for _ in itertools.count())
        for _ in range(len(self)):
            yield _joined(list(itertools.islice(samples, self._batch)))


def held_out(total: int) -> tuple[int, ...]:
    """The numbers of the samples that are not trained on.

    Every tenth, 64 at most; of fewer than 100 every fifth; of fewer than five the last. They are spread over the data:
    files are often sorted by class or time. Where there is only one sample it is both.
    """
    each = _EACH if total >= _FEW else _EACH_OF_FEW
    return tuple(range(each - 1, total, each))[:_MOST] or (total - 1,)


def shuffled(samples: Iterator[Batch], draw: Draw, memory: int) -> Iterator[Batch]:
    """Samples in an order that a buffer of so many bytes allows: each goes out from a random place of the buffer."""
    buffer: list[Batch] = []
    held = 0
    for sample in samples:
        size = _bytes(sample)
        if held + size <= memory or len(buffer) < 2:
            buffer.append(sample)
            held += size
            continue
        place = int(draw.integers(len(buffer)))
        given, buffer[place] = buffer[place], sample
        held += size - _bytes(given)
        yield given
    for place in draw.permutation(len(buffer)):
        yield buffer[place]


def _read(loader: DataLoader, memory: int, *, lazily: bool) -> tuple[list[Batch] | None, int]:
    """All samples where they fit, and how many there are."""
    held: list[Batch] = []
    size = total = 0
    for sample in _samples(loader):
        total += 1
        size += _bytes(sample)
        if size <= memory:
            held.append(sample)
        elif lazily and loader.samples is not None:
            return None, len(list(loader.tasks()))
    return (held if size <= memory else None), total


def _samples(loader: DataLoader) -> Iterator[Batch]:
    """One sample after the other; what comes as several rows of a free first axis is taken apart."""
    split = all(one.batched for one in loader.inputs)
    for batch in loader:
        rows = loader.count(batch)
        if not split or rows == 1:
            yield batch
            continue
        if any(array.ndim == 0 or len(array) != rows for array in batch.values()):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
            raise QdqError("data", f"has inputs of several samples that do not agree on how many ({shapes})")
        for row in range(rows):
            yield {name: array[row : row + 1] for name, array in batch.items()}


def _given(sample: Batch) -> Batch:
    return sample


def _bytes(sample: Batch) -> int:
    return sum(array.nbytes for array in sample.values())


def _joined(samples: Sequence[Batch]) -> Batch:
    if len(samples) == 1:
        return samples[0]
    _check_alike(samples)
    return {name: np.concatenate([one[name] for one in samples]) for name in samples[0]}


def _check_alike(samples: Sequence[Batch]) -> None:
    """Refuse samples of several shapes: the graph that is trained is made for one."""
    for sample in samples[1:]:
        for name, array in sample.items():
            first: Any = samples[0][name]
            if array.shape != first.shape:
                reason = f"input {name!r} comes as {list(first.shape)} and as {list(array.shape)}"
                raise QdqError("data", reason, "training takes samples of one shape: resize or cut them")
