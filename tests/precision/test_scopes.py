# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Element types of a typed file, graph by graph, with what a DequantizeLinear makes for TensorRT."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.nodes import Node
from qdqtool.precision.scopes import TypeScope, typed_scope
from tests.precision.typed_graphs import half, typed_model

F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def kinds(text: str, opset: int = 17, **weights: np.ndarray) -> dict[str, int]:
    return dict(typed_scope(Model(typed_model(text, opset, 10, **weights))).types)


def test_types_of_inputs_weights_casts_and_what_follows() -> None:
    found = kinds(
        "g (float16[N] x) => (bfloat16[N] y) { a = Mul(x, w) b = Cast<to = 1>(a) c = Neg(b) y = Cast<to = 16>(c) s = Shape(a) }",
        w=half(1),
    )
    assert found == {"x": F16, "w": F16, "a": F16, "b": F32, "c": F32, "y": BF16, "s": TensorProto.INT64}


@pytest.mark.parametrize("opset", [13, 19])
@pytest.mark.parametrize(("scale", "kind"), [(np.float16(0.1), F16), (np.float32(0.1), F32)])
def test_a_dequantize_makes_the_type_of_its_scale_in_any_opset(opset: int, scale: np.ndarray, kind: int) -> None:
    found = kinds("g (int8[N] q) => (float16[N] y) { d = DequantizeLinear(q, s) y = Relu(d) }", opset, s=scale)
    assert (found["d"], found["y"]) == (kind, kind)


def test_output_dtype_comes_before_the_scale() -> None:
    found = kinds(
        "g (int8[N] q, float s) => (float16[N] y) { d = DequantizeLinear<output_dtype = 10>(q, s) y = Relu(d) }", 23
    )
    assert (found["d"], found["y"]) == (F16, F16)


def test_a_weight_has_its_stored_type_whatever_the_list_of_inputs_says() -> None:
    model = typed_model(
        "g (float[N] x, float[1] w) => (float16[N] y) { h = Cast<to = 10>(x) y = Mul(h, w) }", w=half(2)
    )
    found = typed_scope(Model(model)).types
    assert (found["w"], found["h"], found["y"]) == (F16, F16, F16)


def test_bodies_have_types_of_their_own_and_those_around_them() -> None:
    text = """g (float16[N] x, bool c) => (float16[N] y) { y = If(c) <
      then_branch = t () => (float16[N] a) { m = Cast<to = 1>(x) a = Cast<to = 10>(m) }, else_branch = e () => (float16[N] b) { m = Neg(x) b = Neg(m) }> }"""
    model = typed_model(text)
    scope, node = typed_scope(Model(model)), Node(model.graph.node[0], 0)
    assert [scope.body(node, label).types["m"] for label in ("then_branch", "else_branch")] == [F32, F16]
    assert scope.body(node, "then_branch").types["x"] == F16 and "m" not in scope.types
    assert scope.body(node, "no such body") == TypeScope(scope.types)
