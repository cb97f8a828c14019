# SPDX-License-Identifier: Apache-2.0
"""The file beside a cache: what goes in comes out, the same bytes each time, and nothing of others is overwritten."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool import __version__
from qdqtool.cache.sidecar import check_place, read_sidecar, sidecar_path, tensor_facts, write_sidecar
from qdqtool.cache.store import carried, retarget_file
from qdqtool.errors import QdqError
from qdqtool.scales import Scale
from qdqtool.trtversion import TrtVersion

TEXT = b"TRT-8502-EntropyCalibration2\nb: 3f800000\na: 3c000000\n"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "m.cache"
    path.write_bytes(TEXT)
    return path


def facts_of(folder: Path) -> dict[str, Any]:
    return {
        "verb": "peel",
        "header": "TRT-8502-EntropyCalibration2",
        "model": {"file": folder / "m.onnx", "sha256": "ab" * 32},
        "data": {"samples": 32, "sha256": None},
        "options": {"target": "dla", "on_conflict": "max", "ranges": (np.float32(1), 2)},
        "tensors": {
            "b": {"origin": "qdq", "method": "entropy"},
            "a": {"origin": "equal", "method": "max", "bits": np.float32(0.5)},
        },
    }


def test_what_goes_in_comes_out(cache: Path, tmp_path: Path) -> None:
    assert write_sidecar(cache, facts_of(tmp_path)) == sidecar_path(cache) == tmp_path / "m.cache.json"
    read = read_sidecar(cache)
    assert read is not None
    assert (read.verb, read.header, read.fresh) == ("peel", "TRT-8502-EntropyCalibration2", True)
    assert read.model == {"file": "m.onnx", "sha256": "ab" * 32}
    assert read.data == {"samples": 32}
    assert read.options == {"target": "dla", "on_conflict": "max", "ranges": ["3f800000", 2]}
    assert list(read.tensors) == ["b", "a"]
    assert read.tensors["a"] == {"origin": "equal", "method": "max", "bits": "3f000000"}


def test_the_document(cache: Path, tmp_path: Path) -> None:
    document = json.loads(write_sidecar(cache, facts_of(tmp_path)).read_bytes())
    assert list(document) == ["schema", "tool", "version", "verb", "cache", "model", "data", "options", "tensors"]
    assert (document["schema"], document["tool"], document["version"]) == (1, "qdqtool", __version__)
    digest = hashlib.sha256(TEXT).hexdigest()
    assert document["cache"] == {"file": "m.cache", "sha256": digest, "header": "TRT-8502-EntropyCalibration2"}


def test_same_facts_same_bytes_in_any_folder(tmp_path: Path) -> None:
    written = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "m.cache").write_bytes(TEXT)
        written.append(write_sidecar(folder / "m.cache", facts_of(folder)).read_bytes())
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]


def test_a_cache_that_changed_is_seen(cache: Path, tmp_path: Path) -> None:
    write_sidecar(cache, facts_of(tmp_path))
    cache.write_bytes(TEXT + b"c: 1\n")
    read = read_sidecar(cache)
    assert read is not None
    assert not read.fresh


def test_a_name_that_is_not_utf8_is_shown_with_a_question_mark(tmp_path: Path) -> None:
    odd = tmp_path / "a\udcff.cache"
    odd.write_bytes(b"TRT-8502-EntropyCalibration2\nx: 3c010a14\n")
    write_sidecar(odd, {"verb": "peel"})
    assert json.loads(sidecar_path(odd).read_text(encoding="utf-8"))["cache"]["file"] == "a?.cache"
    assert read_sidecar(odd) is not None


@pytest.mark.parametrize("place", [".", "/", ""])
def test_a_folder_is_no_cache(place: str) -> None:
    with pytest.raises(QdqError, match=r"is a folder, .*calibration cache .*; give the name"):
        sidecar_path(place)


def test_no_sidecar_is_none(cache: Path) -> None:
    assert read_sidecar(cache) is None


NO_JSON = b'{"schema": 1, "tool": "qdqtool", "tensors": {"x": {"rule": -Infinity}}}'


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"tool": "other"}', b"\xff", b"[" * 100_000, NO_JSON])
def test_a_file_of_others_is_none_and_stays(cache: Path, content: bytes) -> None:
    sidecar_path(cache).write_bytes(content)
    assert read_sidecar(cache) is None
    for act in (lambda: check_place(cache), lambda: write_sidecar(cache, {"verb": "peel"})):
        with pytest.raises(QdqError, match="in the place"):
            act()
    assert sidecar_path(cache).read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"tensors": []}, {"tensors": {"x": 1}}, {"cache": None}, {"sources": {}}, {"sources": [1]}],
)
def test_a_damaged_sidecar_is_refused(cache: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_sidecar(cache, facts_of(tmp_path))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(QdqError, match=r"m\.cache\.json: is "):
        read_sidecar(cache)


def test_our_own_faults_are_type_errors(cache: Path) -> None:
    with pytest.raises(TypeError, match="field for time"):
        write_sidecar(cache, {"verb": "peel", "time": 1})
    with pytest.raises(TypeError, match="type set"):
        write_sidecar(cache, {"options": {"x": {1, 2}}})
    assert not sidecar_path(cache).exists()


def test_an_input_is_never_the_place(cache: Path) -> None:
    source = sidecar_path(cache)
    source.write_text('{"tool": "qdqtool"}')
    with pytest.raises(QdqError, match="never overwritten"):
        check_place(cache, [source])


def test_tensor_facts_keep_what_a_tie_changed() -> None:
    scales = {
        "a": Scale.of(np.float32(2), origin="equal", method="max", rule="pool"),
        "b": Scale.of(np.float32(1), origin="ptq", method="entropy", samples=8),
    }
    before = {"a": np.float32(1), "b": np.float32(1)}
    assert tensor_facts(scales, before) == {
        "a": {"origin": "equal", "method": "max", "rule": "pool", "bits": "3f800000"},
        "b": {"origin": "ptq", "method": "entropy", "samples": 8},
    }
    assert "bits" not in tensor_facts(scales)["a"]


def test_retarget_carries_origins(cache: Path, tmp_path: Path) -> None:
    write_sidecar(cache, facts_of(tmp_path))
    done = retarget_file(cache, TrtVersion(7, 1, 3), tmp_path / "o.cache")
    assert done.notes == ()
    read = read_sidecar(tmp_path / "o.cache")
    assert read is not None
    assert (read.verb, read.header) == ("cache retarget", "TRT-7103-EntropyCalibration2")
    assert read.tensors["a"] == {"origin": "equal", "method": "max", "bits": "3f000000"}
    assert read.model == {"file": "m.onnx", "sha256": "ab" * 32}
    assert [source["file"] for source in read.sources] == ["m.cache"]
    assert read.sources[0]["sha256"] == hashlib.sha256(TEXT).hexdigest()


def test_what_describes_another_cache_is_not_carried(cache: Path, tmp_path: Path) -> None:
    write_sidecar(cache, facts_of(tmp_path))
    cache.write_bytes(TEXT.replace(b"3c000000", b"3c000001"))
    done = retarget_file(cache, TrtVersion(7, 1, 3), tmp_path / "o.cache")
    assert any("match the cache" in note for note in done.notes)
    read = read_sidecar(tmp_path / "o.cache")
    assert read is not None
    assert (read.tensors, read.model) == ({}, {})


def test_facts_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    paths = [tmp_path / "1.cache", tmp_path / "2.cache"]
    for path in paths:
        path.write_bytes(TEXT)
        write_sidecar(
            path, {"model": {"sha256": path.name}, "data": {"samples": 1}, "tensors": {"a": {"m": path.name}}}
        )
    facts, notes = carried(paths, {"a": 1, "b": 0})
    assert notes == []
    assert "model" not in facts
    assert facts["data"] == {"samples": 1}
    assert facts["tensors"] == {"a": {"m": "2.cache"}}
