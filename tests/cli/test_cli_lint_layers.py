# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint --layers` and `--layer-info`: what they print and refuse, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import contents, refused, run, write_net

Capsys = pytest.CaptureFixture[str]
QUIET = ("--select", "Q003", "--trt-version", "8.5.1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


def engine(folder: Path, *names: str) -> Path:
    path = folder / "engine.json"
    path.write_text(json.dumps({"Layers": list(names)}), encoding="utf-8")
    return path


RIGHT = ("c1 + r1", "c2 + r2", "g", "y")


def test_layers_are_printed_behind_the_findings(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    said = run(capsys, "lint", folder / "m.onnx", "--layers", *QUIET)
    lines = said.out.splitlines()
    assert said.code == 0 and lines[0].endswith("nothing found")
    assert lines[1] == "float -> float  convolution  c1 + r1"
    assert lines[-2].startswith("predicted, not measured: 4 layers, 0 of them compute in INT8")
    assert lines[-1].startswith("bytes moved: ")
    assert contents(folder) == before


def test_without_the_option_no_layer_is_printed(folder: Path, capsys: Capsys) -> None:
    assert "convolution" not in run(capsys, "lint", folder / "m.onnx", *QUIET).out


def test_an_engine_is_compared(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "m.onnx", "--layer-info", engine(folder, *RIGHT), *QUIET)
    assert "engine.json: 4 of 4 layers of the engine as predicted" in said.out and "convolution" not in said.out
    said = run(capsys, "lint", folder / "m.onnx", "--layer-info", engine(folder, "c1", *RIGHT[1:]), *QUIET)
    assert "other nodes: c1: leaves out r1" in said.out and said.code == 0


def test_json_holds_layers_forecast_and_engine(folder: Path, capsys: Capsys) -> None:
    words = ("--layers", "--layer-info", engine(folder, *RIGHT), "--json", *QUIET)
    facts = json.loads(run(capsys, "lint", folder / "m.onnx", *words).out)
    assert [layer["name"] for layer in facts["layers"]] == list(RIGHT)
    assert facts["forecast"]["layers"] == 4 and facts["engine"]["right"] == 4 and facts["findings"] == []
    plain = json.loads(run(capsys, "lint", folder / "m.onnx", "--json", *QUIET).out)
    assert not {"layers", "forecast", "engine"} & plain.keys()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--layers", "--target", "dla"), "--target dla: a DLA subgraph is one layer of the engine"),
        (("--layers", "--format", "sarif"), "--format sarif: holds findings, no layers"),
        (("--layer-info", "none.json"), "none.json: cannot be read"),
    ],
)
def test_what_cannot_be_had_is_refused(folder: Path, capsys: Capsys, words: tuple[str, ...], reason: str) -> None:
    refused(run(capsys, "lint", folder / "m.onnx", *words), reason)


def test_a_foreign_file_is_refused_before_anything_is_written(folder: Path, capsys: Capsys) -> None:
    words = ("--layer-info", engine(folder, "Conv_0"), "--fix", "-o", folder / "fixed.onnx")
    refused(run(capsys, "lint", folder / "m.onnx", *words), "names no node of the model")
    assert not (folder / "fixed.onnx").exists()
