# SPDX-License-Identifier: Apache-2.0
"""Records of steps: kept whole or not at all, and no longer current once a file is another."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.recipe.step_store import STEPS, StepRecord, StepStore, held, key_of


def kept(store: StepStore, **files: bytes) -> StepRecord:
    """The record of a step that wrote some files."""
    before = store.listing()
    for name, content in files.items():
        (store.folder / name).write_bytes(content)
    record = StepRecord("k", {"words": ["insert"]}, store.written(before), {"bytes": 3})
    store.keep("a", record)
    return record


def test_a_record_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    with held(tmp_path / "r") as store:
        record = kept(store, x=b"1", y=b"2")
        assert store.record("a") == record and set(record.files) == {"x", "y"}
        assert store.record("b") is None


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "key": "k"}', "\xff"])
def test_a_damaged_record_is_none(damage: str, tmp_path: Path) -> None:
    with held(tmp_path / "r") as store:
        kept(store, x=b"1")
        (store.folder / STEPS / "a.json").write_text(damage, encoding="latin-1")
        assert store.record("a") is None
        store.forget("a")
        assert (store.folder / "x").exists(), "what it wrote is not known any more"


def test_a_step_is_current_while_key_and_files_are_the_same(tmp_path: Path) -> None:
    with held(tmp_path / "r") as store:
        record = kept(store, x=b"1", y=b"2")
        assert store.is_current(record, "k") and not store.is_current(record, "other")
        (store.folder / "x").write_bytes(b"3")
        assert not store.is_current(record, "k")
        (store.folder / "x").write_bytes(b"1")
        assert store.is_current(record, "k")
        (store.folder / "y").unlink()
        assert not store.is_current(record, "k")


def test_only_new_and_changed_files_are_of_a_step(tmp_path: Path) -> None:
    with held(tmp_path / "r") as store:
        kept(store, x=b"1")
        before = store.listing()
        (store.folder / "x").write_bytes(b"22")
        (store.folder / "sub").mkdir()
        (store.folder / "sub" / "z").write_bytes(b"3")
        (store.folder / ".qdqtool-12.tmp").write_bytes(b"4")
        assert set(store.written(before)) == {"x", "sub/z"}
        assert not any(STEPS in name for name in store.listing())


def test_what_is_forgotten_takes_its_files_along(tmp_path: Path) -> None:
    with held(tmp_path / "r") as store:
        kept(store, x=b"1")
        (store.folder / "mine").write_bytes(b"2")
        store.forget("a")
        assert sorted(store.listing()) == ["mine"] and store.record("a") is None
        store.forget("a")


@pytest.mark.parametrize("name", ["../mine", "sub/../../mine", "{folder}/mine"])
def test_a_record_of_another_hand_deletes_nothing_outside(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    with held(tmp_path / "r") as store:
        record = kept(store, x=b"1")
        store.keep("a", StepRecord(record.key, {}, {name.format(folder=tmp_path): "0"}, {}))
        assert store.record("a") is None
        store.forget("a")
    assert (tmp_path / "mine").exists()


def test_the_key_is_of_all_and_of_no_order() -> None:
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1, 2], "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"b": 1}), key_of({"a": [1]})}) == 4


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    message = r"r: cannot be made \(Not a directory\); give another folder with -o"
    with pytest.raises(QdqError, match=message), held(tmp_path / "file" / "r"):
        pass


def test_a_fault_takes_only_what_the_run_made(tmp_path: Path) -> None:
    with pytest.raises(QdqError), held(tmp_path / "new"):
        raise QdqError("m.onnx", "is none")
    assert not (tmp_path / "new").exists()
    with held(tmp_path / "old") as store:
        kept(store, x=b"1")
    with pytest.raises(QdqError), held(tmp_path / "old"):
        raise QdqError("m.onnx", "is none")
    assert json.loads((tmp_path / "old" / STEPS / "a.json").read_text())["key"] == "k"
    with pytest.raises(QdqError), held(tmp_path / "strange"):
        (tmp_path / "strange" / "mine").write_bytes(b"")
        raise QdqError("m.onnx", "is none")
    assert (tmp_path / "strange" / "mine").exists()


def test_a_folder_that_takes_not_a_byte_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(QdqError, match="cannot be written"), held(tmp_path / "r"):
        pass
    assert not (tmp_path / "r").exists()
