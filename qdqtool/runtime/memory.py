# SPDX-License-Identifier: Apache-2.0
"""Memory that a step holds: work in parts that fit, and freed memory given back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from qdqtool.runtime.shared_arena import ARENA

_Item = TypeVar("_Item")

# Parameters of glibc's mallopt: from which size a piece is mapped by itself, and how much free memory at the heap's end
# is kept. glibc raises the first, of 128 KiB, to the size of each mapped piece that is freed, up to 32 MiB, and the
# second to twice of it; once either is set, it leaves both alone.
_MAP_FROM, _KEEP_FREE = -3, -1


def parts_within(limit: int, items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Items in their order, in parts whose sizes sum up to no more than a limit; one that is larger stands alone."""
    part: list[_Item] = []
    held = 0
    for one in items:
        size = size_of(one)
        if part and held + size > limit:
            yield part
            part, held = [], 0
        part.append(one)
        held += size
    if part:
        yield part


def release_freed_memory(*, cycles: bool = False) -> bool:
    """Let onnxruntime and the C library give back what they hold free, between steps that each hold a model's weights.

    glibc keeps what weights of some megabytes leave behind. Nothing but the size of the process depends on it.
    """
    if cycles:
        gc.collect()
    ARENA.shrink()
    trim = _of_c_library("malloc_trim")
    if trim is None:
        return False
    trim(0)
    return True


@contextmanager
def large_pieces_mapped() -> Iterator[None]:
    """Have glibc map each piece of 1 MiB or more by itself, so that it goes back to the system when it is freed.

    A session that starts holds weights twice while it lays them out anew. In glibc's heap the first copies leave holes
    that stay: a start with 2.6 GB of weights took 2.7 or 3.4 GB, by what was freed before.
    """
    set_parameter = _of_c_library("mallopt")
    if set_parameter is not None:
        set_parameter(_MAP_FROM, 1 << 20)
    try:
        yield
    finally:
        if set_parameter is not None:
            set_parameter(_MAP_FROM, 32 << 20)
            set_parameter(_KEEP_FREE, 64 << 20)


def _of_c_library(name: str) -> Any:
    """A function of glibc; None where there is another C library, or on Windows, which opens no library by no name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
