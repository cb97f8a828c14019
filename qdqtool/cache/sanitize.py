# SPDX-License-Identifier: Apache-2.0
"""New names for tensors whose names readers of caches cut off. The model must take the same names (`graph` does that).

onnxruntime's and MIGraphX's readers of TensorRT's text end a name at its first `:`, so `Relu:0` becomes `Relu`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from qdqtool.cache.text import Cache
from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames

_CUT, _INSTEAD = ":", "_"


def sanitized(names: Iterable[str]) -> dict[str, str]:
    """Old name -> new name for every name with a `:`; `_` stands in its place, then `_1`, `_2` where that is taken.

    The new names are like no other name, old or new. The order of `names` does not matter: give all names of the model
    and of the cache at once, and both take the same.
    """
    given = set(names)
    taken, renamed = FreshNames(given), {}
    for name in sorted(name for name in given if _CUT in name):
        renamed[name] = taken.unique(name.replace(_CUT, _INSTEAD))
    return renamed


def renamed(cache: Cache, names: Mapping[str, str]) -> Cache:
    """The cache with new names where `names` has one; scales and order stay.

    Raises:
        QdqError: two entries would have one name.
    """
    entries = {names.get(name, name): scale for name, scale in cache.entries.items()}
    if len(entries) != len(cache.entries):
        raise QdqError("cache", "two of its entries would get the same name", "give different new names")
    dropped = tuple((names.get(name, name), digits, reason) for name, digits, reason in cache.dropped)
    return dataclasses.replace(cache, entries=entries, dropped=dropped)
