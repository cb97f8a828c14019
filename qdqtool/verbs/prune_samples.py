# SPDX-License-Identifier: Apache-2.0
"""The data of `prune`, walked in parts: every fifth batch is held out, and of single samples a few go by with a bar."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from qdqtool.data.model_inputs import Input
from qdqtool.progress import is_shown

Feed = Mapping[str, npt.NDArray[Any]]
EVERY = 5


class HeldOutBatches:
    """The batches that are held out, or the others; walked again from the beginning by each loop over it."""

    def __init__(self, batches: Iterable[Feed], *, held: bool) -> None:
        self._batches, self._held = batches, held

    def __iter__(self) -> Iterator[Feed]:
        places = enumerate(self._batches, 1)
        return (batch for place, batch in places if (place % EVERY == 0) == self._held)


class SingleSamples:
    """The samples of batches, one by one, where every input has them along its first axis; else the batches."""

    def __init__(self, batches: Iterable[Feed], inputs: Sequence[Input]) -> None:
        self._batches, self._single = batches, all(one.batched for one in inputs)

    def __iter__(self) -> Iterator[Feed]:
        if not self._single:
            return iter(self._batches)
        return (
            {name: array[place : place + 1] for name, array in batch.items()}
            for batch in self._batches
            for place in range(min(len(array) for array in batch.values()))
        )


class Shown:
    """At most so many samples, the first ones, with a bar on stderr."""

    def __init__(self, samples: Iterable[Feed], most: int, progress: bool | None) -> None:
        self._samples, self._most, self._shown = samples, most, is_shown(progress)

    def __iter__(self) -> Iterator[Feed]:
        few = itertools.islice(self._samples, self._most)
        if not self._shown:
            return few
        from tqdm import tqdm

        return iter(tqdm(few, desc="importance", unit="sample", file=sys.stderr, leave=False))
