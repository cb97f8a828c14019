# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its steps in `.steps`: what each was made from and what it wrote, each record as a whole."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.recipe.content_hash import ContentHashes

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder look the same there
    fcntl = None  # type: ignore[assignment]

STEPS = ".steps"
MODEL, _HASHES = "_model", "_hashes.json"  # no step's name begins so
SCHEMA = 1


@dataclass(frozen=True)
class StepRecord:
    """A step that is done.

    Attributes:
        key: the hash of all that it was made from.
        made_from: what that was, for people.
        files: file relative to the run's folder -> hash of its content.
        facts: what the table says of it.
    """

    key: str
    made_from: Mapping[str, Any]
    files: Mapping[str, str]
    facts: Mapping[str, Any]


def is_below(relative: Path) -> bool:
    """Whether a path that is relative to the run's folder names something in it."""
    return not relative.is_absolute() and ".." not in relative.parts and bool(relative.name)


def is_own(relative: Path) -> bool:
    """Whether a path below the run's folder is that of a record, or of a file that is not finished."""
    return any(part == STEPS or part.startswith(".qdqtool-") for part in relative.parts)


def key_of(made_from: Mapping[str, Any]) -> str:
    """The hash of what a step is made from."""
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode("ascii")).hexdigest()


class StepStore:
    """The records of a run's folder."""

    def __init__(self, folder: Path, hashes: ContentHashes | None = None) -> None:
        self.folder = folder
        self.hashes = hashes or ContentHashes(folder / STEPS / _HASHES)

    def record(self, name: str) -> StepRecord | None:
        """What is kept of a step; None where nothing is that can be read."""
        try:
            kept = json.loads(self._path(name).read_text(encoding="ascii"))
            if kept["schema"] != SCHEMA:
                return None
            files = dict(kept["files"])
            if not all(is_below(Path(name)) for name in files):  # they may be deleted
                return None
            return StepRecord(kept["key"], kept["made_from"], files, dict(kept["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_current(self, record: StepRecord, key: str) -> bool:
        """Whether a step need not run again: it was made from the same, and its files are as it wrote them."""
        return record.key == key and all(self._holds(name, wanted) for name, wanted in record.files.items())

    def keep(self, name: str, record: StepRecord) -> None:
        """Record that a step is done: its files are there already."""
        document = {
            "schema": SCHEMA,
            "key": record.key,
            "made_from": record.made_from,
            "files": record.files,
            "facts": record.facts,
        }
        with replacing(self._path(name)) as file:
            file.write((json.dumps(document, indent=1) + "\n").encode("ascii"))

    def checkpoint(self, name: str, key: str) -> Path:
        """Where a step's unfinished work is kept, of one key only."""
        return self.folder / STEPS / f"{name}.{key[:16]}.checkpoint"

    def forget(self, name: str, unfinished: Path | None = None) -> None:
        """Drop a step's record, then the files that it wrote, and unfinished work of it but what is named."""
        record = self.record(name)
        self._path(name).unlink(missing_ok=True)
        for path in (self.folder / STEPS).glob(f"{glob.escape(name)}.*.checkpoint"):
            if path != unfinished:
                path.unlink()
        for file in record.files if record is not None else ():
            with contextlib.suppress(OSError):
                (self.folder / file).unlink()

    def written(self, before: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """The files that are new or changed since `before`, with their hashes."""
        now = self.listing()
        return {name: self.hashes.of(self.folder / name) for name in sorted(now) if before.get(name) != now[name]}

    def listing(self) -> dict[str, tuple[int, ...]]:
        """Every file of the run's folder and what the system says of it; records and unfinished files left out."""
        found: dict[str, tuple[int, ...]] = {}
        for path in self.folder.rglob("*"):
            relative = path.relative_to(self.folder)
            if path.is_file() and not is_own(relative):
                status = path.stat()
                found[relative.as_posix()] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return found

    def _holds(self, name: str, wanted: str) -> bool:
        try:
            return self.hashes.of(self.folder / name) == wanted
        except QdqError:
            return False

    def _path(self, name: str) -> Path:
        return self.folder / STEPS / f"{name}.json"


@contextlib.contextmanager
def held(folder: Path, hashes: ContentHashes | None = None) -> Iterator[StepStore]:
    """The store of a run's folder, which is made; for one run at a time. `hashes` are those of several folders.

    Raises:
        QdqError: another run holds it, or it cannot be made.
    """
    try:
        (folder / STEPS).mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / STEPS / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise QdqError(folder, f"cannot be made ({error.strerror})", "give another folder with -o") from error
    try:
        take_lock(folder, handle)
        try:
            try:
                os.write(handle, b"held by the run that is at work here\n")
            except OSError as error:
                raise QdqError(folder, f"cannot be written ({error.strerror})", "give another with -o") from error
            yield StepStore(folder, hashes)
        except QdqError:
            _leave_nothing(folder)
            raise
    finally:
        os.close(handle)


def take_lock(folder: Path, handle: int) -> None:
    """Hold an open file until it is closed, for a folder that one run at a time uses.

    Raises:
        QdqError: another run holds it.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise QdqError(folder, "another run is using it", "wait for it, or give another folder") from None
    except OSError:
        return  # a file system without locks


def _leave_nothing(folder: Path) -> None:
    """Take away what a run made that failed before its first step was done."""
    own = [folder / STEPS / name for name in ("lock", _HASHES, f"{MODEL}.json")]
    with contextlib.suppress(OSError):
        if {path.name for path in (folder / STEPS).iterdir()} <= {path.name for path in own}:
            for path in own:
                path.unlink(missing_ok=True)
            (folder / STEPS).rmdir()
            folder.rmdir()
