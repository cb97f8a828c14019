# SPDX-License-Identifier: Apache-2.0
"""A folder of results that comes into being whole or not at all, and never over an input. Not what is in it."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.files import FileSet


def check_folder(folder: Path, inputs: Iterable[Path], *, force: bool = False) -> None:
    """Refuse a folder that results must not go to, before any work is done.

    Raises:
        QdqError: it is one of the inputs or holds one, is not a folder, or is not empty.
    """
    if not folder.absolute().parent.is_dir():
        raise QdqError(folder, "its folder does not exist", "make it, or name another")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise QdqError(folder, "is a file, results go to a folder", "name another with -o")
    place = folder.resolve()
    for source in inputs:
        if source.resolve() == place or (not force and place in source.resolve().parents):
            raise QdqError(folder, f"holds the input {source}, which is not changed", "name another with -o")
    if not force and any(folder.iterdir()):
        raise QdqError(folder, "is not empty", "name another with -o, or replace files of the same name with --force")


@contextlib.contextmanager
def filling(folder: Path, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """A new folder to write to, whose files move to `folder` when the block ends without a fault.

    Raises:
        QdqError: a file would replace an input; no permission, a full disk.
    """
    beside = folder
    try:
        with FileSet(inputs) as files:
            beside = files.scratch(folder.absolute().parent) / folder.name
            beside.mkdir()
            yield beside
            if _replaceable(folder, beside):
                beside.replace(folder)  # one rename: a kill leaves all of it or nothing
                return
            made = sorted(beside.iterdir())
            files.make_folder(folder)
            for file in made:
                files.add(file, folder / file.name)
    except QdqError as error:
        if beside == folder or not Path(error.where).is_relative_to(beside):
            raise
        raise QdqError(folder / Path(error.where).relative_to(beside), error.reason, error.todo) from error
    except OSError as error:
        name = None if error.filename is None else os.fsdecode(error.filename)
        if name is not None and beside != folder and not Path(name).is_relative_to(beside.parent):
            raise QdqError(name, str(error.strerror)) from error  # a file that the block read
        raise QdqError(folder, f"cannot be written ({error.strerror or error})", "give another with -o") from error


def _replaceable(folder: Path, beside: Path) -> bool:
    """Whether a folder is not there, or empty and as the new one is, on a system that renames over empty ones."""
    if not os.path.lexists(folder):
        return True
    if os.name != "posix" or folder.is_symlink() or any(folder.iterdir()):
        return False
    old, new = folder.stat(), beside.stat()
    return (old.st_mode, old.st_uid, old.st_gid) == (new.st_mode, new.st_uid, new.st_gid)


def picture_names(files: Sequence[Path]) -> list[str]:
    """A name ending in .png for each image file: its stem, or as much more as tells it from the others."""
    forms = [
        [file.stem for file in files],
        [file.name for file in files],
        [f"{file.parent.name}_{file.name}" for file in files],
        [f"{file.parent.name}_{file.name}_{index}" for index, file in enumerate(files)],
    ]
    counts = [Counter(name.lower() for name in form) for form in forms]
    return [
        next(f"{name}.png" for name, count in zip(named, counts, strict=True) if count[name.lower()] == 1)
        for named in zip(*forms, strict=True)
    ]
