# SPDX-License-Identifier: Apache-2.0
"""Which operators onnxruntime can run: by its list of kernels, and where the build has none, by asking it."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.runtime.runnable_part import runnable_part
from tests.graphs import model_of

ort = pytest.importorskip("onnxruntime", reason="it is what is asked")

MS = "com.microsoft"
LISTED = hasattr(ort.capi.onnxruntime_pybind11_state, "get_all_opkernel_def")
CPU = ("CPUExecutionProvider",)


class Build:
    """The installed onnxruntime, with or without its list of kernels and what makes gradients."""

    def __init__(self, *, listed: bool, gradients: bool = False) -> None:
        state = ort.capi.onnxruntime_pybind11_state
        tell = {"get_all_opkernel_def": state.get_all_opkernel_def} if listed else {}
        made = {"GradientGraphBuilder": object} if gradients else {}
        self.capi = types.SimpleNamespace(onnxruntime_pybind11_state=types.SimpleNamespace(**tell, **made))
        self.started: list[str] = []
        self.get_available_providers: Callable[[], list[str]] = ort.get_available_providers

    def __getattr__(self, name: str) -> Any:
        return getattr(ort, name)

    def InferenceSession(self, model: bytes, *rest: Any, **options: Any) -> Any:
        self.started += [node.op_type for node in onnx.ModelProto.FromString(model).graph.node]
        return ort.InferenceSession(model, *rest, **options)


def test_a_build_for_gpus_is_not_asked_for_its_kernels() -> None:
    """It starts each provider for that: without TensorRT's libraries 1.31 ends the process, 1.20 raises."""
    build = Build(listed=True)

    def ends_the_process() -> None:
        raise AssertionError("asked")

    build.capi.onnxruntime_pybind11_state.get_all_opkernel_def = ends_the_process
    build.get_available_providers = lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider", *CPU]
    model = one_node("EfficientNMS_TRT", "", 2, 4, {}, 13)
    assert behind(model, build) == {"EfficientNMS_TRT"}
    assert behind(one_node("Neg", "", 1, 1, {}, 13), build) == set()


_LISTED = pytest.param(True, marks=pytest.mark.skipif(not LISTED, reason="this build has no list"))
builds = pytest.mark.parametrize("listed", [_LISTED, False])


def one_node(op: str, domain: str, many: int, outputs: int, attributes: dict[str, Any], opset: int) -> onnx.ModelProto:
    """A model of Relu and then one node, whose inputs are the Relu's output."""
    made = [f"y{number}" for number in range(outputs)]
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["r"]),
        onnx.helper.make_node(op, ["r"] * many, made, domain=domain, **attributes),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, [1, 3, 8, 8])], [onnx.ValueInfoProto(name=name) for name in made]
    )
    imports = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=imports)


def behind(model: onnx.ModelProto, build: Any) -> set[str]:
    return set(runnable_part(Model(model), build, CPU).behind.values())


NMS = {"score_threshold": 0.5}
FOREIGN: Sequence[tuple[str, str, int, int, dict[str, Any], bool]] = [
    ("EfficientNMS_TRT", "", 2, 4, {}, False),
    ("EfficientNMS_TRT", "", 2, 2, NMS, False),
    ("BatchedNMSDynamic_TRT", "", 2, 4, NMS, False),
    ("EfficientNMS_TRT", "TRT", 2, 4, NMS, False),
    ("Affine", "", 1, 1, {"alpha": 2.0, "beta": 1.0}, False),
    ("Crop", "", 1, 1, {"border": [1, 1, 1, 1]}, False),
    ("Quant", "", 4, 1, {}, False),
    ("Quant", "onnx.brevitas", 4, 1, {}, False),
    ("TRTBatchedNMS", "mmdeploy", 2, 2, {}, False),
    ("NoSuchOperator", MS, 1, 1, {}, False),
    ("BiasSplitGelu", MS, 2, 1, {}, False),
    ("FusedConv", MS, 2, 1, {"activation": "Relu"}, True),
    ("Inverse", MS, 1, 1, {}, True),
    ("QuickGelu", MS, 1, 1, {}, True),
    ("HardSwish", "", 1, 1, {}, True),
]


@builds
@pytest.mark.parametrize(("op", "domain", "many", "outputs", "attributes", "runs"), FOREIGN)
def test_foreign_operators_are_distinguished(
    op: str, domain: str, many: int, outputs: int, attributes: dict[str, Any], runs: bool, listed: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = behind(one_node(op, domain, many, outputs, attributes, 14), Build(listed=listed))
    assert found == (set() if runs else {f"{domain}::{op}" if domain else op})
    assert capfd.readouterr().err == ""


def test_gradients_are_known_where_they_are_made() -> None:
    """They are never started alone: the kernel of MaxPoolGrad ends the process where no shape is known."""
    for op, domain in (("ReluGrad", MS), ("ConvGrad", MS), ("MaxPoolGrad", "")):
        model = one_node(op, domain, 2, 1, {}, 14)
        build = Build(listed=False, gradients=True)
        assert behind(model, build) == set() and build.started == []
        if LISTED:  # a build that makes none has none
            assert behind(model, Build(listed=False)) == {f"{domain}::{op}" if domain else op}


@builds
def test_operators_that_onnx_defines_start_no_session(listed: bool) -> None:
    model = model_of("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { a = Relu(x) b = Sigmoid(a) y = Mul(a, b) }")
    build = Build(listed=listed)
    assert behind(model, build) == set() and build.started == []


def test_one_session_per_foreign_operator_and_not_again() -> None:
    nodes = "a = com.microsoft.QuickGelu(x) b = com.microsoft.QuickGelu(a) y = com.microsoft.Inverse(b)"
    head = '<ir_version: 8, opset_import: ["" : 14, "com.microsoft" : 1]>'
    text = f"{head}\ng (float[3,3] x) => (float[3,3] y) {{ {nodes} }}"
    model, build = onnx.parser.parse_model(text), Build(listed=False)
    assert behind(model, build) == set() and build.started == ["QuickGelu", "Inverse"]
    assert behind(model, build) == set() and len(build.started) == 2


def test_types_that_are_known_are_fed() -> None:
    """GatherND of float indices would be refused, and so would be an operator with integers among its inputs."""
    text = """<ir_version: 8, opset_import: ["" : 14, "com.microsoft" : 1]>
    g (float[4,8] x, int32[2] ids) => (float[4,8] y) {
        words = com.microsoft.GatherND(x, ids)
        y = Relu(words)
    }"""
    assert behind(onnx.parser.parse_model(text), Build(listed=False)) == set()
