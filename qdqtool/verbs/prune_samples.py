# SPDX-License-Identifier: Apache-2.0
"""The data of `prune`, walked in parts: every fifth batch is held out, and a few samples go by with a bar."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

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


class Shown:
    """At most so many samples, the first ones, with a bar on stderr that says how long it takes."""

    def __init__(self, samples: Iterable[Feed], most: int, progress: bool | None, there: int | None = None) -> None:
        self._samples, self._most, self._shown = samples, most, is_shown(progress)
        self._total = None if there is None else min(there, most)

    def __iter__(self) -> Iterator[Feed]:
        few = itertools.islice(self._samples, self._most)
        if not self._shown:
            return few
        from tqdm import tqdm

        return iter(tqdm(few, desc="importance", total=self._total, unit="sample", file=sys.stderr, leave=False))


def not_held(samples: int | None, batches: int | None) -> int | None:
    """How many samples lie in batches that are not held out, all but the last batch of one size; None where unknown."""
    if not samples or not batches:
        return None
    size = -(-samples // batches)
    held = batches // EVERY * size
    return samples - min(held, samples)
