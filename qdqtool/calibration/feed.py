# SPDX-License-Identifier: Apache-2.0
"""Data in: what the user has becomes checked batches for a model's inputs, streamed, in order. No model runs here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.calibration.inputs import Array, Input, checked, inputs_of
from qdqtool.calibration.json_inputs import JsonInputs
from qdqtool.calibration.preprocess import Preprocess
from qdqtool.calibration.sources import Source, open_source
from qdqtool.errors import QdqError

__all__ = ["Batch", "Data", "Feed", "FeedOptions", "Input", "inputs_of", "open_feed"]

Batch = dict[str, Array]
Data = str | os.PathLike[str] | JsonInputs | Callable[[], Iterable[Any]] | Iterable[Any]


@dataclass(frozen=True)
class FeedOptions:
    """How data is read.

    Attributes:
        batch: samples grouped into one run, in order; the last group may be smaller. With 1, batches of a loader script
            or of JSON stay as they come. A model that fixes its batch gets that one.
        limit: samples used, from the beginning; None for all.
        preprocess: what is done to images, as text or value; see `parse_preprocess`.
        max_bytes: the most that an archive or a JSON file may unpack to.
    """

    batch: int = 1
    limit: int | None = None
    preprocess: str | Preprocess | None = None
    max_bytes: int = 8 << 30


class Feed:
    """Batches for a model, in order; walked again from the beginning by each loop over it.

    Attributes:
        inputs: what is fed.
        samples: how many samples there are, None where only walking tells.
        batches: how many batches, None likewise.
        notes: what is left out, and why, one sentence each.
    """

    def __init__(self, source: Source, inputs: Sequence[Input], options: FeedOptions) -> None:
        self.inputs = tuple(inputs)
        self.notes = source.notes
        self._source = source
        self._options = options
        self._fixed = next((one for one in self.inputs if not one.batched), None)
        _check_options(source, self._fixed, options)
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
            facts["name"] = self._source.where.resolve().name
        facts["batch"] = self._each if self._fixed else self._options.batch
        if self._source.preprocess:
            facts["preprocess"] = self._source.preprocess
        if self.notes:
            facts["left_out"] = list(self.notes)
        return facts

    def __iter__(self) -> Iterator[Batch]:
        """Walk the batches.

        Yields:
            Input name -> array, as the model takes it.

        Raises:
            QdqError: the data does not fit an input (named), holds NaN or Inf, or has no sample at all.
        """
        where = self._source.where
        batches: Iterator[Batch] = (checked(where, item, self.inputs) for item in self._source.items())
        if self._options.batch > 1 and self._fixed is None:
            batches = _grouped(where, batches, self._options.batch)
        seen = 0
        for batch in self._limited(batches):
            seen += self.count(batch)
            yield batch
        if not seen:
            raise _no_samples(self._source, self._each)

    def count(self, batch: Batch) -> int:
        """The number of samples in a batch: the first axis of the first input, 1 for a scalar."""
        array = batch[self.inputs[0].name]
        return int(array.shape[0]) if array.ndim else 1

    def _limited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        left = self._options.limit
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


def open_feed(data: Data, inputs: Sequence[Input], options: FeedOptions | None = None) -> Feed:
    """Open data for a model's inputs; values are read when the feed is walked.

    Args:
        data: a folder of images, a .npz (one array per input, the first axis counts samples), a .npy, a ``loader.py``
            or ``loader.py:function`` that makes ``{name: array}``, Polygraphy's JSON inputs; from Python, also a
            callable or an iterable of such dictionaries.
        inputs: what the model takes; see `inputs_of`.
        options: batch, limit, preprocessing.

    Raises:
        QdqError: the data is of no kind that is read, or its names, shapes or dtypes do not fit; no samples.
    """
    options = options or FeedOptions()
    if not inputs:
        raise QdqError("model", "has no input to feed", "it computes constants only")
    source = open_source(data, inputs, options.preprocess, options.max_bytes)
    return Feed(source, inputs, options)


def _check_options(source: Source, fixed: Input | None, options: FeedOptions) -> None:
    if options.batch < 1:
        raise QdqError("--batch", f"{options.batch} is no number of samples", "give 1 or more")
    if options.limit is not None and options.limit < 1:
        raise QdqError("--limit", f"{options.limit} leaves no samples", "give 1 or more, or leave it out")
    if fixed is not None and options.batch not in (1, fixed.first):
        shape = fixed.told()
        raise QdqError(
            "--batch", f"{options.batch} cannot be, the input {fixed.name!r} takes {shape}", "leave --batch out"
        )


def _no_samples(source: Source, each: int) -> QdqError:
    few = f"not the {each} samples of one batch" if each > 1 else "no samples"
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
        told = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise QdqError(where, f"inputs of one sample differ along the first axis ({told})", "leave --batch out")
    for name, array in batch.items():
        if first[name].shape[1:] != array.shape[1:]:
            shapes = f"{list(first[name].shape)} and {list(array.shape)}"
            raise QdqError(where, f"input {name!r} comes as {shapes}, which cannot be one batch", "leave --batch out")
