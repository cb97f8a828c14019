# SPDX-License-Identifier: Apache-2.0
"""Folders for files that are not finished, held by a lock, and the removal of those that a killed process left.

A folder `.qdqtool-*.tmp` holds a file `lock`, on which its process keeps an flock, on Windows a lock of its first byte:
the system gives the lock back when the process ends, however it ends. What can be locked belongs to nobody. No process
id is looked at, so that neither one that is used again nor another machine or container on a shared disk misleads.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]

_NAME = re.compile(r"\.qdqtool-[0-9a-f]{16}\.tmp")
_LOCK = "lock"
_ATTEMPTS = 16


class Staging:
    """A new folder in `parent`, on the same file system as what will be renamed into `parent`.

    The folders that killed processes left in `parent` are removed first. Leaving the `with` block removes this one.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        self.path, self._handle = _held_folder(parent)

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        _remove(self.path, self._handle)


def sweep(parent: Path) -> None:
    """Remove the staging folders in `parent` whose process is gone; never one that is in use, in any process."""
    if fcntl is None and msvcrt is None:
        return
    try:
        with os.scandir(parent) as entries:
            found = [one.path for one in entries if _NAME.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except OSError:  # a folder that may be written to and not listed
        return
    for path in found:
        _remove_abandoned(Path(path))


def _held_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the handle that holds its lock; another one where a sweep came between making and locking."""
    for _ in range(_ATTEMPTS):
        place = parent / f".qdqtool-{secrets.token_hex(8)}.tmp"
        place.mkdir()
        try:
            handle = _hold(place / _LOCK)
        except BaseException:
            _remove(place, None)
            raise
        if handle is not None:
            return place, handle
    raise BlockingIOError(f"temporary folders in {parent} are removed as soon as they are made")


def _hold(lock: Path) -> int | None:
    """Make and lock the file; None where another process swept it meanwhile."""
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return None
    try:
        # Windows removes no file that is open, so that a sweep cannot have taken this one away.
        if _take(handle) is False or (msvcrt is None and not _is_same(handle, lock)):
            os.close(handle)
            return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _take(handle: int) -> bool | None:
    """Whether the lock was had; None where the file system knows no locks."""
    try:
        if msvcrt is not None:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        elif fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            return None
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _is_same(handle: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _remove_abandoned(place: Path) -> None:
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK"))  # Windows has neither
    try:
        handle = os.open(place / _LOCK, os.O_RDWR | sum(flags))
    except FileNotFoundError:  # killed, or interrupted, before the lock was made: empty, or not ours
        with contextlib.suppress(OSError):
            place.rmdir()
        return
    except OSError:  # of another user
        return
    if _take(handle):
        _remove(place, handle)
    else:
        os.close(handle)


def _remove(place: Path, handle: int | None) -> None:
    """Remove a folder, its lock last, and close the lock: killed half-way, it is swept again."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _LOCK:
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
    if handle is not None and msvcrt is not None:  # Windows removes no file that is open
        os.close(handle)
    with contextlib.suppress(OSError):
        (place / _LOCK).unlink()
    if handle is not None and msvcrt is None:  # elsewhere a process that takes the lock must find that its file is gone
        os.close(handle)
    with contextlib.suppress(OSError):
        place.rmdir()
