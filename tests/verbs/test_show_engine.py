# SPDX-License-Identifier: Apache-2.0
"""`show_engine`, `predicted_layers` and `diff_engines`: results as values, text and tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.verbs.show_engine import is_model
from tests.graphs import SMALL_NET, model_of


def export(folder: Path, name: str, *layers: dict[str, Any], **more: object) -> Path:
    path = folder / name
    path.write_text(json.dumps({"Layers": layers, **more}), encoding="utf-8")
    return path


def layer(name: str, reads: str = "Half", writes: str = "Half", kind: str = "CaskConvolution") -> dict[str, Any]:
    ports = [[{"Name": "t", "Dimensions": [1, 4], "Format/Datatype": one}] for one in (reads, writes)]
    return {"Name": name, "LayerType": kind, "Inputs": ports[0], "Outputs": ports[1]}


@pytest.mark.parametrize(
    ("path", "model"),
    [("m.onnx", True), ("M.ONNX", True), (Path("a/m.onnx"), True), ("m.onnx.layers.json", False), ("build.log", False)],
)
def test_a_model_is_told_by_its_ending(path: str | Path, model: bool) -> None:
    assert is_model(path) is model


def test_an_engine_as_text_and_table(tmp_path: Path) -> None:
    shown = qdqtool.show_engine(export(tmp_path, "e.json", layer("c1", "Int8"), layer("y", kind="Reformat")))
    assert repr(shown) == "<ShownEngine: e.json: layer information that TensorRT exported: 2 layers>"
    assert repr(shown).startswith("<ShownEngine: e.json: layer information ") and "2 layers" in repr(shown)
    assert str(shown).splitlines()[1:] == [
        "layer             kind  reads  writes  bytes  ONNX nodes",
        "c1     CaskConvolution   INT8    FP16     12            ",
        "y             Reformat   FP16    FP16     16            ",
        "layers: 2 (1 CaskConvolution, 1 Reformat); 1 of them only convert or copy",
        "products: 1 INT8",
        "bytes moved: 28 in one inference, weights included",
    ]
    assert "<td>c1</td>" in shown._repr_html_() and shown.predicted is None and shown.differences() == []


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "e.json: layer information that TensorRT exported"),
        (
            {"qdqtool": {"built": "TensorRT 10.7.0, built here", "version": "10.7.0"}},
            "e.json: TensorRT 10.7.0, built here",
        ),
        ({"qdqtool": {"built": 3}}, "e.json: built, not run"),
        ({"qdqtool": []}, "e.json: layer information that TensorRT exported"),
    ],
)
def test_the_first_line_says_no_more_than_the_file(tmp_path: Path, more: dict[str, Any], line: str) -> None:
    assert qdqtool.show_engine(export(tmp_path, "e.json", layer("c1"), **more)).lines()[0] == line


def test_a_model_stands_beside(tmp_path: Path) -> None:
    options = qdqtool.ShowEngineOptions(model_of(SMALL_NET), trt_version="8502")
    shown = qdqtool.show_engine(export(tmp_path, "e.json", layer("c1 + r1"), layer("c2", "Int8")), options)
    assert shown.comparison is not None and shown.predicted is not None
    assert [row.verdict for row in shown.comparison.rows] == ["same", "format", "predicted", "predicted"]
    assert "a number format that was not predicted: c2: multiplies INT8, predicted float" in shown.differences()
    assert shown.predicted.headline() == "4 layers predicted, 0 with INT8 input"
    with pytest.raises(QdqError, match=r"e.json: .*no node"):
        qdqtool.show_engine(export(tmp_path, "e.json", layer("Conv_0")), options)


def test_predicted_layers_need_no_engine() -> None:
    found = qdqtool.predicted_layers(model_of(SMALL_NET), "8502")
    assert [one.name for one in found.layers] == ["c1 + r1", "c2 + r2", "g", "y"] and found.forecast.layers == 4
    assert repr(found) == "<PredictedLayers: 4 layers predicted, 0 with INT8 input>"
    assert found.rows()[1] == ("c1 + r1", "convolution", "float", "float")
    assert found.lines()[-2].startswith("predicted, not measured: 4 layers")
    with pytest.raises(QdqError, match="DLA subgraph"):
        qdqtool.predicted_layers(model_of(SMALL_NET), target="dla")


TYPED = """net (float[1,4,8,8] x) => (float[1,4,8,8] y) {
 a = Cast<to=10>(x) b = Relu(a) c = Softmax(b) d = Cast<to=1>(c) y = Sqrt(d) }"""


@pytest.mark.parametrize(
    ("text", "version", "last"),
    [
        (SMALL_NET, "8502", "with floats as FP16"),
        (SMALL_NET, "10.3", "with floats as FP16"),
        (SMALL_NET, None, "with floats as FP16"),
        (SMALL_NET, "11.0", "multiply-adds: 100 % FP32"),
        (TYPED, "10.3", "bytes moved: 4,096 (50 % FP16, 50 % FP32)"),
        (TYPED, None, "bytes moved: 4,096 (50 % FP16, 50 % FP32)"),
    ],
)
def test_the_forecast_uses_the_types_of_the_file_where_an_engine_does(
    text: str, version: str | None, last: str
) -> None:
    assert qdqtool.predicted_layers(model_of(text, 21), version).lines()[-1].endswith(last)


def test_each_layer_has_the_types_of_the_file_where_an_engine_has_them() -> None:
    ends = {one[0]: one[2:] for one in qdqtool.predicted_layers(model_of(TYPED, 21), "11.4").rows()[1:]}
    assert list(ends.values()) == [("FP32", "FP16"), ("FP16", "FP16"), ("FP16", "FP32")], "Casts run in a layer beside"
    assert qdqtool.predicted_layers(model_of(SMALL_NET), "11.4").rows()[1][2:] == ("FP32", "FP32")
    lines = qdqtool.predicted_layers(model_of(SMALL_NET), "11.4").lines()
    assert lines[0] == " FP32 -> FP32   convolution  c1 + r1"
    assert any(line.endswith(": 0 in INT8, 0 in FP16, 3 in FP32") for line in lines)


def test_two_engines_as_text_and_values(tmp_path: Path) -> None:
    a = export(tmp_path, "a.json", layer("c1 + r1"), layer("c2"))
    b = export(tmp_path, "b.json", layer("c1", "Int8"), layer("r1", kind="PointWise"), layer("c2"))
    found = qdqtool.diff_engines(a, b)
    assert [row.change for row in found.aligned] == ["split", "same"]
    assert re.match("<EngineDifference: a.json and b.json: 1 of 2 ", repr(found))
    assert found.rows()[1] == ("split", "c1, r1", "c1 + r1", "c1 + r1")
    facts = found.to_json()
    assert list(facts) == ["a", "b", "groups"] and facts["b"]["totals"]["layers"] == 3
    table = [one.split() for one in found.lines()[-5:]]
    assert table[1] == ["conversions", "0", "0"] and table[2] == ["products", "in", "FP16", "2", "1"]


def test_the_other_way_round_is_merged(tmp_path: Path) -> None:
    a = export(tmp_path, "a.json", layer("c1 + r1"))
    b = export(tmp_path, "b.json", layer("c1"), layer("r1", kind="PointWise"))
    assert [row.change for row in qdqtool.diff_engines(b, a).aligned] == ["merged"]


@pytest.mark.parametrize("source", ["m.onnx", model_of(SMALL_NET)])
def test_without_tensorrt_for_rtx_a_model_is_not_built(tmp_path: Path, source: Any) -> None:
    if isinstance(source, str):
        onnx.save(model_of(SMALL_NET), tmp_path / source)
        source = tmp_path / source
    with pytest.raises(qdqtool.QdqError, match="TensorRT for RTX: is not installed") as error:
        qdqtool.show_engine(source)
    assert error.value.exit_code == 3
