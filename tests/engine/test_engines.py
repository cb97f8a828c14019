# SPDX-License-Identifier: Apache-2.0
"""Predicted layers against engines that TensorRT built: every layer's nodes, and its INT8 or float output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops
from qdqtool.engine.predict import predict_layers
from qdqtool.engine.read_info import read_layer_info
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import parse
from tests.engine.engine_graphs import camera_resnet34, graph_of_log, rebuilt, small_digits

pytestmark = pytest.mark.shared
NARROW = 0.25


def against(model: onnx.ModelProto, file: Path, version: str) -> LayerComparison:
    view = GraphView(model.graph)
    return compare_layers(predict_layers(view, parse(version)), read_layer_info(file), node_ops(view))


@pytest.mark.parametrize(
    ("net", "mode", "file", "version", "count"),
    [
        ("resnet18", "qat", "resnet18/qat.graph.json", "8.5.1", 33),
        ("resnet18", "qat-residual", "resnet18/qat-residual.graph.json", "8.5.1", 25),
        ("resnet18", "qat-residual-qgap", "resnet18/qat-residual-qgap.graph.json", "8.5.1", 23),
        ("resnet18", "fp", "resnet18/fp16.graph.json", "8.5.1", 23),
        ("resnet18", "fp", "resnet18/fp16.graph.json", "10.1.0", 23),  # an engine of 8.5, read by the rules of 10
        ("mobilenet", "qat", "mobilenet_v2/qat.graph.json", "8.5.1", 71),
        ("mobilenet", "qat", "mobilenet_v2/qat.older.graph.json", "8.2.1", 71),
    ],
)
def test_every_layer_but_reformats_is_right(
    shared: Path, net: str, mode: str, file: str, version: str, count: int
) -> None:
    width = NARROW if net == "resnet18" else 1.0  # a narrow MobileNet has other residual Adds
    found = against(rebuilt(shared, net, mode, width), shared / "trt" / "engines" / file, version)
    assert [row.note for row in found.rows if row.verdict != "same"] == []
    assert (found.right, found.engine_layers, found.helpers) == (count, count, ())
    assert all(layer.kind in ("NoOp", "Reformat") for layer in found.reformats)


@pytest.mark.parametrize("mode", ["qat", "fp"])
def test_by_the_rules_of_another_version_the_projections_are_wrong_and_said_to_vary(shared: Path, mode: str) -> None:
    name = {"qat": "qat", "fp": "fp16"}[mode]
    file = shared / "trt" / "engines" / "resnet18" / f"{name}.graph.json"
    found = against(rebuilt(shared, "resnet18", mode, NARROW), file, "8.2.1")
    wrong = [row for row in found.rows if row.verdict != "same"]
    assert len(wrong) == 6, "two convolutions at each of three projections"
    assert all("varies by version" in row.note for row in wrong)


def test_fusions_of_a_log_that_ends_before_the_engine(shared: Path) -> None:
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    found = against(onnx.load(folder / "my_model.onnx"), folder / "output.log", "8.0.1")
    assert (found.right, found.engine_layers, len(found.rows)) == (60, 60, 60)
    predicted = predict_layers(GraphView(onnx.load(folder / "my_model.onnx").graph), parse("8.0.1"))
    assert len(predicted) == 63, "as the log counts them after concat removal: three copies among them"


def test_parallel_convolutions_of_a_listed_engine(shared: Path) -> None:
    log = shared / "trt" / "engines" / "centerpoint_rpn_trt8" / "rpn_centerhead_sim.8503.log"
    found = against(graph_of_log(log), log, "8.2.3")
    assert (found.right, found.engine_layers, len(found.rows)) == (56, 56, 56)
    assert sum(" || " in row.engine.name for row in found.rows if row.engine is not None) == 5


def test_the_int8_backbone_of_a_myelin_engine(shared: Path) -> None:
    found = against(camera_resnet34(), shared / "trt" / "engines" / "bev_resnet34_trt10" / "layers.json", "10.3.0")
    assert (found.right, found.engine_layers, len(found.rows)) == (53, 53, 53)
    whole = [set(row.engine.metadata) == set(row.predicted.nodes) for row in found.rows if row.engine and row.predicted]
    assert whole.count(False) == 1, "one layer gives its output to the rest of the network in float too"


def test_what_myelin_takes_apart_is_not_foretold(shared: Path) -> None:
    found = against(small_digits(), shared / "trt" / "engines" / "mnist_trt10" / "layers.json", "10.16.1")
    assert (found.right, found.engine_layers) == (6, 8)
    wrong = [row.engine.name for row in found.rows if row.verdict != "same" and row.engine is not None]
    assert all(name.startswith("__myl_") for name in wrong)


@pytest.mark.slow
def test_the_table_of_the_bench_is_printed(shared: Path) -> None:
    script = Path(__file__).resolve().parents[1] / "bench" / "engine_layers.py"
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert "| centerpoint fp16 | 8.2.3 | 56 of 56 |" in said.stdout
