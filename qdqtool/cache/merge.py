# SPDX-License-Identifier: Apache-2.0
"""Several caches of one network made one. Not a change of version: `retarget` does that first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qdqtool.cache.text import Cache, Dropped, scale_hex
from qdqtool.errors import QdqError

OnConflict = Literal["error", "first", "last", "max"]

_SHOWN = 3


@dataclass(frozen=True)
class Merged:
    """One cache out of several.

    Attributes:
        cache: the entries in the order in which they are first met.
        chosen: tensor name -> index of the cache that its scale is from.
        conflicts: tensor name -> its different scales, in the order of the caches.
    """

    cache: Cache
    chosen: dict[str, int]
    conflicts: dict[str, tuple[np.float32, ...]]


def merge(caches: Sequence[tuple[str, Cache]], on_conflict: OnConflict = "error") -> Merged:
    """Put the entries of several caches together.

    An entry of zero or infinity is not a scale: another cache's scale takes its place, and that is no conflict.

    Raises:
        QdqError: headers of another version or algorithm, or (by default) conflicts, which are named.
    """
    (first_name, first), *rest = caches
    for name, cache in rest:
        if (cache.version, cache.algorithm) != (first.version, first.algorithm):
            reason = f"has the header {cache.header}, {first_name} has {first.header}"
            raise QdqError(name, reason, "qdqtool cache retarget gives both the same one")
    found: dict[str, list[int]] = {}
    for index, (_, cache) in enumerate(caches):
        for tensor in cache.entries:
            found.setdefault(tensor, []).append(index)
    scales = {tensor: tuple(caches[i][1].entries[tensor] for i in places) for tensor, places in found.items()}
    conflicts = {tensor: values for tensor, values in scales.items() if len({value.tobytes() for value in values}) > 1}
    if conflicts and on_conflict == "error":
        raise _refused(caches, found, conflicts)
    picks = {tensor: _pick(values, on_conflict) for tensor, values in scales.items()}
    entries = {tensor: values[picks[tensor]] for tensor, values in scales.items()}
    cache = dataclasses.replace(first, entries=entries, dropped=_dropped([c for _, c in caches], entries))
    return Merged(cache, {tensor: found[tensor][pick] for tensor, pick in picks.items()}, conflicts)


def _pick(values: Sequence[np.float32], on_conflict: OnConflict) -> int:
    """Which of a tensor's scales stays; the first of equally large ones."""
    if on_conflict == "max":
        return max(range(len(values)), key=lambda i: (values[i], -i))
    return len(values) - 1 if on_conflict == "last" else 0


def _dropped(caches: Sequence[Cache], entries: dict[str, np.float32]) -> tuple[Dropped, ...]:
    """The unusable entries that no other cache makes good, each name once."""
    kept: dict[str, Dropped] = {}
    for cache in caches:
        for entry in cache.dropped:
            if entry[0] not in entries:
                kept.setdefault(entry[0], entry)
    return tuple(kept.values())


def _refused(
    caches: Sequence[tuple[str, Cache]], found: dict[str, list[int]], conflicts: dict[str, tuple[np.float32, ...]]
) -> QdqError:
    shown = []
    for tensor in list(conflicts)[:_SHOWN]:
        words = (f"{scale_hex(s)} in {caches[i][0]}" for i, s in zip(found[tensor], conflicts[tensor], strict=True))
        shown.append(f"{tensor} ({', '.join(words)})")
    more = f" and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
    count = "1 tensor has" if len(conflicts) == 1 else f"{len(conflicts)} tensors have"
    reason = f"{count} different scales: {'; '.join(shown)}{more}"
    return QdqError("merge", reason, "give --on-conflict first, last or max")
