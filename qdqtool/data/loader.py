# SPDX-License-Identifier: Apache-2.0
"""Data in: what the user has becomes checked batches for a model's inputs, streamed, in order. No model runs here.

`open_loader` opens data once: what is opened already comes back as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.model_inputs import Array, Input, checked, inputs_of
from qdqtool.data.options import DataOptions
from qdqtool.data.sources import Part, SampleSource, open_source
from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256
from qdqtool.progress import steps

__all__ = ["Batch", "Data", "DataLoader", "DataOptions", "Input", "Task", "inputs_of", "open_loader"]

Batch = dict[str, Array]
Data = str | os.PathLike[str] | JsonInputs | Array | Mapping[str, Array] | Callable[[], Iterable[Any]] | Iterable[Any]


@dataclass(frozen=True)
class Task:
    """One batch to come.

    Attributes:
        index: its number in file order.
        first: how many samples lie before it.
        count: how many it has.
        load: reads and checks it, in any thread; it may be called once.
    """

    index: int
    first: int
    count: int
    load: Callable[[], Batch]


class DataLoader:
    """Batches for a model, in order; walked again from the beginning by each loop over it.

    Attributes:
        inputs: what is fed.
        samples: how many samples there are, None where only walking tells.
        batches: how many batches, None likewise.
        notes: what is left out, and why, one sentence each.
        origin: what the same data can be opened by again; None for data that are given as arrays or a callable.
        options: how it is read.
        once: whether it can be walked a single time.
    """

    def __init__(
        self,
        source: SampleSource,
        inputs: Sequence[Input],
        options: DataOptions,
        origin: str | JsonInputs | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.origin = origin
        self.options = options
        self.notes = source.notes
        self.once = source.once
        self._source = source
        self._fixed = next((one for one in self.inputs if not one.batched), None)
        _check_options(self._fixed, options)
        self._each = self.inputs[0].first or 1
        self.samples = None if source.samples is None else min(source.samples, options.limit or source.samples)
        if self._fixed and self.samples:
            self.samples -= self.samples % self._each
        self.batches = (
            None if self.samples is None else -(-self.samples // (self._each if self._fixed else options.batch))
        )
        if self.samples == 0:
            raise _no_samples(source, self._each)

    @property
    def description(self) -> dict[str, Any]:
        """What the data is, the same wherever it lies: kind, name, batch, preprocessing."""
        facts: dict[str, Any] = {"kind": self._source.kind}
        if isinstance(self._source.where, Path):
            name = self._source.where.resolve().name
            facts["name"] = name.encode("utf-8", "backslashreplace").decode()  # models and tables hold text alone
        facts["batch"] = self._each if self._fixed else self.options.batch
        if self._source.preprocess:
            facts["preprocess"] = self._source.preprocess
        if self.options.part is not None:
            facts["part"] = str(self.options.part)
        if self.notes:
            facts["left_out"] = list(self.notes)
        return facts

    def facts(self) -> dict[str, Any]:
        """The description, and for a model that leaves more open than its batch the shapes that it is fed at.

        Raises:
            QdqError: the first batch cannot be read.
        """
        open_inputs = [
            one for one in self.inputs if one.shape is None or any(not isinstance(s, int) for s in one.shape[1:])
        ]
        if not open_inputs or self.once:
            return self.description
        first = next(iter(self), None)
        shapes = {} if first is None else {one.name: list(first[one.name].shape) for one in open_inputs}
        return {**self.description, "shapes": shapes}

    @property
    def fingerprint(self) -> str:
        """A digest of which samples are fed, and how: file names and sizes, a script's text; the same wherever it is.

        Raises:
            QdqError: a file is gone.
        """
        listed = [[file.name, _weight(file)] for file in self._source.files]
        facts = {"what": self.description, "limit": self.options.limit, "files": listed}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def __iter__(self) -> Iterator[Batch]:
        """Walk the batches."""
        return (task.load() for task in self.tasks())

    def tasks(self) -> Iterator[Task]:
        """Walk the batches without reading those that can be read apart; the others are read as the walk goes.

        Raises:
            QdqError: as for walking the batches; what is read apart is refused when it is loaded.
        """
        index = first = 0
        found = self._read() if self._source.parts is None else self._apart(self._source.parts)
        for count, load in steps(found, "batch", self.batches):
            yield Task(index, first, count, load)
            index, first = index + 1, first + count
        if not first:
            raise _no_samples(self._source, self._each)

    def _read(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        where = self._source.where
        batches: Iterator[Batch] = (checked(where, item, self.inputs) for item in self._source.items())
        if self.options.batch > 1 and self._fixed is None:
            batches = _grouped(where, batches, self.options.batch)
        for batch in self._limited(batches):
            yield self.count(batch), partial(_itself, batch)

    def _apart(self, parts: Sequence[Part]) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """Groups of parts; all are of one size, 1 where the model leaves the batch free."""
        kept = len(parts) if self.options.limit is None else min(len(parts), self.options.limit // self._each)
        size = self.options.batch if self._fixed is None else 1
        for start in range(0, kept, size):
            group = parts[start : min(start + size, kept)]
            yield sum(count for count, _ in group), partial(self._loaded, [load for _, load in group])

    def _loaded(self, loads: Sequence[Callable[[], Batch]]) -> Batch:
        batches = [checked(self._source.where, load(), self.inputs) for load in loads]
        for batch in batches[1:]:
            _check_joinable(self._source.where, batches[0], batch)
        return _joined(batches)

    def count(self, batch: Batch) -> int:
        """The number of samples in a batch: the first axis of the first input, 1 for a scalar."""
        array = batch[self.inputs[0].name]
        return int(array.shape[0]) if array.ndim else 1

    def _limited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        left = self.options.limit
        for batch in batches:
            if left is not None and self.count(batch) > left:
                if self._fixed is None and left:
                    yield {name: array[:left] for name, array in batch.items()}
                return
            yield batch
            if left is not None:
                left -= self.count(batch)
                if not left:
                    return


def open_loader(data: Data | DataLoader, inputs: Sequence[Input], options: DataOptions | None = None) -> DataLoader:
    """Open data for a model's inputs, where that is not done yet; values are read when the loader is walked.

    Args:
        data: images (see `find_images`), a .npz (one array per input, the first axis counts samples), a .npy, a
            ``loader.py`` or ``loader.py:function`` that makes ``{name: array}``, Polygraphy's JSON inputs; from Python,
            also an array for a single input or a dict of arrays (the first axis counts samples), a callable or an
            iterable of such dictionaries of batches. A `DataLoader` is given back as it is.
        inputs: what the model takes; see `inputs_of`.
        options: batch, limit, preprocessing.

    Raises:
        QdqError: the data is of no kind that is read, or its names, shapes or dtypes do not fit; no samples.
    """
    if isinstance(data, DataLoader):
        return data
    options = options or DataOptions()
    if not inputs:
        raise QdqError("model", "has no input", "it computes constants only")
    source = open_source(data, inputs, options.preprocess, options.max_bytes, options.part)
    origin = data if isinstance(data, JsonInputs) else None
    return DataLoader(source, inputs, options, os.fspath(data) if isinstance(data, str | os.PathLike) else origin)


def _check_options(fixed: Input | None, options: DataOptions) -> None:
    if fixed is not None and options.batch not in (1, fixed.first):
        shape = fixed.format_shape()
        raise QdqError(
            "--batch", f"{options.batch} cannot be, the input {fixed.name!r} takes {shape}", "leave --batch out"
        )


def _itself(batch: Batch) -> Batch:
    return batch


def _weight(file: Path) -> int | str:
    """A file's size, or the digest of a script: what a script yields, its text decides."""
    todo = "was it moved or deleted?"
    if file.suffix == ".py":
        return file_sha256(file, todo)
    try:
        return file.stat().st_size
    except OSError as error:
        raise QdqError(file, f"cannot be read ({error.strerror})", todo) from error


def _no_samples(source: SampleSource, each: int) -> QdqError:
    few = f"fewer than the {each} samples of one batch" if each > 1 else "no samples"
    return QdqError(
        source.where, f"gives {few}", "calibration needs data; a loader must return a fresh iterable on each call"
    )


def _grouped(where: object, batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Batches of `size` samples along the first axis, in order; the last one may be smaller."""
    held: list[Batch] = []
    rows = 0
    for batch in batches:
        _check_joinable(where, held[0] if held else batch, batch)
        held.append(batch)
        rows += len(next(iter(batch.values())))
        full = rows // size * size
        if full:
            whole = _joined(held)
            yield from ({k: a[start : start + size] for k, a in whole.items()} for start in range(0, full, size))
            held = [{k: a[full:] for k, a in whole.items()}] if rows > full else []
            rows -= full
    if held:
        yield _joined(held)


def _joined(held: Sequence[Batch]) -> Batch:
    return held[0] if len(held) == 1 else {name: np.concatenate([one[name] for one in held]) for name in held[0]}


def _check_joinable(where: object, first: Batch, batch: Batch) -> None:
    rows = {name: len(array) for name, array in batch.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise QdqError(where, f"inputs of one sample differ along the first axis ({counts})", "leave --batch out")
    for name, array in batch.items():
        if first[name].shape[1:] != array.shape[1:]:
            shapes = f"{list(first[name].shape)} and {list(array.shape)}"
            raise QdqError(where, f"input {name!r} comes as {shapes}, which cannot form one batch", "leave --batch out")
