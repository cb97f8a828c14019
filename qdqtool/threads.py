# SPDX-License-Identifier: Apache-2.0
"""How many threads or processes a machine has use for. Not what they do."""

from __future__ import annotations

import os

from qdqtool.errors import QdqError

MOST_THREADS = 1024  # more than any machine that this runs on has use for; each takes a stack
_PER_CORE = 4  # beyond it, threads wait for one another; some wait for a disk or a GPU
_ALWAYS = 8


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def useful_threads() -> int:
    """The most threads that this machine gains from: four for each core, and eight on the smallest."""
    return max(_ALWAYS, _PER_CORE * usable_cores())


def check_threads(option: str, count: int) -> None:
    """Refuse a number of threads that cannot be meant.

    Raises:
        QdqError: it is below 1 or above `MOST_THREADS`.
    """
    if not 1 <= count <= MOST_THREADS:
        raise QdqError(option, f"{count} is not a number of threads", f"give 1 to {MOST_THREADS}")
