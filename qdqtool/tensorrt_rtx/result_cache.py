# SPDX-License-Identifier: Apache-2.0
"""Results of earlier jobs by content, in the user's cache folder: the same model, library and options, the same result.

What cannot be read counts as not there. No engine is kept, only what the log says of it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.files import replacing

FOLDER = "QDQTOOL_CACHE_DIR"
MAX_BYTES = 256 << 20
_MAX_ENTRY = 512 << 20  # unpacked
_SUFFIX = ".rtx.json.gz"


def cache_folder() -> Path:
    """Where results lie: QDQTOOL_CACHE_DIR, else `qdqtool` in the user's cache folder."""
    if named := os.environ.get(FOLDER):
        return Path(named) / "rtx"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "qdqtool" / "rtx"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qdqtool" / "rtx"


def make_key(parts: Mapping[str, Any]) -> str:
    """The name of an entry: a digest of everything that its result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_entry(key: str) -> dict[str, Any] | None:
    """An earlier result; None where there is none, or where its file is damaged."""
    path = _path(key)
    try:
        with gzip.open(path, "rb") as file:
            data = file.read(_MAX_ENTRY + 1)
        entry = json.loads(data) if len(data) <= _MAX_ENTRY else None
        if not isinstance(entry, dict) or entry.get("key") != key or not isinstance(entry.get("result"), dict):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the entries that were read last are kept longest
    except (OSError, EOFError, ValueError, zlib.error, RecursionError):
        return None
    result: dict[str, Any] = entry["result"]
    return result


def write_entry(key: str, result: Mapping[str, Any], most: int = MAX_BYTES) -> None:
    """Keep a result, whole or not at all; a folder that cannot be written keeps none.

    Args:
        key: of `make_key`.
        result: what JSON can hold.
        most: bytes that all entries together may take; those that were not read for longest go first.
    """
    data = gzip.compress(json.dumps({"key": key, "result": result}).encode(), 6, mtime=0)
    if len(data) > most:
        return
    path = _path(key)
    with contextlib.suppress(OSError, QdqError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, most - len(data))
        with replacing(path) as file:
            file.write(data)


def _path(key: str) -> Path:
    return cache_folder() / f"{key}{_SUFFIX}"


def _make_room(folder: Path, most: int) -> None:
    """Remove the entries that were not read for longest, until the others take at most so many bytes."""
    entries = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.stat()
            entries.append((status.st_mtime, path.name, status.st_size))
    total = sum(size for _, _, size in entries)
    for _, name, size in sorted(entries):
        if total <= most:
            return
        (folder / name).unlink(missing_ok=True)
        total -= size
