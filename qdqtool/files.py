# SPDX-License-Identifier: Apache-2.0
"""How a file comes into being: whole or not at all, and never over an input. Not what is in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from qdqtool.errors import QdqError

_Path = str | os.PathLike[str]


@contextlib.contextmanager
def replacing(path: _Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` only when the block ends without a fault.

    The bytes go to a temporary file in the target's folder, which is synced and renamed over the target. A target that
    exists keeps its mode; a symbolic link keeps pointing where it did, and what it points to is replaced.

    Args:
        path: the file to write; it may exist, its folder must.

    Yields:
        A binary file open for writing and seeking; the closing of it is left to this block.

    Raises:
        QdqError: the folder is missing or read-only, the target is no regular file, the disk is full. Whatever is
            raised, here or in the block, the target keeps its old content and no temporary file stays.
    """
    target = _resolved(path)
    mode = _mode(target, path)
    temporary = target.with_name(f".qdqtool-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename not in (None, str(temporary)):  # a file that the block read, not the one it wrote
            raise QdqError(error.filename, str(error.strerror)) from error
        raise _cannot_write(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def refuse_overwrite(target: _Path, inputs: Iterable[_Path]) -> None:
    """Refuse a target that is one of the inputs, by whatever name or link.

    Raises:
        QdqError: writing `target` would overwrite an input.
    """
    for source in inputs:
        with contextlib.suppress(FileNotFoundError):
            if os.path.realpath(target) == os.path.realpath(source) or Path(target).samefile(source):
                raise QdqError(target, "is the input, which is never overwritten", "give another name with -o")


def _resolved(path: _Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


def _mode(target: Path, path: _Path) -> int | None:
    """The permission bits of an existing regular file, None where there is no file yet."""
    try:
        status = target.stat()
    except FileNotFoundError:
        if target.parent.is_dir():
            return None
        raise QdqError(path, "cannot be written (its folder does not exist)", "create the folder first") from None
    except OSError as error:
        raise _cannot_write(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise QdqError(path, f"cannot be written (it is {kind})", "give the name of a file")
    return stat.S_IMODE(status.st_mode)


def _cannot_write(path: _Path, error: OSError | ValueError) -> QdqError:
    reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return QdqError(path, f"cannot be written ({reason})", "give another path, or make it writable")


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a power cut, where the system can: some refuse to open or sync a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
