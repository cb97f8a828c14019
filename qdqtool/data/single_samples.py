# SPDX-License-Identifier: Apache-2.0
"""Walks batches sample by sample, so that nothing depends on how samples were grouped.

Which samples are held out is decided by those who choose by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from qdqtool.data.model_inputs import Array, Input
from qdqtool.data.parts import samples_in


class SingleSamples:
    """The samples of batches one by one, walked anew by each loop; batches as they are where the model fixes the size.

    Args:
        batches: a batch whose inputs differ in length is one sample.
        inputs: what the model takes.

    Attributes:
        seen: how many samples the last walk has given: rows, where batches stay as they are.
    """

    def __init__(self, batches: Iterable[Mapping[str, Array]], inputs: Sequence[Input]) -> None:
        self._batches, self._first = batches, inputs[0].name
        self._free = all(one.batched for one in inputs)
        self.seen = 0

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Walk the samples."""
        self.seen = 0
        for batch in self._batches:
            first = batch[self._first]
            self.seen += int(first.shape[0]) if first.ndim else 1
            yield from map(dict, samples_in(batch) if self._free else [batch])


def row_count(batch: Mapping[str, Array]) -> int:
    """How many samples a batch has along the first axes of its arrays; 0 where these differ."""
    lengths = {array.shape[0] if array.ndim else 0 for array in batch.values()}
    return lengths.pop() if len(lengths) == 1 else 0


def first_samples(batches: Iterable[Mapping[str, Array]], most: int) -> list[Mapping[str, Array]]:
    """Whole batches, the first ones, until there are so many samples; a batch of unlike arrays is one."""
    found: list[Mapping[str, Array]] = []
    count = 0
    for batch in batches:
        found.append(batch)
        count += max(row_count(batch), 1)
        if count >= most:
            break
    return found
