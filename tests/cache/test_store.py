# SPDX-License-Identifier: Apache-2.0
"""Caches from file to file: scales, header, where each came from, what is said; and that nothing is written half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.cache.convert_options import ConvertOptions
from qdqtool.cache.sidecar import read_sidecar, write_sidecar
from qdqtool.cache.store import convert_file, merge_files, retarget_file
from qdqtool.cache.text import Cache, format_cache, read_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

V8_5, V10_3, V11_0 = TrtVersion(8, 5, 2), TrtVersion(10, 3, 0), TrtVersion(11, 0, 0)
FROM_QDQ = {"origin": "qdq", "method": "entropy"}


def cache_at(path: Path, scales: dict[str, float], facts: bool = True, digest: str = "ab") -> Path:
    """A cache, with a sidecar that says of each scale that it comes from Q/DQ."""
    cache = Cache.of(V8_5, {name: np.float32(scale) for name, scale in scales.items()})
    path.write_bytes(format_cache(cache).encode())
    if facts:
        model = {"file": path.parent / "m.onnx", "sha256": digest * 32}
        described = {"verb": "peel", "header": cache.header, "model": model, "data": {"samples": 8}}
        write_sidecar(path, {**described, "tensors": dict.fromkeys(scales, FROM_QDQ)})
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return cache_at(tmp_path / "one.cache", {"a": 0.5, "b:0": 0.25})


def test_retarget_keeps_scales_and_origins_under_another_header(one: Path, tmp_path: Path) -> None:
    stored = retarget_file(one, V10_3, tmp_path / "new.cache")
    written = read_cache(tmp_path / "new.cache")
    assert (written.header, stored.before) == ("TRT-100300-EntropyCalibration2", "TRT-8502-EntropyCalibration2")
    assert {name: scale.tobytes() for name, scale in written.entries.items()} == {
        name: scale.tobytes() for name, scale in read_cache(one).entries.items()
    }
    side = read_sidecar(tmp_path / "new.cache")
    assert side is not None and side.fresh and side.verb == "cache retarget"
    assert side.tensors == {"a": FROM_QDQ, "b:0": FROM_QDQ} and side.model["sha256"] == "ab" * 32


def test_a_sidecar_of_another_state_is_reported_and_left_out(one: Path, tmp_path: Path) -> None:
    one.write_bytes(one.read_bytes().replace(b"3f000000", b"3f000001"))
    stored = retarget_file(one, V10_3, tmp_path / "new.cache")
    assert any("match the cache" in note for note in stored.notes)
    side = read_sidecar(tmp_path / "new.cache")
    assert side is not None and not side.tensors and not side.model


@pytest.mark.parametrize(
    ("facts", "digests", "model_known"),
    [((True, True), ("ab", "ab"), True), ((True, True), ("ab", "cd"), False), ((True, False), ("ab", "ab"), True)],
)
def test_merged_facts_hold_for_all_that_say_something(
    tmp_path: Path, facts: tuple[bool, bool], digests: tuple[str, str], model_known: bool
) -> None:
    parts = [
        cache_at(tmp_path / f"{name}.cache", scales, known, digest)
        for name, scales, known, digest in zip("xy", ({"a": 0.5}, {"b": 0.25}), facts, digests, strict=True)
    ]
    merged, stored = merge_files(parts, tmp_path / "both.cache")
    assert list(merged.cache.entries) == ["a", "b"] and stored.notes == ()
    side = read_sidecar(tmp_path / "both.cache")
    assert side is not None and bool(side.model) is model_known and side.data == {"samples": 8}
    assert list(side.tensors) == [name for name, known in zip("ab", facts, strict=True) if known]


def test_a_merge_takes_each_origin_from_the_cache_whose_scale_it_has(tmp_path: Path) -> None:
    plain = cache_at(tmp_path / "plain.cache", {"a": 0.75, "b": 0.125}, facts=False)
    known = cache_at(tmp_path / "known.cache", {"a": 0.5, "b": 0.25})
    merge_files([plain, known], tmp_path / "both.cache", "max")
    side = read_sidecar(tmp_path / "both.cache")
    assert side is not None and side.tensors == {"b": FROM_QDQ}, "the larger scale of a has no origin"


def test_a_conversion_renames_the_tensors_of_the_sidecar_too(one: Path, tmp_path: Path) -> None:
    stored = convert_file(one, tmp_path / "c.json", ConvertOptions("json", sanitize_names=True))
    assert stored.renamed == {"b:0": "b_0"} and list(stored.cache.entries) == ["a", "b_0"]
    assert [note.split(";")[0] for note in stored.notes] == ["1 names changed"]
    side = read_sidecar(tmp_path / "c.json")
    assert side is not None and list(side.tensors) == ["a", "b_0"]
    assert side.options == {"to": "json", "from": "trt", "renamed": {"b:0": "b_0"}}


@pytest.mark.parametrize(
    ("scales", "options", "note"),
    [
        ({"a": 0.5, "b:0": 1.0}, ConvertOptions("trt"), "1 of the names contain ':'"),
        ({"a": 0.5, "b": 0.0}, ConvertOptions("csv"), "1 entry of zero or infinity dropped"),
        ({"a": 0.5, "b": 0.0, "c": 0.0}, ConvertOptions("csv"), "2 entries of zero or infinity dropped"),
        ({"a": 0.1, "b": 0.5}, ConvertOptions("ort-json"), ""),
    ],
)
def test_what_a_conversion_says(tmp_path: Path, scales: dict[str, float], options: ConvertOptions, note: str) -> None:
    path = tmp_path / "in.cache"
    lines = [f"{name}: {np.float32(scale).view(np.uint32):x}" for name, scale in scales.items()]
    path.write_text("\n".join(["TRT-8502-EntropyCalibration2", *lines, ""]))
    notes = convert_file(path, tmp_path / "out", options).notes
    assert len(notes) == bool(note) and (not note or notes[0].startswith(note))


def test_a_header_that_the_input_does_not_have_is_named(one: Path, tmp_path: Path) -> None:
    convert_file(one, tmp_path / "c.csv", ConvertOptions("csv"))
    back = convert_file(tmp_path / "c.csv", tmp_path / "b.cache", ConvertOptions("trt", trt_version=V8_5))
    assert any("calibrated" in note for note in back.notes)
    assert read_cache(tmp_path / "b.cache").header == "TRT-8502-EntropyCalibration2"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("one.cache", "would be overwritten|is an input|is read"),
        ("one.cache.json", "would be overwritten|is an input|is read"),
        ("stranger.cache", "stranger"),
    ],
)
@pytest.mark.parametrize(
    "run",
    [
        lambda path, output: retarget_file(path, V10_3, output),
        lambda path, output: merge_files([path], output),
        lambda path, output: convert_file(path, output, ConvertOptions("trt")),
    ],
    ids=["retarget", "merge", "convert"],
)
def test_no_input_and_no_file_of_others_is_written_over(
    one: Path, tmp_path: Path, run: Callable[..., Any], output: str, reason: str
) -> None:
    (tmp_path / "stranger.cache.json").write_text('{"of": "somebody"}')
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(QdqError) as refused:
        run(one, tmp_path / output)
    assert output.partition(".")[0] in refused.value.line()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_version_without_caches_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="calibration cache"):
        retarget_file(tmp_path / "missing.cache", V11_0, tmp_path / "new.cache")
