# SPDX-License-Identifier: Apache-2.0
"""How files come into being: whole or not at all, all of one run or none, never over an input. Not what is in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from qdqtool.errors import QdqError
from qdqtool.staging import Staging

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class _Staged:
    """A finished temporary file, where it goes, and the name that messages give it."""

    temporary: Path
    target: Path
    path: _Path

    @property
    def backup(self) -> Path:
        """Where the target's old content stays until all files are in place."""
        return self.temporary.with_name(f"{self.temporary.name}.old")


class FileSet:
    """Files that appear together when the `with` block ends without a fault, or not at all.

    Each file goes to a temporary file on the file system of its target, synced there. At the end all of them are
    renamed; where one rename fails, those before it are undone. A target that exists keeps its mode; a symbolic link
    keeps pointing where it did, and what it points to is replaced. A process that is killed leaves temporary files,
    which the next run that writes to the same folder removes (see `staging`); one that is killed between two renames
    leaves whole files, old and new ones.

    Args:
        inputs: files that are read; none of them is ever replaced.

    Attributes:
        not_executable: files that the file system does not let be executable -> its reason.

    Raises:
        QdqError: from `open`, `add` and the end of the block: two files of one name, a file that is an input, a folder
            that is missing or read-only, a target that is not a regular file, a full disk. Nothing is written then.
    """

    def __init__(self, inputs: Iterable[_Path] = ()) -> None:
        self._inputs = _Inputs(inputs)
        self._targets: set[Path] = set()
        self._staged: list[_Staged] = []
        self._stagings: dict[Path, Staging] = {}
        self._folders: list[Path] = []
        self.not_executable: dict[Path, str] = {}

    def __enter__(self) -> FileSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        done = False
        try:
            if kind is None:
                self._commit()
                done = True
        finally:
            for staging in self._stagings.values():
                staging.close()
            for folder in () if done else reversed(self._folders):
                with contextlib.suppress(OSError):  # something else was put there
                    folder.rmdir()

    @contextlib.contextmanager
    def open(self, path: _Path, *, executable: bool = False) -> Iterator[BinaryIO]:
        """A file of the set, open for reading, writing and seeking; the closing of it is left to this block."""
        target = self._checked(path)
        mode = _mode(target, path)
        try:
            temporary = self.scratch(target.parent) / f"{len(self._staged)}"
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            with temporary.open("xb+") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(mode)
            if executable:
                self._make_executable(temporary, path)
        except OSError as error:
            if error.filename is not None and not _is_within(error.filename, self._stagings):
                raise QdqError(error.filename, str(error.strerror)) from error  # a file that the block read
            raise _cannot_write(path, error) from error
        self._staged.append(_Staged(temporary, target, path))

    def _make_executable(self, temporary: Path, path: _Path) -> None:
        try:
            temporary.chmod(stat.S_IMODE(temporary.stat().st_mode) | 0o111)
        except OSError as error:  # such as on FAT: the file is whole all the same
            self.not_executable[Path(path)] = str(error.strerror)

    def add(self, temporary: Path, path: _Path) -> None:
        """Take in a finished file that lies in a folder of `scratch`, on the file system of its target."""
        self._staged.append(_Staged(temporary, self._checked(path), path))

    def scratch(self, folder: Path) -> Path:
        """The folder for temporary files in `folder`, made when it is first asked for.

        Raises:
            OSError: it cannot be made.
        """
        if folder not in self._stagings:
            self._stagings[folder] = Staging(folder)
        return self._stagings[folder].path

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it; they are removed again where the set is not written.

        Raises:
            QdqError: it cannot be made.
        """
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            for one in reversed(missing):
                one.mkdir(exist_ok=True)
                self._folders.append(one)
        except OSError as error:
            raise QdqError(folder, f"cannot be made ({error.strerror})", "write to another folder") from error

    def _checked(self, path: _Path) -> Path:
        self._inputs.refuse(path)
        target = _resolved(path)
        if target in self._targets:
            raise QdqError(path, "is the name of two outputs", "give each a name of its own")
        self._targets.add(target)
        return target

    def _commit(self) -> None:
        """Rename every file to its target, or put back what was there."""
        current = self._staged[0] if self._staged else None
        try:
            for current in self._staged if len(self._staged) > 1 else ():
                _keep_old(current)
            for current in self._staged:
                current.temporary.replace(current.target)
        except BaseException as error:
            self._roll_back()
            if isinstance(error, OSError) and current is not None:
                raise _cannot_write(current.path, error) from error
            raise
        for folder in dict.fromkeys(one.target.parent for one in self._staged):
            _sync_folder(folder)

    def _roll_back(self) -> None:
        stuck = []
        for one in reversed(self._staged):
            if one.temporary.exists():
                continue  # was not renamed yet
            try:
                if one.backup.exists():
                    one.backup.replace(one.target)
                else:
                    one.target.unlink(missing_ok=True)
            except OSError as error:
                stuck.append(f"{one.path} ({error.strerror})")
        if stuck:
            raise QdqError(", ".join(stuck), "was written, but the other files of the run could not be", "remove it")


@contextlib.contextmanager
def replacing(path: _Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` only when the block ends without a fault: a `FileSet` of one.

    Raises:
        QdqError: see `FileSet`. Whatever is raised, here or in the block, the target keeps its old content and no
            temporary file stays.
    """
    with FileSet() as files, files.open(path) as file:
        yield file


@contextlib.contextmanager
def joined(files: FileSet | None) -> Iterator[FileSet]:
    """The set that is given, to be finished by its owner; where there is none, a new one that ends with the block."""
    if files is not None:
        yield files
        return
    with FileSet() as own:
        yield own


def refuse_overwrite(target: _Path, inputs: Iterable[_Path]) -> None:
    """Refuse a target that is one of the inputs, by whatever name or link.

    Raises:
        QdqError: writing `target` would overwrite an input, or its name can be that of no file.
    """
    _Inputs(inputs).refuse(target)


def check_outputs(outputs: Mapping[str, _Path | None], inputs: Iterable[_Path]) -> None:
    """Refuse, before any work is done, files that could not be written together.

    Raises:
        QdqError: a file is an input, two have one name, a folder is missing or read-only, a name is too long, or the
            target is not a regular file.
    """
    known = _Inputs(inputs)
    taken: dict[Path, str] = {}
    for what, path in outputs.items():
        if path is None:
            continue
        known.refuse(path)
        target = _resolved(path)
        if target in taken:
            raise QdqError(path, f"is the name of {taken[target]} and of {what}", "name two files")
        taken[target] = what
        _mode(target, path)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise QdqError(path, "cannot be written (no permission for its folder)", "give another path")


class _Inputs:
    """Files that are read, known by where their names lead and by what the system calls them."""

    def __init__(self, paths: Iterable[_Path]) -> None:
        self._places: set[str] = set()
        self._files: set[tuple[int, int]] = set()
        for path in paths:
            with contextlib.suppress(OSError, ValueError):  # nothing is there that could be overwritten
                self._places.add(os.path.realpath(path))
                status = Path(path).stat()
                self._files.add((status.st_dev, status.st_ino))

    def refuse(self, target: _Path) -> None:
        try:
            same = os.path.realpath(target) in self._places
            if not same:
                status = Path(target).stat()
                same = (status.st_dev, status.st_ino) in self._files
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise _cannot_write(target, error) from error
        if same:
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


def _keep_old(one: _Staged) -> None:
    """A second name for the target's present content, or a copy where the file system knows no second names."""
    try:
        one.backup.hardlink_to(one.target)
    except FileNotFoundError:
        return
    except OSError:
        shutil.copy2(one.target, one.backup)


def _is_within(name: object, folders: Mapping[Path, Staging]) -> bool:
    own = [str(staging.path) for staging in folders.values()]
    return any(str(name) == place or str(name).startswith(place + os.sep) for place in own)


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
