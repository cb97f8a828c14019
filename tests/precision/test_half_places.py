# SPDX-License-Identifier: Apache-2.0
"""Where operators can read and give out 16 bits, by ONNX's schemas."""

from __future__ import annotations

import pytest
from onnx import helper

from qdqtool.graph.nodes import Node
from qdqtool.precision.half_places import half_places, reads_any_type
from tests.precision.typed import BF16, FP16


def node(op: str, domain: str = "") -> Node:
    return Node(helper.make_node(op, ["x"], ["y"], domain=domain), 0)


@pytest.mark.parametrize(
    ("op", "reads", "gives"),
    [
        ("Conv", [True, True, True, False], [True, False]),
        ("Concat", [True, True, True, True], [True, False]),  # any number of inputs
        ("Split", [True, False], [True, True, True]),  # any number of outputs
        ("Resize", [True, True, False, False], [True]),
        ("LayerNormalization", [True, True, True], [True, False, False]),  # mean and deviation are float32
        ("NonMaxSuppression", [False] * 5, [False]),
        ("Range", [False] * 3, [False]),
        ("QuantizeLinear", [False] * 3, [False]),
        ("DequantizeLinear", [False] * 3, [False]),
    ],
)
@pytest.mark.parametrize("opset", [17, 21])
def test_places(op: str, reads: list[bool], gives: list[bool], opset: int) -> None:
    places = half_places(node(op), opset, FP16)
    assert places is not None
    assert [places.reads(index) for index in range(len(reads))] == reads
    assert [places.gives(index) for index in range(len(gives))] == gives


@pytest.mark.parametrize("made", [node("Plugin"), node("Relu", "trt"), node("Plugin", "com.microsoft")])
def test_what_onnx_does_not_know_has_no_places(made: Node) -> None:
    assert half_places(made, 17, FP16) is None


@pytest.mark.parametrize(("op", "typed"), [("RandomNormal", True), ("EyeLike", True), ("Relu", False), ("Cast", False)])
def test_an_attribute_can_name_the_type(op: str, typed: bool) -> None:
    places = half_places(node(op), 17, FP16)
    assert places is not None
    assert places.typed is typed


def test_what_reads_any_type() -> None:
    assert reads_any_type(node("Cast"), 0)
    assert reads_any_type(node("Shape"), 0)
    assert not reads_any_type(node("CastLike"), 1)
    assert not reads_any_type(node("Relu"), 0)


@pytest.mark.parametrize("rest", [FP16, BF16])
@pytest.mark.parametrize("op", ["Upsample", "Scatter"])
def test_what_onnx_took_away_before_bf16_came_has_it(op: str, rest: int) -> None:
    places = half_places(node(op), 9, rest)
    assert places is not None and places.reads(0) and places.gives(0)
