# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Numbers that nodes compute from sizes stand as constants in what is run, and the values of tensors stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.known_numbers import with_known_numbers
from tests.graphs import model_of

NUMBERS = "int64[1] k0 = {0}, int64[1] k2 = {2}, int64[1] rest = {-1}"
SIZES = "s = Shape(x) n = Gather<axis=0>(s, k0) two = Constant<value = int64[1] {2}>() h = Div(n, two) t = Concat<axis=0>(h, k2, rest)"
NET = f"g (float[4,6] x) => (float[A,B,C] y) <{NUMBERS}> {{ {SIZES} r = Reshape(x, t) y = Relu(r) }}"


def ops(model: onnx.ModelProto) -> list[str]:
    view = GraphView(model.graph)
    return [node.op_type for node in with_known_numbers(view.every, view, ())]


def test_what_computes_sizes_is_one_constant() -> None:
    assert ops(model_of(NET)) == ["Constant", "Reshape", "Relu"]


def test_tensors_keep_their_values() -> None:
    model = model_of(NET)
    given = {"x": np.arange(24, dtype=np.float32).reshape(4, 6)}
    found = dict(OrtActivations(Model(model), ["r", "y"]).run(given))
    np.testing.assert_array_equal(found["r"], given["x"].reshape(2, 2, 6))
    assert [node.op_type for node in ObservableModel(Model(model)).stripped[0].graph.node].count("Shape") == 0


@pytest.mark.parametrize(
    "text",
    [
        NET.replace("float[4,6] x", "float[N,6] x"),
        NET.replace("=> (float[A,B,C] y)", "=> (float[A,B,C] y, float[4,6] x2)").replace("s = Shape(x)", "x2 = Neg(x) s = Shape(x2)"),
    ],
    ids=["of a free axis", "of a tensor that is declared"],
)  # fmt: skip
def test_a_size_that_a_run_may_have_otherwise_is_computed(text: str) -> None:
    assert "Shape" in ops(model_of(text))


def test_a_declared_shape_of_a_tensor_between_nodes_is_not_trusted() -> None:
    model = model_of(NET)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [2, 2, 6]))
    assert "Shape" in ops(model)


def test_a_number_that_is_asked_for_stays() -> None:
    view = GraphView(model_of(NET).graph)
    kept = with_known_numbers(view.every, view, ("h",))
    assert [node.output[0] for node in kept if node.op_type == "Constant"] == ["h", "t"]
