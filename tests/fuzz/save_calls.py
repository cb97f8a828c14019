# SPDX-License-Identifier: Apache-2.0
"""Counts a process's calls that change files below a folder, and lets one of them fail or kill. Not what that shows.

Opening, renaming, removing and making are heard through audit hooks, which may raise; fsync and write are replaced.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Way = Literal["count", "error", "kill"]
_PATHS = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.chmod": 1, "os.link": 2, "os.truncate": 1}
# What Linux answers to each call when a disk, a quota, a permission or a server is at fault: its manual's section 2.
ERRORS = {
    "open": (errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENOSPC, errno.EROFS),
    "write": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    "fsync": (errno.EIO, errno.EDQUOT, errno.EINVAL, errno.ENOSPC),
    "os.rename": (
        errno.EACCES, errno.EBUSY, errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EPERM, errno.EROFS, errno.EXDEV,
    ),
    "os.remove": (errno.EACCES, errno.EBUSY, errno.EIO, errno.EPERM, errno.EROFS),
    "os.mkdir": (errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EMLINK, errno.EROFS),
    "os.rmdir": (errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS),
    "os.chmod": (errno.EPERM, errno.EACCES, errno.EIO, errno.EROFS),
    "os.link": (errno.EACCES, errno.EDQUOT, errno.EMLINK, errno.ENOSPC, errno.EPERM, errno.EXDEV),
    "os.truncate": (errno.EACCES, errno.EFBIG, errno.EIO, errno.EPERM),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass
class Calls:
    """The calls of this process so far.

    Attributes:
        root: only files below it count.
        way: what happens at call number `at`, from 0: an OSError with the number `error`, or SIGKILL.
        names: what was called, in order.
    """

    root: Path
    way: Way = "count"
    at: int = -1
    error: int = errno.EACCES
    names: list[str] = field(default_factory=list)

    def arm(self) -> None:
        """Begin to count; there is no way back but the end of the process."""
        sys.addaudithook(self._heard)
        plain_fsync, plain_open = os.fsync, io.open

        def fsync(handle: int) -> None:
            self.tick("fsync")
            plain_fsync(handle)

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            made = plain_open(file, mode, *args, **kwargs)
            return _File(made, self) if set(mode) & set("wxa+") and self._below(file) else made

        os.fsync = fsync
        io.open = builtins.open = opened  # type: ignore[assignment]

    def tick(self, name: str, path: str | None = None) -> None:
        """One call; it fails or kills if it is its turn."""
        self.names.append(name)
        if len(self.names) - 1 != self.at:
            return
        if self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "error":
            words = (self.error, os.strerror(self.error))
            raise OSError(*words, path) if path else OSError(*words)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and self._below(path):
                self.tick("open", os.fspath(path))
        elif event in _PATHS and any(self._below(path) for path in arguments[: _PATHS[event]]):
            self.tick(event, os.fspath(arguments[0]))

    def _below(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and Path.cwd().joinpath(path).is_relative_to(self.root)


class _File:
    """A file whose writes are counted; all else is the file's own."""

    def __init__(self, file: Any, calls: Calls) -> None:
        self._file = file
        self._calls = calls

    def write(self, data: Any) -> Any:
        self._calls.tick("write")
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)
