# SPDX-License-Identifier: Apache-2.0
"""Parts of data by what samples hold: equal samples are in one part, whatever their order, name or batch.

A sample's digest is SHA-256 of its image file, or of its arrays where it is no image file. A part is a range of
digests, so that it can be written down, and stays the same where samples are added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from qdqtool.data.model_inputs import Array, Input, Item
from qdqtool.data.options import DataPart
from qdqtool.display import counted
from qdqtool.errors import QdqError

_DIGITS = 12  # of a bound: 48 bits tell the digests of any data apart


def sample_digest(sample: Item) -> str:
    """The digest of arrays by input name: names, dtypes, shapes and values."""
    state = hashlib.sha256()
    for name in sorted(sample):
        array = np.ascontiguousarray(sample[name])
        state.update(f"{name} {array.dtype} {array.shape}".encode())
        state.update(array.tobytes())
    return state.hexdigest()


def rows_of_run(inputs: Sequence[Input]) -> int:
    """Rows of one run: 1 where every input leaves them free, the fixed number where all agree, 0 where they differ."""
    firsts = {1 if one.batched else one.first for one in inputs}
    first = firsts.pop() if len(firsts) == 1 else None
    return first or 0


def samples_in(batch: Mapping[str, Array]) -> list[Item]:
    """The samples of a batch: its rows; the batch itself where its arrays have no first axis of one length."""
    lengths = {array.shape[0] for array in batch.values() if array.ndim}
    if len(lengths) != 1 or any(not array.ndim for array in batch.values()):
        return [dict(batch)]
    return [{name: array[row : row + 1] for name, array in batch.items()} for row in range(lengths.pop())]


def items_in_part(items: Iterable[Item], inputs: Sequence[Input], part: DataPart) -> Iterator[dict[str, Array]]:
    """The samples of a part, in order, as batches that can be run."""
    size = rows_of_run(inputs)
    held: list[Item] = []
    for item in items:
        held += [one for one in (samples_in(item) if size else [item]) if part.holds(sample_digest(one))]
        while len(held) >= max(size, 1):
            group, held = held[: max(size, 1)], held[max(size, 1) :]
            yield {name: np.concatenate([one[name] for one in group]) for name in group[0]} if size else dict(group[0])


def cut_parts(digests: Iterable[str], shares: Sequence[float], most: Sequence[int]) -> list[tuple[DataPart, int]]:
    """Parts of about these shares of some samples, in the order of their digests, and how many each has; none is empty.

    Raises:
        QdqError: fewer different samples than parts.
    """
    ordered = sorted(set(digests))
    if len(ordered) < len(shares):
        reason = f"holds {counted(len(ordered), 'different sample')}, and {len(shares)} parts of one or more are needed"
        raise QdqError("--data", reason, "give more")
    ends = [0]
    for index in range(len(shares)):
        least, largest = ends[-1] + 1, len(ordered) - (len(shares) - 1 - index)
        ends.append(min(max(round(sum(shares[: index + 1]) * len(ordered)), least), largest))
    spans = [(start, min(end, start + limit)) for start, end, limit in zip(ends, ends[1:], most, strict=False)]
    return [(part_between(ordered, start, end), end - start) for start, end in spans]


def part_between(ordered: Sequence[str], start: int, end: int) -> DataPart:
    """The samples from one place to before another, of different digests in their order."""
    return DataPart(_bound(ordered, start), _bound(ordered, end))


def _bound(ordered: Sequence[str], index: int) -> str:
    """The shortest text, of a dozen digits at least, that parts the samples before a place from those behind."""
    if index in (0, len(ordered)):
        return ""
    before, after = ordered[index - 1], ordered[index]
    return next(after[:length] for length in range(_DIGITS, len(after) + 1) if after[:length] > before)
