# SPDX-License-Identifier: Apache-2.0
"""The three inputs of a few bytes that once took gigabytes or had no end, as named cases. Figures are reported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.detector_model import write_detector
from tests.fuzz.fork_server import Ended, FuzzRun, FuzzTask
from tests.fuzz.mutants import write_job
from tests.fuzz.verdict import Fault, faults_of
from tests.graphs import SMALL_NET, model_of

CPU_SECONDS, PEAK_MB = 1.0, 500.0  # what each may take; not asserted where time depends on the machine


def folding_bomb() -> onnx.ModelProto:
    """A weight that ConstantOfShape makes: 48 GiB from 172 bytes."""
    size = helper.make_tensor("n", TensorProto.INT64, [4], [2**20, 3, 64, 64])
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["w"]), helper.make_node("Conv", ["x", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [size])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def nested_functions(levels: int = 7, calls: int = 10) -> onnx.ModelProto:
    """Functions that call the next one ten times, in place of a Relu: ten million nodes from 3 kB."""
    model = model_of(SMALL_NET, 12)  # below 13 the graph is lifted by its types
    model.opset_import.add(domain="own", version=1)
    for level in range(levels):
        kind, domain = ("Relu", "") if level + 1 == levels else (f"f{level + 1}", "own")
        names = ["u", *(f"t{index}" for index in range(calls - 1)), "v"]
        steps = [helper.make_node(kind, [names[i]], [names[i + 1]], domain=domain) for i in range(calls)]
        model.functions.append(helper.make_function("own", f"f{level}", ["u"], ["v"], steps, model.opset_import))
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type, relu.domain = "f0", "own"
    return model


def thin_picture(folder: Path) -> None:
    """A detector and a PNG of 1 x 12000, which grows to 8.6 GB if its short side is made readable."""
    from PIL import Image

    write_detector(folder / "model.onnx")
    (folder / "images").mkdir()
    Image.new("RGB", (1, 12000), (200,) * 3).save(folder / "images" / "a.png")


def _write(make: Callable[[], onnx.ModelProto], folder: Path) -> None:
    (folder / "model.onnx").write_bytes(make().SerializeToString())


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "folding-insert": (functools.partial(_write, folding_bomb), "insert model.onnx -o out.onnx"),
    "folding-lint": (functools.partial(_write, folding_bomb), "lint model.onnx"),
    "functions-insert": (functools.partial(_write, nested_functions), "insert model.onnx -o out.onnx"),
    "functions-lint": (functools.partial(_write, nested_functions), "lint model.onnx"),
    "thin-infer": (thin_picture, "infer model.onnx --data images --preprocess yolox -o pictures"),
    "thin-compare": (thin_picture, "compare model.onnx model.onnx --data images --preprocess yolox --draw pictures"),
}


def heavy_tasks() -> Iterator[FuzzTask]:
    """A run of each case."""
    for name in CASES:
        yield FuzzTask(f"{name}:0", functools.partial(_prepare, name))


def heavy_faults(ended: Ended) -> list[Fault]:
    """What any run may not do, and more time or memory than these cases may take."""
    found = faults_of(ended)
    if ended.cpu_seconds > CPU_SECONDS:
        found.append(Fault("slow", f"{ended.cpu_seconds:.1f} CPU s where {CPU_SECONDS:g} are allowed"))
    if ended.peak_mb > PEAK_MB:
        found.append(Fault("large", f"{ended.peak_mb:.0f} MB where {PEAK_MB:g} are allowed"))
    return found


def _prepare(name: str, folder: Path) -> FuzzRun:
    write, words = CASES[name]
    write(folder / "run")
    write_job(folder, words.split(), name)
    return FuzzRun(words.split())
