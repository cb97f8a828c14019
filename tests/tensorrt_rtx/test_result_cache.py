# SPDX-License-Identifier: Apache-2.0
"""Results by content: damaged entries count for nothing, all of them stay below a bound, none is a reason to fail."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from qdqtool.tensorrt_rtx.result_cache import cache_folder, make_key, read_entry, write_entry

KEY = make_key({"model": "a"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path))
    return tmp_path / "rtx"


def test_what_is_written_is_read_again() -> None:
    assert read_entry(KEY) is None
    write_entry(KEY, {"accepted": True})
    assert read_entry(KEY) == {"accepted": True}


def test_the_key_is_that_of_the_content_not_of_its_order() -> None:
    assert make_key({"a": 1, "b": [2]}) == make_key({"b": [2], "a": 1}) != make_key({"a": 1, "b": [3]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"no json"),
        gzip.compress(b"[1]"),
        gzip.compress(json.dumps({"key": "another", "result": {}}).encode()),
        gzip.compress(json.dumps({"key": KEY, "result": 3}).encode()),
        gzip.compress(json.dumps({"key": KEY, "result": {}}).encode())[:-9],
    ],
)
def test_a_damaged_entry_counts_for_nothing_and_is_written_again(folder: Path, content: bytes) -> None:
    write_entry(KEY, {"n": 1})
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert read_entry(KEY) is None
    write_entry(KEY, {"n": 2})
    assert read_entry(KEY) == {"n": 2} and len(list(folder.iterdir())) == 1


def test_the_entries_that_were_not_read_for_longest_go_first(folder: Path) -> None:
    keys = [make_key({"n": n}) for n in range(4)]
    for age, key in enumerate(keys[:3]):
        write_entry(key, {"x": os.urandom(600).hex()})
        os.utime(next(folder.glob(f"{key}*")), (1000 + age, 1000 + age))
    assert read_entry(keys[0]) is not None  # is the youngest now
    size = next(folder.glob(f"{keys[0]}*")).stat().st_size
    write_entry(keys[3], {"x": os.urandom(600).hex()}, most=3 * size + 100)
    assert [read_entry(key) is not None for key in keys] == [True, False, True, True]


def test_an_entry_larger_than_all_may_be_is_not_kept(folder: Path) -> None:
    write_entry(KEY, {"x": os.urandom(600).hex()}, most=100)
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "file"))
    write_entry(KEY, {"n": 1})
    assert read_entry(KEY) is None


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "rtx"
    monkeypatch.delenv("QDQTOOL_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/qdqtool/rtx")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/a")
    assert cache_folder() == Path("/home/a/.cache/qdqtool/rtx")
