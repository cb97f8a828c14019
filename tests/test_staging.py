# SPDX-License-Identifier: Apache-2.0
"""Temporary folders go with their process: those of killed ones are swept, those in use never."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qdqtool import staging
from qdqtool.files import replacing
from qdqtool.staging import Staging, sweep

with contextlib.suppress(ImportError):
    import fcntl

WRITER = """
import sys
from pathlib import Path
from qdqtool.files import FileSet
with FileSet() as files:
    with files.open(Path(sys.argv[1]) / "a") as file:
        file.write(b"half")
        print("here", flush=True)
        sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def writer(folder: Path) -> subprocess.Popen[bytes]:
    """A process in the middle of a write."""
    words = [sys.executable, "-c", WRITER, str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    return process


def test_what_a_killed_process_left_is_swept_by_the_next_write(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        process.kill()
        process.communicate()
    assert len(names(tmp_path)) == 1
    with replacing(tmp_path / "b") as file:
        file.write(b"whole")
    assert names(tmp_path) == ["b"]


def test_what_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        held = names(tmp_path)
        sweep(tmp_path)
        with replacing(tmp_path / "b") as file:
            file.write(b"whole")
        assert names(tmp_path) == [*held, "b"]
        process.communicate(b"")
    assert process.returncode == 0
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"half"


def test_a_folder_is_swept_whenever_its_process_was_killed(tmp_path: Path) -> None:
    """Before the lock was made, with the lock alone, with files and folders, and half-way through another sweep."""
    made = [tmp_path / f".qdqtool-{number:016x}.tmp" for number in range(3)]
    for place in made:
        place.mkdir()
    (made[1] / "lock").touch()
    (made[2] / "lock").touch()
    (made[2] / "folder").mkdir()
    (made[2] / "folder" / "1.png").touch()
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_folder_whose_lock_cannot_be_made_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: Path) -> None:
        raise PermissionError(13, "Permission denied", str(lock))

    monkeypatch.setattr(staging, "_hold", refuse)
    with pytest.raises(PermissionError):
        Staging(tmp_path)
    assert names(tmp_path) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    (tmp_path / ".qdqtool-00000000000000aa.tmp").symlink_to("elsewhere")
    (tmp_path / ".qdqtool-00000000000000ab.tmp").touch()
    (tmp_path / ".qdqtool-mine.tmp").mkdir()
    linked = tmp_path / ".qdqtool-00000000000000ac.tmp"
    linked.mkdir()
    (linked / "lock").touch()
    (linked / "link").symlink_to(tmp_path / "elsewhere")
    before = names(tmp_path)
    sweep(tmp_path)
    assert names(tmp_path) == [name for name in before if name != linked.name]
    assert names(tmp_path / "elsewhere") == ["lock"]


def test_a_sweep_between_making_and_locking_costs_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sweeps = staging._hold, []

    def late(lock: Path) -> int | None:
        if not sweeps:
            sweeps.append(lock)
            sweep(tmp_path)
        return real(lock)

    monkeypatch.setattr(staging, "_hold", late)
    with Staging(tmp_path) as held:
        assert held.path != sweeps[0].parent
        assert names(tmp_path) == [held.path.name]
    assert names(tmp_path) == []


def test_a_lock_that_is_taken_or_gone_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_take", lambda handle: False)
    with pytest.raises(BlockingIOError, match="removed "):
        Staging(tmp_path)

    def vanish(handle: int) -> bool:
        (tmp_path / "lock").unlink()
        return True

    monkeypatch.setattr(staging, "_take", vanish)
    assert staging._hold(tmp_path / "lock") is None


def test_nothing_is_swept_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ".qdqtool-00000000000000ab.tmp"
    place.mkdir()
    (place / "lock").touch()
    monkeypatch.setattr(staging, "_take", lambda handle: None)
    with Staging(tmp_path) as held:
        assert names(tmp_path) == sorted([place.name, held.path.name])
    assert names(tmp_path) == [place.name]


def test_many_writers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    faults: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(20):
                with replacing(tmp_path / f"{number}") as file:
                    file.write(f"{turn}".encode())
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert names(tmp_path) == ["0", "1", "2", "3"]
    assert {os.fsdecode(path.read_bytes()) for path in tmp_path.iterdir()} == {"19"}


class WindowsLocks:
    """msvcrt by flock: `locking` of a byte that another handle has is a PermissionError."""

    LK_NBLCK = 2

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of Windows, and files that are not removed while they are open."""
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        handles = Path("/proc/self/fd").iterdir()
        if path.absolute() in [handle.readlink() for handle in handles if handle.is_symlink()]:
            raise PermissionError(32, "is used by another process", str(path))
        real(path, missing_ok)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not list open files")
    monkeypatch.setattr(staging, "fcntl", None)
    monkeypatch.setattr(staging, "msvcrt", WindowsLocks())
    monkeypatch.setattr(Path, "unlink", unlink)
    for name in ("O_NOFOLLOW", "O_NONBLOCK"):
        monkeypatch.delattr(os, name)


@pytest.mark.usefixtures("windows")
def test_nothing_is_left_on_windows(tmp_path: Path) -> None:
    """A writer's own folder goes, one that is in use stays, one whose process is gone is swept."""
    abandoned = tmp_path / ".qdqtool-00000000000000ab.tmp"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    (abandoned / "half").touch()
    with Staging(tmp_path) as held:
        assert names(tmp_path) == [held.path.name]
        with replacing(tmp_path / "b") as file:
            file.write(b"whole")
        assert names(tmp_path) == [held.path.name, "b"]
    assert names(tmp_path) == ["b"]


@pytest.mark.usefixtures("windows")
def test_a_sweep_before_locking_leaves_the_folder_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is open from the moment it is made, so that the sweep cannot remove it."""
    real = staging._take

    def late(handle: int) -> bool | None:
        monkeypatch.setattr(staging, "_take", real)
        sweep(tmp_path)
        return real(handle)

    monkeypatch.setattr(staging, "_take", late)
    with Staging(tmp_path) as held:
        (held.path / "file").touch()
        assert names(tmp_path) == [held.path.name]
    assert names(tmp_path) == []
