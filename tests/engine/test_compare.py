# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The comparison of predicted layers with an engine's: each kind of difference, and files of other models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops
from qdqtool.engine.cost import forecast
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.predict import predict_layers
from qdqtool.engine.predicted_text import comparison_json, comparison_lines, end_types, layer_lines, layers_json
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

NET = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4,4,1,1] v, float[4,4,1,1] u> { c = Conv(x, w) r = Relu(c) d = Conv(r, v) e = Conv(x, u) a = Add(d, e) y = Softmax(a) }"
QDQ = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float s = {0.1}, int8 z = {0}> { xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) c = Conv(xd, wd) cq = QuantizeLinear(c, s, z) cd = DequantizeLinear(cq, s, z) y = Softmax(cd) }"


def layer(name: str, output: str = "Float", reads: str = "Float", **more: object) -> EngineLayer:
    return EngineLayer(name, "CaskConvolution", inputs=(LayerTensor(reads),), outputs=(LayerTensor(output),), **more)  # type: ignore[arg-type]


def int8(name: str, output: str = "Float", **more: object) -> EngineLayer:
    return layer(name, output, "Int8", **more)


def compared(text: str, *layers: EngineLayer, source: str = "json") -> tuple[LayerComparison, EngineInfo]:
    view = GraphView(model_of(text).graph)
    info = EngineInfo(Path("e.json"), layers, source)  # type: ignore[arg-type]
    return compare_layers(predict_layers(view, TrtVersion(8, 2, 1)), info, node_ops(view)), info


def statuses(text: str, *layers: EngineLayer) -> list[tuple[str, str]]:
    return [(row.verdict, row.note) for row in compared(text, *layers)[0].rows]


RIGHT = (layer("c + r"), layer("e"), layer("d + a"), layer("y"))


def test_an_engine_as_predicted() -> None:
    found, info = compared(
        NET, *RIGHT, EngineLayer("Reformatting CopyNode for Output Tensor 0 to y"), layer("copied_squeeze")
    )
    assert (found.right, found.engine_layers, len(found.reformats), len(found.helpers)) == (4, 4, 1, 1)
    assert re.match("e.json: 4 of 4 layers .*; 1 reformats .*, 1 without ", comparison_lines(found, info)[0])


def test_the_add_with_the_other_convolution_is_said_to_vary() -> None:
    rows = statuses(NET, layer("c + r"), layer("d"), layer("e + a"), layer("y"))
    assert rows[0][0] == rows[3][0] == "same"
    assert rows[1][0] == "nodes" and re.match("lacks a; .*residual Add", rows[1][1])
    assert rows[2][0] == "nodes" and re.match("also contains a; .*residual Add", rows[2][1])


def test_the_add_of_a_bias_is_no_residual_add() -> None:
    net = "g (float[1,8] x) => (float[1,8] y) <float[8,8] w, float[8] k> { m = MatMul(x, w) b = Add(m, k) y = Softmax(b) }"
    assert statuses(net, layer("m"), layer("y")) == [("split", "lacks b"), ("same", "")]


def test_a_layer_of_another_type() -> None:
    rows = statuses(QDQ, int8("xq", "Int8"), int8("w + wq + c"), int8("cd"), int8("y"))
    assert rows[1] == ("output", "outputs float, predicted int8") and [row[0] for row in rows].count("same") == 3


@pytest.mark.parametrize(
    ("net", "built", "verdict"),
    [
        (QDQ, layer("w + wq + c"), ("float", "multiplies FP32, predicted INT8")),
        (QDQ, layer("w + wq + c + y", reads="Half"), ("float", "multiplies FP16, predicted INT8")),
        (NET, int8("c + r"), ("format", "multiplies INT8, predicted float")),
        (NET, int8("c"), ("format", "multiplies INT8, predicted float")),
    ],
)
def test_a_product_in_another_type_is_told_whatever_runs_with_it(
    net: str, built: EngineLayer, verdict: tuple[str, str]
) -> None:
    assert statuses(net, built)[0] == verdict


def test_myelin_names_a_product_beside_the_kernel_that_runs_it() -> None:
    conv = EngineLayer("c_myl0", "correlation", ("c",), (LayerTensor("Half"),), (LayerTensor("Half"),))
    kernel = EngineLayer("k_myl0", "kgen", ("c", "node_of_r"), (LayerTensor("Half"),), (LayerTensor("Half"),))
    rows = statuses(NET, conv, kernel)
    assert rows[:2] == [("split", "lacks r"), ("split", "lacks c")]


def test_a_layer_that_only_one_side_has() -> None:
    rows = compared(NET, *RIGHT[:3])[0].rows
    assert rows[3].verdict == "predicted" and rows[3].predicted is not None and rows[3].predicted.name == "y"
    rows = compared(NET, *RIGHT, layer("a"))[0].rows
    assert (rows[4].verdict, rows[4].note) == ("engine", "not predicted")


def test_metadata_are_compared_without_the_pairs_around() -> None:
    words = {"metadata": ("c", "xd", "wd", "cq", "wq")}
    rows = statuses(
        QDQ,
        layer("__myl_1", "Int8", metadata=("xq",)),
        int8("__myl_2", "Int8", **words),
        int8("__myl_3", metadata=("cd", "y")),
    )
    assert [row[0] for row in rows] == ["same", "same", "same", "predicted"]
    rows = statuses(QDQ, int8("__myl_2", "Int8", metadata=("c", "y")))
    assert rows[0] == ("merged", "also contains y")


def test_a_replayed_log_has_no_types() -> None:
    found, info = compared(QDQ, EngineLayer("xq", parts=("xq",)), EngineLayer("c", parts=("c", "wq")), source="fusions")
    assert [row.verdict for row in found.rows[:2]] == ["same", "same"]
    assert comparison_lines(found, info)[-1].startswith("the log ends ")


def test_the_engine_of_another_model() -> None:
    with pytest.raises(QdqError, match=r"e\.json: .*no node"):
        compared(NET, layer("Conv_0"), layer("__myl_X", metadata=("Conv_1",)))
    found, info = compared(NET, layer("Conv_0"), layer("Conv_1"), layer("c + r"))
    assert "of this model?" in "\n".join(comparison_lines(found, info))


def test_kernels_are_counted_and_the_plain_ones_named() -> None:
    found, info = compared(
        QDQ, int8("xq", "Int8"), int8("w + wq + c", "Int8", tactic="volta_int8x4_icudnn_v1"), int8("cd"), int8("y")
    )
    lines = comparison_lines(found, info)
    assert "INT8, not on Tensor Cores: w + wq + c (volta_int8x4_icudnn_v1)" in lines
    assert re.match("INT8 kernels: 0 .*Tensor Cores, 1 not, 3 ", lines[-1])


def test_values_for_json() -> None:
    found, _ = compared(QDQ, int8("xq", "Int8"), int8("w + wq + c", tactic="a_i8816_b"))
    facts = comparison_json(found)
    assert (facts["right"], facts["compared"]) == (1, 2)
    assert facts["verdicts"] == {"same": 1, "output": 1, "predicted": 2}
    row = facts["rows"][1]
    assert (row["verdict"], row["engine"], row["predicted"]) == ("output", "w + wq + c", "w + wq + c")
    assert facts["rows"][-1]["engine"] is None


def test_layers_for_people_and_for_json() -> None:
    view = GraphView(model_of(QDQ).graph)
    layers = predict_layers(view, TrtVersion(8, 6, 1))
    cost = forecast(view, layers)
    ends = end_types(view, layers, None)
    assert layer_lines(layers, ends, cost)[:2] == [
        "float -> INT8   quantize     xq",
        " INT8 -> INT8   convolution  w + wq + c",
    ]
    facts = layers_json(layers, ends, cost)
    assert (
        facts["predicted"][1]
        == {
            "name": "w + wq + c",
            "kind": "convolution",
            "nodes": ["c", "xd", "wq", "wd", "cq"],
            "compute": "int8",
            "output": "int8",
            "types": ["INT8", "INT8"],
            "rule": "conv",
        }
        and facts["forecast"]["conversions"] == 2
    )


def test_a_layer_is_paired_by_its_product_not_by_what_joins_it() -> None:
    text = NET.replace("y = Softmax(a)", "s = Relu(a) y = Softmax(s)")
    rows = compared(text, layer("c + r"), layer("d"), layer("e + a + s"), layer("y"))[0].rows
    assert [row.predicted.name for row in rows if row.predicted] == ["c + r", "d + a + s", "e", "y"]
    assert all("varies by version" in row.note for row in rows if row.verdict == "nodes")
