# SPDX-License-Identifier: Apache-2.0
"""`qdqtool engine show` and `engine diff`: what they print and refuse, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
RIGHT = ("c1 + r1", "c2 + r2", "g", "y")
V = ("--trt-version", "8.5.1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


def port(kind: str) -> dict[str, Any]:
    return {"Name": "t", "Dimensions": [1, 4], "Format/Datatype": kind}


def detailed(name: str, kind: str = "CaskConvolution", types: str = "Half Half", **more: object) -> dict[str, Any]:
    reads, writes = types.split()
    return {"Name": name, "LayerType": kind, "Inputs": [port(reads)], "Outputs": [port(writes)], **more}


def engine(folder: Path, *layers: object, name: str = "engine.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"Layers": list(layers)}), encoding="utf-8")
    return path


def test_layers_of_an_export(folder: Path, capsys: Capsys) -> None:
    path = engine(
        folder, detailed("c1 + r1", Metadata="[ONNX Layer: c1]\x1f[ONNX Layer: r1]"), detailed("g", "CaskPooling")
    )
    before = contents(folder)
    said = run(capsys, "engine", "show", path)
    assert said.code == 0 and said.out.splitlines()[1:] == [
        "FP16 -> FP16  16  CaskConvolution  c1 + r1  [c1, r1]",
        "FP16 -> FP16  16  CaskPooling      g",
        "layers: 2 (1 CaskConvolution, 1 CaskPooling); 0 of them only convert or copy",
        "products: 1 FP16",
        "bytes moved: 32 in one inference, weights included",
    ]
    assert contents(folder) == before


def test_kernels_of_int8_layers_are_marked(folder: Path, capsys: Capsys) -> None:
    fast, slow = (detailed(name, types="Int8 Half", TacticName=name) for name in ("a_i8816_b", "x_dp4a_y"))
    lines = run(capsys, "engine", "show", engine(folder, fast, slow, detailed("z"))).out.splitlines()
    assert [line[:4] for line in lines[1:4]] == ["TC  ", "--  ", "    "]
    assert re.match("TC: .* Tensor Cores; --: ", lines[4])


def test_predicted_layers_of_a_model(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    said = run(capsys, "engine", "show", folder / "m.onnx", "--predicted", *V)
    lines = said.out.splitlines()
    assert said.code == 0 and lines[0] == "float -> float  convolution  c1 + r1"
    assert re.match("predicted, .*: 4 layers, 0 .* INT8", lines[-2])
    assert lines[-1].startswith("bytes moved: ") and contents(folder) == before
    facts = json.loads(run(capsys, "engine", "show", folder / "m.onnx", "--predicted", "--json", *V).out)
    assert [layer["name"] for layer in facts["predicted"]] == list(RIGHT) and facts["forecast"]["layers"] == 4


def test_predicted_layers_of_a_model_with_free_sides(folder: Path, capsys: Capsys) -> None:
    onnx.save(model_of("g (float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Relu(x) }"), folder / "f.onnx")
    words = ("engine", "show", folder / "f.onnx", "--predicted", "--json")
    moved = [
        json.loads(run(capsys, *words, *shapes).out)["forecast"]["bytes_moved"]
        for shapes in ((), ("--shapes", "x:2x4x8x8"), ("--shapes", "x:1x4x8x8:4x4x8x8:8x4x8x8"))
    ]
    assert moved == [2048, 4096, 8192]  # a free side counts as 1
    refused(run(capsys, *words, "--shapes", "x:1x3x8x8"), "--shapes x:1x3x8x8", "does not fit the input 'x'")


def test_built_beside_predicted(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "engine", "show", engine(folder, *RIGHT), "--model", folder / "m.onnx", *V)
    assert "engine.json: 4 of 4 layers" in said.out
    said = run(capsys, "engine", "show", engine(folder, "c1", *RIGHT[1:]), "--model", folder / "m.onnx", *V)
    assert "c1: lacks r1" in said.out and said.code == 0
    assert "verdicts: 3 as predicted, 1 part" in said.out


def test_json_holds_layers_totals_and_comparison(folder: Path, capsys: Capsys) -> None:
    path = engine(folder, detailed("c1 + r1"), *RIGHT[1:])
    facts = json.loads(run(capsys, "engine", "show", path, "--model", folder / "m.onnx", "--json", *V).out)
    assert list(facts) == [
        "schema", "file", "source", "built", "trt", "layers", "totals", "predicted", "forecast", "comparison",
    ]  # fmt: skip
    assert facts["schema"] == 1 and facts["comparison"]["right"] == 4 and facts["source"] == "json"
    assert facts["layers"][0] == {
        "name": "c1 + r1", "kind": "CaskConvolution", "nodes": [],
        "inputs": [{"name": "t", "type": "FP16", "format": "Half", "shape": [1, 4]}], "constants": [],
        "outputs": [{"name": "t", "type": "FP16", "format": "Half", "shape": [1, 4]}],
        "product": "FP16", "conversion": False, "bytes_moved": 16,
        "tactic": "", "tensor_cores": None, "milliseconds": None,
    }  # fmt: skip
    plain = json.loads(run(capsys, "engine", "show", path, "--json").out)
    assert not {"predicted", "forecast", "comparison"} & plain.keys()


def test_times_of_a_profile_are_joined(folder: Path, capsys: Capsys) -> None:
    profile = folder / "profile.json"
    profile.write_text(json.dumps([{"count": 9}, {"name": "c1 + r1", "averageMs": 0.25, "percentage": 100}]), "utf-8")
    path = engine(folder, detailed("c1 + r1"), detailed("g", "CaskPooling"))
    said = run(capsys, "engine", "show", path, "--profile", profile)
    assert "FP16 -> FP16  16  0.2500  CaskConvolution  c1 + r1" in said.out
    assert "time: 0.250 ms" in said.out
    alone = run(capsys, "engine", "show", profile).out.splitlines()
    assert alone[0].startswith("profile.json: a profile") and "0.2500" in alone[1]
    refused(
        run(capsys, "engine", "show", engine(folder, "other"), "--profile", profile), "profile.json: ", "engine.json"
    )


def test_two_engines(folder: Path, capsys: Capsys) -> None:
    a = engine(folder, detailed("c1 + r1"), detailed("g", "CaskPooling"))
    b = engine(folder, detailed("c1 + r1", types="Int8 Half"), detailed("g", "CaskPooling"), name="b.json")
    said = run(capsys, "engine", "diff", a, b)
    lines = said.out.splitlines()
    assert said.code == 0 and lines[2] == "types: c1 + r1 (FP16 -> FP16) | c1 + r1 (INT8 -> FP16)"
    assert lines[3].startswith("A is engine.json, B is b.json; ") and lines[3].endswith(": 1 same, 1 types")
    assert [line.split() for line in lines[4:7]] == [["A", "B"], ["layers", "2", "2"], ["conversions", "0", "0"]]
    assert "same: g (FP16 -> FP16)" in run(capsys, "engine", "diff", a, b, "--all").out
    facts = json.loads(run(capsys, "engine", "diff", a, b, "--json").out)
    assert list(facts) == ["schema", "a", "b", "groups"] and facts["groups"][0]["change"] == "types"
    assert facts["a"]["totals"]["products"] == {"FP16": 1} and facts["b"]["totals"]["products"] == {"INT8": 1}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "none.json"), "none.json: cannot be read"),
        (("show", "bare.engine"), "is an engine, which TensorRT reads on its GPU alone; give its layers"),
        (("show", "own.engine"), "on its GPU alone; give own.engine.layers.json, which is beside it"),
        (("diff", "bare.engine", "bare.engine"), "is an engine, which TensorRT reads on its GPU alone"),
        (("show", "engine.json", "--predicted"), "--predicted: engine.json is no .onnx model"),
        (("show", "engine.json", "--model", "m.onnx"), "names no node of the model"),
        (("show", "engine.json", "--profile", "engine.json"), "engine.json: is not a profile of layers"),
        (("diff", "engine.json", "other.json"), "other.json: has no ONNX node in common with engine.json"),
    ],
)
def test_what_cannot_be_had_is_refused(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(folder)
    engine(folder, "Conv_0")
    engine(folder, "Conv_7", name="other.json")
    for name in ("bare.engine", "own.engine"):
        (folder / name).write_bytes(b"ftrt\0\0\0\0\2\0\0\0")
    engine(folder, "Conv_0", name="own.engine.layers.json")
    refused(run(capsys, "engine", *words), reason)


def test_lint_has_findings_only(folder: Path, capsys: Capsys) -> None:
    for option in ("--layers", "--layer-info"):
        assert run(capsys, "lint", folder / "m.onnx", option).code == 2
