# SPDX-License-Identifier: Apache-2.0
"""Memory that a step holds: work in parts that fit, and freed memory given back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from qdqtool.runtime.shared_arena import ARENA

_Item = TypeVar("_Item")


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
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or Windows, which opens no library by no name
        return False
    trim(0)
    return True
