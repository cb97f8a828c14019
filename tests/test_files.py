# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and inputs are never written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.files import FileSet, check_outputs, refuse_overwrite, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_a_new_file_with_the_usual_mode(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    with replacing(tmp_path / "new") as file:
        file.write(b"one")
    assert (tmp_path / "new").read_bytes() == b"one"
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode
    assert names(tmp_path) == ["new", "plain"]


def test_a_relative_name_lands_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with replacing("new") as file:
        file.write(b"one")
    assert (tmp_path / "new").read_bytes() == b"one"


def test_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_bytes(b"a much longer old content")
    target.chmod(0o640)
    with replacing(target) as file:
        file.write(b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_the_old_content_stands_until_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_bytes(b"old")
    with replacing(str(target)) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
        file.seek(0)
        assert file.read() == b"new"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("fault", [RuntimeError("x"), KeyboardInterrupt(), QdqError("m", "bad")])
def test_a_fault_in_mid_write_changes_nothing(tmp_path: Path, fault: BaseException, existed: bool) -> None:
    target = tmp_path / "t"
    if existed:
        target.write_bytes(b"old")
    with pytest.raises(type(fault)), replacing(target) as file:
        file.write(b"half")
        raise fault
    assert names(tmp_path) == (["t"] if existed else [])
    assert not existed or target.read_bytes() == b"old"


def test_a_full_disk_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"old")
    with pytest.raises(QdqError, match=r"t: cannot be written \(No space left on device\); give another path"), \
            replacing(tmp_path / "t"):  # fmt: skip
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (tmp_path / "t").read_bytes() == b"old"
    assert names(tmp_path) == ["t"]


def test_a_fault_of_another_file_is_named_after_that_file(tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught, replacing(tmp_path / "t"):
        (tmp_path / "weights.bin").read_bytes()
    assert caught.value.line() == f"{tmp_path / 'weights.bin'}: No such file or directory"
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.chmod"])
def test_a_failed_sync_or_rename_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    (tmp_path / "t").write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(step, fail)
    with pytest.raises(QdqError, match="Input/output error"), replacing(tmp_path / "t") as file:
        file.write(b"new")
    assert names(tmp_path) == ["t"]
    assert (tmp_path / "t").read_bytes() == b"old"


def test_a_symbolic_link_stays_and_its_end_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(Path("real") / "file")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new"
    assert names(tmp_path / "real") == ["file"]


def test_a_link_to_nothing_yet_creates_its_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("end")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "end").read_bytes() == b"new"


def test_targets_that_cannot_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "folder": "it is a folder",
        "absent/t": "its folder does not exist",
        "file/t": "Not a directory",
        "loop": "Too many levels of symbolic links",
        "pipe": "not a regular file",
        "n" * 300: "File name too long",
        "nul\0": "null",
    }
    before = names(tmp_path)
    for name, reason in cases.items():
        entered = False
        with pytest.raises(QdqError, match=reason), replacing(tmp_path / name):
            entered = True
        assert not entered, name  # refused before the work, not after it
    assert names(tmp_path) == before


def test_a_device_is_not_renamed_over() -> None:
    with pytest.raises(QdqError, match="not a regular file"), replacing(os.devnull):
        pass
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(QdqError, match="Permission denied"), replacing(tmp_path / "t"):
            pass
    finally:
        tmp_path.chmod(0o755)


def test_a_refused_temporary_is_reported_as_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(QdqError) as caught, replacing(tmp_path / "t"):
        pass
    assert (
        caught.value.line()
        == f"{tmp_path / 't'}: cannot be written (Permission denied); give another path, or make it writable"
    )


@pytest.mark.parametrize("link", ["itself", "symlink", "hard link", "roundabout", "dangling"])
def test_an_input_is_refused_by_any_name(tmp_path: Path, link: str) -> None:
    source, other = tmp_path / "in", tmp_path / "other"
    source.write_bytes(b"x")
    if link == "symlink":
        other.symlink_to(source)
    elif link == "hard link":
        other.hardlink_to(source)
    elif link == "roundabout":
        (tmp_path / "d").mkdir()
        other = tmp_path / "d" / ".." / "in"
    else:
        other = source
    if link == "dangling":
        source.unlink()
    with pytest.raises(QdqError, match=r"never overwritten; .*-o"):
        refuse_overwrite(other, [tmp_path / "absent", source])


def test_other_files_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    (tmp_path / "out").write_bytes(b"x")
    refuse_overwrite(tmp_path / "out", [tmp_path / "in"])
    refuse_overwrite(tmp_path / "new", [str(tmp_path / "in")])
    refuse_overwrite(tmp_path / "new", [])


def wrong(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_two(folder: Path, first: str = "a", second: str = "b/b") -> None:
    with FileSet() as files:
        for name in (first, second):
            with files.open(folder / name) as file:
                file.write(b"new")


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two folders with a file in each that is to be replaced."""
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"old a")
    (tmp_path / "b" / "b").write_bytes(b"old b")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OLD = {"a": b"old a", "b/b": b"old b"}


def test_a_set_arrives_together(two: Path) -> None:
    with FileSet() as files:
        with files.open(two / "a") as file:
            file.write(b"new")
        assert contents(two)["a"] == b"old a"
        with files.open(two / "b" / "new", executable=True) as file:
            file.write(b"script")
    assert contents(two) == {"a": b"new", "b/b": b"old b", "b/new": b"script"}
    assert (two / "b" / "new").stat().st_mode & 0o111
    assert names(two) == ["a", "b"]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.mkdir", "pathlib.Path.open"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_fault_at_any_file_of_a_set_leaves_all_as_they_were(
    two: Path, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    module, name = (os, "fsync") if step == "os.fsync" else (Path, step.rpartition(".")[2])
    real, calls = getattr(module, name), []

    def fail(*words: Any, **more: Any) -> Any:
        calls.append(words)
        return wrong() if len(calls) == nth else real(*words, **more)

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(QdqError, match="No space left on device"):
        write_two(two)
    monkeypatch.undo()
    assert contents(two) == OLD


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("links", [True, False])
def test_a_rename_that_fails_brings_back_what_was_renamed(
    two: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, links: bool
) -> None:
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target.name == "b" and self.suffix != ".old":
            raise fault
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", wrong)
    with pytest.raises((QdqError, KeyboardInterrupt)):
        write_two(two)
    assert contents(two) == OLD
    with pytest.raises((QdqError, KeyboardInterrupt)):
        write_two(two, "new", "b/b")
    assert contents(two) == OLD


def test_a_file_that_cannot_be_taken_back_is_named(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        return wrong() if target.name == "b" else real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr(Path, "unlink", wrong)
    with pytest.raises(QdqError, match=r"new \(No space left on device\): "):
        write_two(two, "new", "b/b")


def test_two_files_of_one_name_are_refused(two: Path) -> None:
    (two / "link").symlink_to("a")
    for second in ("a", "b/../a", "link"):
        with pytest.raises(QdqError, match="two outputs"):
            write_two(two, "a", second)
    assert contents(two) == {**OLD, "link": b"old a"}


def test_no_file_of_a_set_replaces_an_input(two: Path) -> None:
    (two / "hard").hardlink_to(two / "b" / "b")
    with pytest.raises(QdqError, match="is the input"), FileSet([two / "b" / "b"]) as files:
        with files.open(two / "a") as file:
            file.write(b"new")
        with files.open(two / "hard"):
            pass
    assert contents(two) == {**OLD, "hard": b"old b"}


def test_folders_of_a_set_that_fails_are_removed(tmp_path: Path) -> None:
    def fill(fault: bool) -> None:
        with FileSet() as files:
            files.make_folder(tmp_path / "x" / "y")
            with files.open(tmp_path / "x" / "y" / "f") as file:
                file.write(b"1")
            if fault:
                raise QdqError("m", "bad")

    with pytest.raises(QdqError):
        fill(fault=True)
    assert names(tmp_path) == []
    fill(fault=False)
    assert contents(tmp_path) == {"x/y/f": b"1"}


def test_outputs_are_checked_before_the_work(two: Path) -> None:
    check_outputs({"the model": two / "a", "the cache": two / "c", "the log": None}, [two / "b" / "b"])
    cases = {
        "is the name of the model and of the cache": {"the model": two / "c", "the cache": two / "b" / ".." / "c"},
        "is the input": {"the model": two / "b" / "b"},
        "its folder does not exist": {"the model": two / "no" / "c"},
        "File name too long": {"the model": two / ("n" * 256)},
        "it is a folder": {"the model": two / "b"},
    }
    for reason, outputs in cases.items():
        with pytest.raises(QdqError, match=reason):
            check_outputs(outputs, [two / "b" / "b"])
    assert contents(two) == OLD


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_folder_is_found_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(QdqError, match="no permission"):
            check_outputs({"the model": tmp_path / "t"}, [])
    finally:
        tmp_path.chmod(0o755)
