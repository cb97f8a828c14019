# SPDX-License-Identifier: Apache-2.0
"""Memory that was freed given back to the system: glibc keeps what weights of some megabytes leave behind."""

from __future__ import annotations

import ctypes


def release_freed_memory() -> bool:
    """Let the C library give back what it holds free, between steps that each hold a model's weights.

    Nothing but the size of the process depends on it.

    Returns:
        Whether the library can: glibc has `malloc_trim`, others keep less or cannot be asked.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or Windows, which opens no library by no name
        return False
    trim(0)
    return True
