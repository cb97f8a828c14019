# SPDX-License-Identifier: Apache-2.0
"""The data of `prune`, walked in parts: every fifth sample is held out, and a few samples go by with a bar."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.model_inputs import Input
from qdqtool.data.single_samples import row_count
from qdqtool.progress import barred

Feed = Mapping[str, npt.NDArray[Any]]
EVERY = 5


class HeldOutSamples:
    """The samples that are held out, or the others, in batches as they come; walked again by each loop over it.

    Those that `finetune` holds out of the same data (`training.batches.held_out`) are among them, where there are five
    or more: what it measures on was not used for the weights that it begins with.
    """

    def __init__(self, batches: Iterable[Feed], inputs: Sequence[Input], *, held: bool) -> None:
        """Walk nothing yet."""
        self._batches, self._held = batches, held
        self._free = all(one.batched for one in inputs)

    def __iter__(self) -> Iterator[Feed]:
        first = 0
        for batch in self._batches:
            rows = row_count(batch) if self._free else 0
            held = np.arange(first, first + (rows or 1)) % EVERY == EVERY - 1
            first += len(held)
            chosen = held if self._held else ~held
            if chosen.all():
                yield batch
            elif chosen.any():
                yield {name: array[chosen] for name, array in batch.items()}


class Shown:
    """At most so many samples, the first ones, with a bar on stderr that says how long it takes."""

    def __init__(self, samples: Iterable[Feed], most: int, progress: bool | None, there: int | None = None) -> None:
        self._samples, self._most, self._progress = samples, most, progress
        self._total = None if there is None else min(there, most)

    def __iter__(self) -> Iterator[Feed]:
        few = itertools.islice(self._samples, self._most)
        return barred(few, "importance", "sample", self._total, self._progress)


def not_held(samples: int | None) -> int | None:
    """How many of so many samples are not held out; None where unknown."""
    return None if samples is None else samples - samples // EVERY
