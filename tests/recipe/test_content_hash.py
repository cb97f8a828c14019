# SPDX-License-Identifier: Apache-2.0
"""Hashes by content: what changes them, what does not, and when a file is read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.recipe import content_hash
from qdqtool.recipe.content_hash import ContentHashes
from tests.graphs import SMALL_NET, model_of

OLD = 1_000_000_000  # seconds; long ago


def aged(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (OLD, OLD))
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read; every file counts as settled."""
    names: list[str] = []
    digest = content_hash.file_sha256

    def file_sha256(path: Path) -> str:
        names.append(path.name)
        return digest(path)

    monkeypatch.setattr(content_hash, "file_sha256", file_sha256)
    monkeypatch.setattr(content_hash, "_SETTLED_NS", -1)
    return names


def test_a_file_has_the_hash_of_its_content(tmp_path: Path) -> None:
    assert ContentHashes(tmp_path / "k").of(aged(tmp_path / "a", b"abc")) == hashlib.sha256(b"abc").hexdigest()


def test_a_folder_has_one_of_its_names_and_contents(tmp_path: Path) -> None:
    def made(name: str, **files: bytes) -> str:
        for file, content in files.items():
            aged(tmp_path / name / file, content)
        return ContentHashes(tmp_path / "k").of(tmp_path / name)

    one = made("one", a=b"1", b=b"2")
    assert made("same", b=b"2", a=b"1") == one
    assert len({one, made("renamed", a=b"1", c=b"2"), made("exchanged", a=b"2", b=b"1"), made("fewer", a=b"1")}) == 4


def test_a_settled_file_is_read_once(tmp_path: Path, read: list[str]) -> None:
    path, hashes = aged(tmp_path / "a", b"1"), ContentHashes(tmp_path / "k")
    assert hashes.of(path) == hashes.of(path)
    hashes.save()
    ContentHashes(tmp_path / "k").of(path)
    assert read == ["a"]
    first = hashes.of(path)
    time.sleep(0.03)  # more than one tick of the clock
    aged(path, b"2")  # the same size and time of change: the system's own clock tells
    assert hashes.of(path) != first


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    """Within one tick of the file system's clock it may change and look the same."""
    path, hashes = aged(tmp_path / "a", b"1"), ContentHashes(tmp_path / "k")
    hashes.of(path)
    hashes.save()
    assert json.loads((tmp_path / "k").read_text()) == {}


@pytest.mark.parametrize("damage", [b"", b"[]", b"3", b"\xff", b'{"X": 3}', b'{"X": {"stat": 3}}'])
def test_a_damaged_memory_is_no_memory(damage: bytes, tmp_path: Path) -> None:
    path = aged(tmp_path / "a", b"1")
    (tmp_path / "k").write_bytes(damage.replace(b"X", os.path.realpath(path).encode()))
    assert ContentHashes(tmp_path / "k").of(path) == hashlib.sha256(b"1").hexdigest()


def test_a_model_counts_with_its_data_files(tmp_path: Path, read: list[str]) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    onnx.save_model(model_of(SMALL_NET), model, save_as_external_data=True, location="w.bin", size_threshold=0)
    hashes = ContentHashes(tmp_path / "k")
    first = hashes.of(model)
    assert read == ["m.onnx", "w.bin"] and hashes.of(model) == first and len(read) == 2
    data.write_bytes(bytes(reversed(data.read_bytes())))
    assert hashes.of(model) != first
    data.unlink()
    with pytest.raises(QdqError, match=r"m\.onnx: cannot be read \(No such file"):
        hashes.of(model)


def test_what_is_not_there_is_a_fault_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"gone: .*\(No such file") as caught:
        ContentHashes(tmp_path / "k").of(tmp_path / "gone")
    assert caught.value.exit_code == 2
