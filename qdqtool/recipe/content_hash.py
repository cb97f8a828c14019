# SPDX-License-Identifier: Apache-2.0
"""What files and folders hold, as a hash; files that did not change since are not read again.

The digest of one file is that of `file_digest.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256
from qdqtool.files import replacing
from qdqtool.graph.io import open_model

# A file that changed just before it was read may change again within one tick of its clock: it is read again.
_SETTLED_NS = 2_000_000_000


class ContentHashes:
    """Hashes by content, with a memory: a file of the same size, times and inode number is not read again."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(memory.read_text(encoding="ascii"))
            self._known = known if isinstance(known, dict) else {}

    def of(self, path: Path) -> str:
        """The hash of a file, with the data files of a model; or of a folder, by the names and content below it.

        Raises:
            QdqError: it cannot be read; a model that cannot be opened.
        """
        try:
            if path.is_dir():
                return self._folder(path)
            return self._model(path) if path.suffix == ".onnx" else self._file(path)[0]
        except OSError as error:
            raise QdqError(path, f"cannot be read ({error.strerror})") from error

    def save(self) -> None:
        """Keep the memory for the next run."""
        with replacing(self._memory) as file:
            file.write(json.dumps(self._known, sort_keys=True).encode("ascii"))

    def _folder(self, path: Path) -> str:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = (f"{file.relative_to(path).as_posix()}\0{self._file(file)[0]}\n" for file in files)
        return _digest("".join(lines))

    def _model(self, path: Path) -> str:
        """A model and the data files beside it."""
        own, entry = self._file(path)
        if "data" not in entry:
            entry["data"] = [str(file) for file in open_model(path).files[1:]]
        data = [Path(name) for name in entry["data"]]
        return _digest("".join([own, *(self._file(file)[0] for file in data)])) if data else own

    def _file(self, path: Path) -> tuple[str, dict[str, Any]]:
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        key = os.path.realpath(path)
        entry = self._known.get(key)
        if not isinstance(entry, dict) or entry.get("stat") != stamp:
            entry = {"stat": stamp, "sha256": file_sha256(path)}
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
                self._known[key] = entry
        return str(entry["sha256"]), entry


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
