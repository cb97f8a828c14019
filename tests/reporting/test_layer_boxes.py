# SPDX-License-Identifier: Apache-2.0
"""What a box says of a layer: its type, its look and why, for each way in which a layer comes to its type."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from qdqtool.engine.compare import compare_layers
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.predict import Port, PredictedLayer
from qdqtool.reporting.boxes import LayerBox
from qdqtool.reporting.layer_boxes import Reason, built_boxes, predicted_boxes


def layer(kind: str, reads: str, writes: str, compute: str = "float", rule: str = "", *nodes: str) -> PredictedLayer:
    """A layer of the node n, or of others; int8 where a tensor's name is capital."""
    ports = [Port(name.lower(), "int8" if name.isupper() else "float") for name in (reads, writes)]
    return PredictedLayer("L", kind, nodes or ("n",), nodes or ("n",), compute, (ports[0],), (ports[1],), (), rule)


def box(one: PredictedLayer, types: dict[str, int] | None = None, **reasons: Reason) -> LayerBox:
    (found,) = predicted_boxes([one], reasons, types or {})
    return found


@pytest.mark.parametrize(
    ("made", "kind", "look", "reason"),
    [
        (layer("convolution", "X", "Y", "int8", "conv-relu"), "INT8", "int8", "fused by rule conv-relu"),
        (layer("convolution", "X", "y", "int8"), "INT8", "int8", ""),
        (layer("maxpool", "X", "Y"), "INT8", "int8", ""),  # it only moves integers
        (layer("maxpool", "X", "y"), "FP32", "fp32", ""),
        (layer("convolution", "X", "Y"), "FP32", "fp32", "no Q/DQ pair at its input"),
        (layer("softmax", "x", "y"), "FP32", "fp32", ""),
    ],
)
def test_the_type_is_what_is_multiplied_or_moved(made: PredictedLayer, kind: str, look: str, reason: str) -> None:
    found = box(made)
    assert (found.type, found.look, found.reason) == (kind, look, reason)


def test_a_float_layer_has_the_type_of_what_it_writes() -> None:
    half = box(layer("convolution", "x", "y"), {"y": TensorProto.FLOAT16})
    assert (half.type, half.look) == ("FP16", "fp16")
    assert box(layer("convolution", "x", "y"), {"y": TensorProto.BFLOAT16}).look == "fp16"
    assert box(layer("convolution", "x", "y"), {"x": TensorProto.FLOAT16}).type == "FP32"


def test_why_it_is_in_float_on_purpose_and_why_against_the_rules() -> None:
    product, moved = layer("product", "x", "y"), layer("softmax", "x", "y")
    assert box(product, n=("kept", "a box head")).look == "kept"
    assert box(product, n=("kept", "a box head")).reason == "a box head"
    lost = box(product, n=("int8", "Conv reads INT8"))
    assert lost.look == "lost" and lost.reason.endswith(": Conv reads INT8")
    assert box(moved, n=("int8", "Conv reads INT8")).look == "fp32", "no product is lost with it"


def test_an_int8_layer_says_why_of_the_plan_and_nothing_of_what_is_kept() -> None:
    made = layer("convolution", "X", "Y", "int8", "conv")
    assert box(made, n=("int8", "Conv reads INT8")).reason == "Conv reads INT8"
    assert box(made, n=("kept", "a head")).reason == "fused by rule conv"


def test_of_several_nodes_what_is_not_int8_goes_first() -> None:
    made = layer("product", "x", "y", "float", "", "a", "b", "c")
    assert box(made, a=("int8", "1"), b=("kept", "2"), c=("lost", "3")).reason == "2"
    assert box(made, a=("int8", "1"), c=("int8", "3")).reason.endswith(": 1")


@pytest.mark.parametrize(
    ("kind", "shown", "words"), [("quantize", "INT8", "float to INT8"), ("dequantize", "FP32", "INT8 to float")]
)
def test_a_conversion_is_found_by_its_tensor(kind: str, shown: str, words: str) -> None:
    ends = ("x", "X") if kind == "quantize" else ("X", "x")
    found = box(layer(kind, *ends))
    assert (found.type, found.look, found.nodes) == (
        shown,
        "converts",
        ("x",),
    ) and f"x goes from {words}" in found.reason


def test_layers_without_nodes_have_no_box() -> None:
    copy = PredictedLayer("copy", "copy", (), (), "float", (Port("x", "float"),), (Port("x", "float"),))
    assert predicted_boxes([copy], {}, {}) == []


# What was built.

KNOWN = {"c1": "Conv", "r1": "Relu", "c2": "Conv"}


def engine(*layers: EngineLayer) -> EngineInfo:
    return EngineInfo(Path("e.json"), layers, "json")


def convolution(name: str, kind: str) -> EngineLayer:
    tensor = LayerTensor(kind, "x", (1, 4, 8, 8))
    return EngineLayer(name, "CaskConvolution", inputs=(tensor,), outputs=(tensor,))


def test_built_layers_have_the_type_that_they_multiply_in() -> None:
    info = engine(convolution("c1 + r1", "INT8"), convolution("c2", "FP16"), EngineLayer("reformat", "Reformat"))
    first, second = built_boxes(info, KNOWN, None, {})
    assert (first.type, first.look, first.nodes, first.reason) == ("INT8", "int8", ("c1", "r1"), "")
    assert (second.type, second.look, second.kind) == ("FP16", "fp16", "caskconvolution")


def test_built_layers_say_why_they_are_in_float_and_whether_that_was_predicted() -> None:
    info = engine(convolution("c1 + r1", "FP16"), convolution("c2", "INT8"))
    predicted = [
        PredictedLayer("c1 + r1", "convolution", ("c1", "r1"), ("c1", "r1"), "int8", (Port("x", "int8"),), ()),
        PredictedLayer("c2", "convolution", ("c2",), ("c2",), "int8", (Port("x", "int8"),), (Port("x", "int8"),)),
    ]
    reasons: dict[str, Reason] = {"r1": ("kept", "a head"), "c1": ("int8", "by a rule"), "c2": ("kept", "a head")}
    kept, same = built_boxes(info, KNOWN, compare_layers(predicted, info, KNOWN), reasons)
    assert kept.look == "kept" and kept.reason.startswith("built, ") and kept.reason.endswith("; a head")
    assert same.look == "int8" and same.reason == "built, as predicted"
