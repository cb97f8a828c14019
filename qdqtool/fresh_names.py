# SPDX-License-Identifier: Apache-2.0
"""Names that are free. The one place that makes a name unlike all others, for graphs and for caches alike.

It stands below `graph/`, as `cache/` needs it and imports no ONNX.
"""

from __future__ import annotations

from collections.abc import Iterable


class FreshNames:
    """The names that are in use, and new ones that are not. A name is never given up again."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._taken

    def add(self, name: str) -> None:
        """Take a name that somebody else chose."""
        self._taken.add(name)

    def unique(self, base: str) -> str:
        """`base`, or `base` with the first free number after it (`_1`, `_2`); taken from now on."""
        name = base
        if base in self._taken:
            number = self._next.get(base, 1)
            while (name := f"{base}_{number}") in self._taken:
                number += 1
            self._next[base] = number + 1
        self._taken.add(name)
        return name
