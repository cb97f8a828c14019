# SPDX-License-Identifier: Apache-2.0
"""`qdqtool compare`: what it prints and refuses, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capsys) -> Path:
    write_net(tmp_path)
    words = ("insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx", "-q")
    assert run(capsys, *words).code == 0
    return tmp_path


def compare(capsys: Capsys, folder: Path, *words: object) -> str:
    said = run(capsys, "compare", folder / "m.onnx", folder / "q.onnx", "--data", folder / "d.npz", *words)
    assert (said.code, said.err) == (0, "")
    return said.out


def test_outputs_culprits_and_the_missing_task_metric(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    lines = compare(capsys, folder).splitlines()
    assert lines[0] == f"{folder / 'q.onnx'} against {folder / 'm.onnx'}: 7 tensors, 6 samples"
    assert lines[1].split() == ["output", "SQNR", "dB", "cosine", "largest", "error"]
    name, sqnr, cosine, largest = lines[2].split()
    assert name == "y" and 20 < float(sqnr) < 60 and float(cosine) > 0.99 and float(largest) > 0
    assert "SQNR drops, largest" in lines[3]
    assert lines[3].split()[-6:] == ["dB", "in", "dB", "read", "dB", "out"]
    assert lines[4].split()[:3] == ["c1", "Conv", "Relu"] and "exact" in lines[4]
    assert "qdqtool evaluate" in lines[-1]
    assert contents(folder) == before


def test_top_and_tensors(folder: Path, capsys: Capsys) -> None:
    every, one, none = (compare(capsys, folder, "--top", top).splitlines() for top in (10, 1, 0))
    assert len(every) > len(one) == len(none) + 2
    assert not any("most first" in line for line in none)
    assert "most first" not in compare(capsys, folder, "--tensors", "outputs")
    picked = compare(capsys, folder, "--tensors", "^r").splitlines()
    assert [line.split()[0] for line in picked[3:5]] == ["r1", "r2"] and picked[2].startswith("tensor")


def test_json(folder: Path, capsys: Capsys) -> None:
    document = json.loads(compare(capsys, folder, "--json", "--top", "1"))
    assert document["schema"] == 1 and document["samples"] == 6 and document["task_metric"] is None
    assert [one["tensor"] for one in document["outputs"]] == ["y"]
    assert set(document["outputs"][0]) == {
        "tensor", "sqnr_db", "cosine", "largest_error", "identical", "elements", "broken"
    }  # fmt: skip
    assert len(document["tensors"]) == 7
    assert set(document["culprits"][0]) == {
        "operator", "kind", "inputs", "output", "sqnr_in_db", "sqnr_read_db", "sqnr_out_db", "drop_db"
    }  # fmt: skip


def test_quiet_says_nothing(folder: Path, capsys: Capsys) -> None:
    assert compare(capsys, folder, "-q") == ""


def test_what_is_not_compared_is_listed_and_nan_is_warned_of(tmp_path: Path, capsys: Capsys) -> None:
    one = model_of("g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(a)  s = Shape(b)  y = Sqrt(b) }")
    two = model_of("g (float[2] x) => (float[2] y) { a = Neg(x)  c = Identity(a)  s = Shape(c)  y = Sqrt(c) }")
    onnx.save(one, tmp_path / "a.onnx")
    onnx.save(two, tmp_path / "b.onnx")
    np.savez(tmp_path / "d.npz", x=np.array([1, -4], np.float32))
    said = run(capsys, "compare", tmp_path / "a.onnx", tmp_path / "b.onnx", "--data", tmp_path / "d.npz")
    assert said.code == 0
    assert said.err.startswith("qdqtool: warning: y: NaN or Inf")
    assert "y         exact  1.000000              0  NaN or Inf in 1 elements" in said.out
    assert f"only in {tmp_path / 'a.onnx'}: b\n" in said.out
    assert f"only in {tmp_path / 'b.onnx'}: c\n" in said.out
    assert "of type int64: 1 tensor, s\n" in said.out


def test_refusals_are_one_line(folder: Path, capsys: Capsys) -> None:
    other = folder / "o.onnx"
    onnx.save(model_of("g (float[2] z) => (float[2] y) { y = Neg(z) }"), other)
    data = ("--data", folder / "d.npz")
    refused(
        run(capsys, "compare", folder / "m.onnx", other, *data),
        f"{other}: has no input 'x', which {folder / 'm.onnx'} has",
    )
    refused(run(capsys, "compare", folder / "m.onnx", folder / "q.onnx", *data, "--tensors", "("), "regular expression")
    refused(run(capsys, "compare", folder / "m.onnx", folder / "gone.onnx", *data), "gone.onnx")
    said = run(capsys, "compare", folder / "m.onnx", folder / "q.onnx")
    assert said.code == 2 and "--data" in said.err
