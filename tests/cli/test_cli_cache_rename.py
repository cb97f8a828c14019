# SPDX-License-Identifier: Apache-2.0
"""Entries under other names than the model's: what `cache check` prints, and `cache convert --rename` does with it."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import onnx
import pytest

from qdqtool.cache.text import read_cache
from tests.cli.command import contents, refused, run
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
NET = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w>
 { [first] stem = Conv(x, w) mid = Relu(stem) [last] y = Conv(mid, w) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(model_of(NET), tmp_path / "m.onnx")
    lines = ("x: 3c010a14", "first: 3c010a15", "onnx::Conv_mid: 3c010a16", "y: 3c010a17")
    (tmp_path / "c.cache").write_text("\n".join(["TRT-8502-EntropyCalibration2", *lines, ""]))
    return tmp_path


def test_the_command_that_check_prints_renames_what_is_near(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    grafted = run(capsys, "graft", "m.onnx", "--cache", "c.cache", "--trt-version", "10.3").out
    assert ": qdqtool cache check c.cache m.onnx\n" in grafted
    done = run(capsys, "cache", "check", "c.cache", "m.onnx")
    assert done.code == 1
    assert "  first  (near stem)" in done.out and "  onnx::Conv_mid  (near mid)" in done.out
    (step,) = [line for line in done.out.splitlines() if line.startswith("next, where these are the same tensors: ")]
    done = run(capsys, *shlex.split(step.partition("tensors: ")[2])[1:])
    assert (done.code, done.err) == (0, "") and "4 scales, 2 names changed" in done.out
    before, after = read_cache(folder / "c.cache").entries, read_cache(folder / "c.renamed.cache").entries
    assert list(after) == ["x", "stem", "mid", "y"]
    assert [one.tobytes() for one in after.values()] == [one.tobytes() for one in before.values()]
    assert run(capsys, "cache", "check", "c.renamed.cache", "m.onnx").code == 0


def test_check_prints_a_command_for_many_names(folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = ["x", *(f"t{i}" for i in range(10, 90)), "y"]
    nodes = " ".join(f"{after} = Relu({before})" for before, after in itertools.pairwise(names))
    onnx.save(model_of(f"g (float[1,4] x) => (float[1,4] y) {{ {nodes} }}"), folder / "m.onnx")
    lines = "".join(f"onnx::Relu_{name}: 3c010a15\n" for name in names[1:-1])
    (folder / "c.cache").write_text(f"TRT-8502-EntropyCalibration2\nx: 3c010a14\n{lines}")
    out = run(capsys, "cache", "check", "c.cache", "m.onnx").out
    (step,) = [line for line in out.splitlines() if line.startswith("next, where these are the same tensors: ")]
    assert "80 names changed" in run(capsys, *shlex.split(step.partition("tensors: ")[2])[1:]).out


def test_where_nothing_is_near_data_are_the_way(folder: Path, capsys: Capsys) -> None:
    (folder / "c.cache").write_text("TRT-8502-EntropyCalibration2\nx: 3c010a14\nelsewhere: 3c010a15\n")
    done = run(capsys, "cache", "check", folder / "c.cache", folder / "m.onnx")
    words = f"qdqtool graft {folder / 'm.onnx'} --cache {folder / 'c.cache'} --data DATA"
    assert done.code == 1 and done.out.endswith(f" for DATA: {words}\n")


def test_a_cache_of_another_model_is_called_so_and_not_grafted(folder: Path, capsys: Capsys) -> None:
    """`graft` refuses it and names `cache check`, which named `graft`."""
    (folder / "c.cache").write_text("TRT-8502-EntropyCalibration2\nelsewhere: 3c010a15\n")
    done = run(capsys, "cache", "check", folder / "c.cache", folder / "m.onnx")
    assert done.code == 1 and "is of another model" in done.out
    assert "qdqtool graft" not in done.out
    assert done.out.endswith(f" for DATA: qdqtool insert {folder / 'm.onnx'} --data DATA\n")


@pytest.mark.parametrize(
    ("word", "part"),
    [("gone=x2", "the cache has no entry gone"), ("first=x", "the same name"), ("first", "first is not OLD=NEW")],
)
def test_names_that_are_refused(folder: Path, capsys: Capsys, word: str, part: str) -> None:
    before = contents(folder)
    words = ("cache", "convert", folder / "c.cache", "--to", "trt", "--rename", word, "-o", folder / "n.cache")
    refused(run(capsys, *words), part)
    assert contents(folder) == before


def test_no_step_takes_a_cache_that_constants_contradict(tmp_path: Path, capsys: Capsys) -> None:
    """`graft` refuses it."""
    onnx.save(model_of("g (float[4] x) => (float[4] y) <float[4] k = {0, 0, 0, 0}> { y = Add(x, k) }"), tmp_path / "m")
    (tmp_path / "c").write_text("TRT-8502-EntropyCalibration2\nX: 3c010a14\nelsewhere: 3c010a14\nk: 3c010a15\n")
    done = run(capsys, "cache", "check", tmp_path / "c", tmp_path / "m")
    assert done.code == 1 and "is of another export" in done.out
    assert "qdqtool graft" not in done.out and "next" not in done.out
    refused(run(capsys, "graft", tmp_path / "m", "--cache", tmp_path / "c", "-o", tmp_path / "o"), "another export")
