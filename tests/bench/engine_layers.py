# SPDX-License-Identifier: Apache-2.0
"""Predicted layers against engines that TensorRT built, one row per engine: `python tests/bench/engine_layers.py`.

Reads the exports and logs beside the project (QDQTOOL_SHARED); builds no engine. Reformats are counted only.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT)]

from qdqtool.engine.compare import LayerComparison, compare_layers, node_ops  # noqa: E402
from qdqtool.engine.cost import Forecast, forecast  # noqa: E402
from qdqtool.engine.layer_info import EngineInfo, EngineLayer  # noqa: E402
from qdqtool.engine.predict import predict_layers  # noqa: E402
from qdqtool.engine.read_info import read_layer_info  # noqa: E402
from qdqtool.graph.view import GraphView  # noqa: E402
from qdqtool.trtversion import parse  # noqa: E402
from tests.engine.engine_graphs import camera_resnet34, graph_of_log, rebuilt, small_digits  # noqa: E402


@dataclass(frozen=True)
class MeasuredEngine:
    """One engine: where its layers are told, how its graph is had, the version whose rules are asked."""

    label: str
    file: str
    graph: str
    trt: str


ENGINES = (
    *(
        MeasuredEngine(f"resnet18 {mode}", f"engines/resnet18/{mode}.graph.json", f"resnet18 {mode}", "8.5.1")
        for mode in ("qat", "qat-residual", "qat-residual-qgap")
    ),
    MeasuredEngine("resnet18 fp16", "engines/resnet18/fp16.graph.json", "resnet18 fp", "8.5.1"),
    MeasuredEngine("mobilenet_v2 qat", "engines/mobilenet_v2/qat.graph.json", "mobilenet qat", "8.5.1"),
    MeasuredEngine("mobilenet_v2 qat older", "engines/mobilenet_v2/qat.older.graph.json", "mobilenet qat", "8.2.1"),
    MeasuredEngine(
        "lannyyip int8+cache", "pairs/lannyyip_share/output.log", "file pairs/lannyyip_share/my_model.onnx", "8.0.1"
    ),
    MeasuredEngine("centerpoint fp16", "engines/centerpoint_rpn_trt8/rpn_centerhead_sim.8503.log", "log", "8.2.3"),
    MeasuredEngine("bev resnet34", "engines/bev_resnet34_trt10/layers.json", "camera", "10.3.0"),
    MeasuredEngine("mnist fp32", "engines/mnist_trt10/layers.json", "digits", "10.16.1"),
)


def graph_of(engine: MeasuredEngine, shared: Path) -> onnx.ModelProto:
    """The ONNX graph of an engine."""
    kind, _, rest = engine.graph.partition(" ")
    if kind == "file":
        return onnx.load(shared / "trt" / rest)
    if kind == "log":
        return graph_of_log(shared / "trt" / engine.file)
    if kind == "camera":
        return camera_resnet34()
    return small_digits() if kind == "digits" else rebuilt(shared, kind, rest)


def measure(engine: MeasuredEngine, shared: Path) -> tuple[LayerComparison, EngineInfo, Forecast, int]:
    """The comparison, the engine, the forecast, and how many names are as TensorRT writes them."""
    view = GraphView(graph_of(engine, shared).graph)
    layers = predict_layers(view, parse(engine.trt))
    info = read_layer_info(shared / "trt" / engine.file)
    found = compare_layers(layers, info, node_ops(view))
    names = sum(
        row.engine is not None and row.predicted is not None and plain_name(row.engine) == row.predicted.name
        for row in found.rows
    )
    return found, info, forecast(view, layers), names


def plain_name(layer: EngineLayer) -> str:
    """A layer's name without the helpers that TensorRT numbers."""
    text = re.sub(r" \+ unsqueeze_node_after_.*$| \+ \(Unnamed Layer\* \d+\) \[\w+\]", "", layer.name)
    return re.sub(r"^PWN\((PWN\(.*\))\)$", r"\1", text)


WIDTHS = {"int8": 1, "fp16": 2, "half": 2, "fp32": 4, "float": 4}


def engine_bytes(path: Path) -> int:
    """Bytes that the layers of an export read and write, by its own formats; weights are left out."""
    import json

    total = 0
    for layer in json.loads(path.read_text())["Layers"]:
        for port in (*layer["Inputs"], *layer["Outputs"]):
            size = 1
            for axis in port["Dimensions"]:
                size *= axis
            words = port["Format/Datatype"].lower()
            total += size * next(width for word, width in WIDTHS.items() if word in words)
    return total


def main() -> None:
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    print(
        "| engine | rules of | layers right | names as written | reformats | other | Tensor Cores yes / no / untold |"
    )
    print("|---|---|---|---|---|---|---|")
    wrong, costs = [], {}
    for engine in ENGINES:
        found, info, cost, names = measure(engine, shared)
        costs[engine.label] = cost
        int8 = [layer for layer in info.layers if layer.reads_int8 and not layer.is_reformat]
        cores = Counter(layer.tensor_cores for layer in int8)
        print(
            f"| {engine.label} | {engine.trt} | {found.right} of {found.engine_layers} | {names} | "
            f"{len(found.reformats)} | {len(found.helpers)} | {cores[True]} / {cores[False]} / {cores[None]} |"
        )
        wrong += [
            f"{engine.label}: {row.note}: {(row.engine or row.predicted).name}"
            for row in found.rows
            if row.verdict != "same"
        ]
    print("\nwrong:", *(wrong or ["nothing"]), sep="\n  ")
    print("\n| ResNet-18 | predicted layers | conversions | float residuals | MB moved | engine layers | engine MB |")
    print("|---|---|---|---|---|---|---|")
    for mode in ("qat", "qat-residual", "qat-residual-qgap"):
        cost, path = costs[f"resnet18 {mode}"], shared / "trt" / "engines" / "resnet18" / f"{mode}.graph.json"
        real = len(read_layer_info(path).layers)
        row = (cost.layers, cost.conversions, cost.float_residuals, f"{(cost.bytes_moved or 0) / 1e6:.0f}", real)
        print(f"| {mode} | {' | '.join(map(str, row))} | {engine_bytes(path) / 1e6:.0f} |")


if __name__ == "__main__":
    main()
