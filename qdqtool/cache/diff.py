# SPDX-License-Identifier: Apache-2.0
"""What two caches say differently, scale by scale to the bit. Not which of them is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqtool.cache.text import Cache, scale_hex


@dataclass(frozen=True)
class Change:
    """One tensor with two scales; `ratio` is the second over the first."""

    name: str
    first: np.float32
    second: np.float32

    @property
    def ratio(self) -> float:
        """How many times the first scale the second one is."""
        return float(self.second) / float(self.first)


@dataclass(frozen=True)
class CacheDiff:
    """How two caches differ; names in the order of the cache they are from.

    Attributes:
        headers: both first lines.
        only_first, only_second: name -> scale of tensors that one cache alone has.
        changed: tensors whose scales differ, by one bit or more.
        same: names of the tensors with the same bits in both.
    """

    headers: tuple[str, str]
    only_first: dict[str, np.float32]
    only_second: dict[str, np.float32]
    changed: tuple[Change, ...]
    same: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether anything differs that TensorRT reads: a scale, a name or the header; the order does not count."""
        return bool(self.headers[0] != self.headers[1] or self.only_first or self.only_second or self.changed)

    def to_json(self) -> dict[str, Any]:
        """Counts first, then the names with the bits of both sides."""
        changed = [
            {"name": c.name, "a": scale_hex(c.first), "b": scale_hex(c.second), "ratio": c.ratio} for c in self.changed
        ]
        one, other = self.only_first, self.only_second
        counts = {"only_a": len(one), "only_b": len(other), "changed": len(changed), "same": len(self.same)}
        return {
            "headers": list(self.headers),
            "differs": self.differs,
            "counts": counts,
            "only_a": {name: scale_hex(scale) for name, scale in one.items()},
            "only_b": {name: scale_hex(scale) for name, scale in other.items()},
            "changed": changed,
        }


def diff(first: Cache, second: Cache) -> CacheDiff:
    """Compare two caches, names as they are and scales by their bits."""
    a, b = first.entries, second.entries
    both = [name for name in a if name in b]
    same = tuple(name for name in both if a[name] == b[name])  # finite and positive, so equal means the same bits
    return CacheDiff(
        headers=(first.header, second.header),
        only_first={name: scale for name, scale in a.items() if name not in b},
        only_second={name: scale for name, scale in b.items() if name not in a},
        changed=tuple(Change(name, a[name], b[name]) for name in both if a[name] != b[name]),
        same=same,
    )
