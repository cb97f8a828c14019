# SPDX-License-Identifier: Apache-2.0
"""A checkpoint comes back to the bit, and only for the run that it is of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.training.state import (
    Saved,
    TrainingIdentity,
    keep_state,
    newest_state,
    open_state,
    read_state,
    write_state,
)

ME = TrainingIdentity("m", "d", "", "{}")
SAVED = Saved(
    ME,
    {"steps": 7, "progress": {"best": 0.1 + 0.2, "start": math.inf, "reason": ""}},
    {"vector": np.array([1, np.float32(0.1)], np.float32), "count": np.array(3, np.float32)},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.npz"
    write_state(SAVED, path)
    return path


def test_it_comes_back_to_the_bit(file: Path) -> None:
    found = read_state(file)
    assert found.identity == ME
    assert found.facts == SAVED.facts
    assert {k: (v.shape, v.tobytes()) for k, v in found.arrays.items()} == {
        k: (v.shape, v.tobytes()) for k, v in SAVED.arrays.items()
    }


def test_it_is_written_over(file: Path) -> None:
    write_state(replace(SAVED, facts={"steps": 8}), file)
    assert read_state(file).facts == {"steps": 8}
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_there_may_be_none_yet(tmp_path: Path) -> None:
    assert open_state(tmp_path / "none", ME, resume=True) is None
    assert open_state(tmp_path / "none", ME, resume=False) is None
    with pytest.raises(QdqError, match="does not exist"):
        read_state(tmp_path / "none")


def test_one_that_is_there_is_continued_only_if_asked(file: Path) -> None:
    assert open_state(file, ME, resume=True) is not None
    with pytest.raises(QdqError, match=r"unfinished training; .*--resume"):
        open_state(file, ME, resume=False)


@pytest.mark.parametrize(
    ("field", "reported"), [("model", "model"), ("data", "data"), ("teacher", "teacher"), ("options", "set of options")]
)
def test_one_of_another_run_is_refused(file: Path, field: str, reported: str) -> None:
    with pytest.raises(QdqError, match=f"different {reported}"):
        open_state(file, replace(ME, **{field: "other"}), resume=True)


def test_what_is_damaged_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(QdqError, match="read as arrays"):
        read_state(file)


@pytest.mark.parametrize(
    ("meta", "reported"),
    [
        ({"schema": 2}, "schema 2, this reads 1"),
        ({"schema": 1}, "is not a checkpoint"),
        ([], "is not a checkpoint"),
        ({"schema": 1, "identity": {"model": "m"}, "facts": {}}, "is not a checkpoint"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, meta: object, reported: str) -> None:
    path = tmp_path / "run.npz"
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))
    with pytest.raises(QdqError, match=reported):
        read_state(path)


def test_arrays_of_another_type_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    write_state(replace(SAVED, arrays={"vector": np.zeros(2)}), path)  # type: ignore[dict-item]
    with pytest.raises(QdqError, match="not float32"):
        read_state(path)


def test_a_folder_holds_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    assert newest_state(folder) is None
    for step in (0, 5, 50, 1000):
        keep_state(replace(SAVED, facts={"at": step}), folder, step, 2)
    assert sorted(one.name for one in folder.iterdir()) == ["step-0000000050.npz", "step-0000001000.npz"]
    newest = newest_state(folder)
    assert newest is not None and read_state(newest).facts == {"at": 1000}
    (tmp_path / "file").write_text("")
    with pytest.raises(QdqError, match="cannot be made"):
        keep_state(SAVED, tmp_path / "file" / "c", 0, 1)
