# SPDX-License-Identifier: Apache-2.0
"""Files that a command replaces: told, for what was there is gone. Who writes them is not asked."""

from __future__ import annotations

import argparse
from pathlib import Path

_CACHE_WRITERS = ("peel", "ptq")  # --cache of others is read

# What tells one content of a path from another: when it was written, and which file it is.
Stamp = tuple[int, int]


def files_there(verb: str, args: argparse.Namespace) -> dict[Path, Stamp]:
    """The files that a command is told to write and that exist already."""
    words = [getattr(args, "output", None), getattr(args, "cache", None) if verb in _CACHE_WRITERS else None]
    paths = [Path(word) for word in words if isinstance(word, str)]
    return {path: stamp for path in paths if (stamp := _stamp(path)) is not None}


def replaced(before: dict[Path, Stamp]) -> list[Path]:
    """Those of them that are other files now."""
    return [path for path, stamp in before.items() if _stamp(path) not in (stamp, None)]


def _stamp(path: Path) -> Stamp | None:
    """None where there is no file, or none that can be looked at."""
    try:
        found = path.stat() if path.is_file() else None
    except (OSError, ValueError):  # what is no path the verb refuses
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino)
