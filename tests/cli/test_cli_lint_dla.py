# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint --target dla` and `qdqtool insert --target dla` through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]


def test_a_line_for_each_node(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path)
    before = contents(tmp_path)
    words = ("lint", tmp_path / "m.onnx", "--target", "dla", "--trt-version", "8502")
    short = run(capsys, *words).out.splitlines()
    assert "--all" in short[-1] and not any("subgraph 1" in line for line in short)
    said = run(capsys, *words, "--all")
    assert said.code == 0 and contents(tmp_path) == before
    lines = said.out.splitlines()
    assert any(re.search("TensorRT 8.5.2: 5 nodes .*, 2 on the GPU, 2 DLA subgraphs .* 4$", line) for line in lines)
    assert any(re.match("its batch .*dynamic, and 1 ", line) for line in lines)
    assert any(line.startswith("  g: GlobalAveragePool, GPU because ") for line in lines)
    assert "  r2: Relu, DLA subgraph 1" in lines and "  y: Gemm, DLA subgraph 2" in lines
    assert any(line.startswith("Q030 dla-fallback: 2 warnings") for line in lines)


def test_what_rests_on_a_guess_is_said(tmp_path: Path, capsys: Capsys) -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { a = Relu(x) z = LeakyRelu(a) }"
    onnx.save(model_of(text), tmp_path / "m.onnx")
    words = ("lint", tmp_path / "m.onnx", "--target", "dla", "--trt-version", "jp4.6.1", "--all")
    lines = run(capsys, *words).out.splitlines()
    assert "  z: LeakyRelu, DLA subgraph 1 (by a guess: rule dla-leaky-relu-8-0)" in lines
    assert any(re.match("by a guess, .*1 LeakyRelu", line) for line in lines)


def test_json_and_the_level(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path)
    words = ("lint", tmp_path / "m.onnx", "--target", "dla", "--platform", "xavier", "--trt-version", "8502")
    said = run(capsys, *words, "--json", "--level", "warning")
    facts = json.loads(said.out)
    assert said.code == 1 and facts["dla"]["platform"] == "xavier" and facts["dla"]["subgraphs"] == 2
    assert [one["device"] for one in facts["dla"]["nodes"]] == ["dla"] * 4 + ["gpu"] * 2 + ["dla"]
    assert {one["code"] for one in facts["findings"]} >= {"Q030", "Q031"}
    plain = json.loads(run(capsys, "lint", tmp_path / "m.onnx", "--json").out)
    assert "dla" not in plain


def test_what_lint_refuses(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path)
    refused(run(capsys, "lint", tmp_path / "m.onnx", "--platform", "orin"), "says whose DLA")
    late = ("--target", "dla", "--trt-version", "10.9.0")
    refused(run(capsys, "lint", tmp_path / "m.onnx", *late), "10.9.0", "no DLA")
    early = ("--target", "dla", "--trt-version", "jp4.6", "--platform", "orin")
    refused(
        run(capsys, "lint", tmp_path / "m.onnx", *early), "--platform: TensorRT 8.0.1 ", "Orin, ", " 8.4; choose xavier"
    )


def test_insert_for_the_dla_and_back(tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    write_net(tmp_path)
    dla = ("--target", "dla", "--trt-version", "8602")
    said = run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *dla, "-o", tmp_path / "q.onnx")
    assert said.code == 0 and f"qdqtool peel {tmp_path / 'q.onnx'} --target dla" in said.out
    said = run(capsys, "peel", tmp_path / "q.onnx", *dla, "-o", tmp_path / "p.onnx", "--cache", tmp_path / "c.cache")
    assert "8 from Q/DQ; 0 raised " in said.out
    assert (tmp_path / "p.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
