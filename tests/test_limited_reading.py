# SPDX-License-Identifier: Apache-2.0
"""Files of others are read up to a bound, and every fault in them is one line."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtool.cache.convert import read_any
from qdqtool.cache.sidecar import read_sidecar
from qdqtool.cache.text import read_cache
from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, FileKind, parse_json, read_bytes, read_json, read_text, read_toml

SMALL = FileKind("a small file", 3 << 20, "give a small one")


def test_content_up_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa\r\n")
    assert read_bytes(path, SMALL) == b"\xef\xbb\xbfa\r\n"
    assert read_text(path, SMALL) == "a\r\n"
    os.truncate(path, SMALL.max_bytes)
    assert len(read_bytes(path, SMALL)) == SMALL.max_bytes
    os.truncate(path, SMALL.max_bytes + 1)
    with pytest.raises(QdqError) as caught:
        read_bytes(path, SMALL)
    assert caught.value.line() == f"{path}: is larger than 3 MiB, which a small file is not; give a small one"


def test_a_short_file_takes_no_more_memory_than_its_size(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"short")
    tracemalloc.start()
    read_bytes(tmp_path / "f", FileKind("a large file", 1 << 40, ""))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.parametrize("reader", ["text", "convert", "sidecar"])
def test_readers_of_caches_take_no_more_memory_than_a_short_file(tmp_path: Path, reader: str) -> None:
    """One read of the bound asks for the whole of it at once."""
    readers: dict[str, Callable[[Path], object]] = {
        "text": read_cache, "convert": read_any, "sidecar": read_sidecar
    }  # fmt: skip
    (tmp_path / "c").write_text("TRT-8502-EntropyCalibration2\nx: 3c010a14\n")
    (tmp_path / "c.json").write_text('{"tool": "another"}')
    readers[reader](tmp_path / "c")
    tracemalloc.start()
    readers[reader](tmp_path / "c")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20


def test_a_pipe_is_read_and_a_device_is_not(tmp_path: Path) -> None:
    """`--rules <(...)` of a shell is a pipe; /dev/zero never ends."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"text",))
    writer.start()
    assert read_text(pipe, SMALL) == "text"
    writer.join()
    with pytest.raises(QdqError, match="/dev/zero: is not a regular file; give a small one"):
        read_bytes("/dev/zero", SMALL)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "No such file"), (".", "Is a directory"), ("n" * 256, "File name too long"), ("a\0b", "null byte")],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(QdqError, match=rf"cannot be read \(.*{reason}.*\); give a small one"):
        read_bytes(tmp_path / name, SMALL)


def test_text_that_is_not_utf_8_is_reported_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(QdqError, match="line 2 is not UTF-8"):
        read_text(tmp_path / "f", SMALL)


def test_json(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('{"a": [1, 2.5, null]}')
    assert read_json(tmp_path / "f", SMALL) == {"a": [1, 2.5, None]}
    assert parse_json('{"a": 1, "a": 2}', "f", SMALL, list) == [("a", 1), ("a", 2)]
    for text, reason in (
        ("{", r"is not a small file \(not JSON: "),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "not JSON"),
        ('"' + "x" * 5000, "not JSON"),
    ):
        with pytest.raises(QdqError, match=reason) as caught:
            parse_json(text, "f", SMALL)
        assert len(caught.value.line()) < 250


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(b"a.b = 1\r\nc = ['x.y.z', 2]\r\n")
    assert read_toml(path, RULES) == {"a": {"b": 1}, "c": ["x.y.z", 2]}
    dotted = ".".join("a" * 100_000)
    for text, reason in (
        ("a = ", "not TOML"),
        (f"a = {'[' * 50_000}", "nested too deeply"),
        (f"a = {'{a=' * 50_000}", "nested too deeply"),
        (f"a = {'9' * 5000}", "not TOML"),
        (f"a = 0x{'9' * 5000}", "not TOML"),
        (f"{dotted} = 1", "line 1 has a key of more than 64 parts"),
        (f"x = 1\ny = {{ {dotted} = 1 }}", "line 2 has a key of more than 64 parts"),
        (f"[{dotted}]", "line 1 has a key of more than 64 parts"),
    ):
        path.write_text(text)
        with pytest.raises(QdqError, match=reason) as caught:
            read_toml(path, RULES)
        assert len(caught.value.line()) < 250 + len(str(path))
