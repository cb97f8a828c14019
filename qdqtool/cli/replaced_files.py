# SPDX-License-Identifier: Apache-2.0
"""Files that a command is told to write: stdout is none, and one that is replaced is named, for what was there is gone.

Who writes them is not asked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.recipe.verb_files import READ_BY, WRITTEN

_CACHE_WRITERS = ("peel", "ptq")  # --cache of others is read

# What tells one content of a path from another: when it was written, and which file it is.
Stamp = tuple[int, int]


def refuse_dash(verb: str, args: argparse.Namespace) -> None:
    """Refuse `-` as the name of a file to write: other programs mean stdout by it, which has the results.

    Raises:
        QdqError: an option has it.
    """
    names = WRITTEN | ({"cache"} if verb in _CACHE_WRITERS else set())
    for name in sorted(names - READ_BY.get(verb, frozenset())):
        if str(getattr(args, name.replace("-", "_"), None)) == "-":
            option = "-o" if name == "output" else f"--{name}"
            raise QdqError(f"{option} -", "is no file: no verb writes one to stdout", "give the name of a file")


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
