# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Readers without a tie get initializers of their own; tied ones stay one parameter."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.graph.io import serialize
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.training_graph import make_form
from tests.graphs import model_of

NORMS = """net (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}, float[3] v, float[3,3,1,1] w>
{ c = Conv(x, w) i = Identity(one) a = BatchNormalization(c, one, zero, zero, one) r = Relu(a)
  b = BatchNormalization(r, i, zero, zero, one) y = Relu(b) }"""
SHARED = """net (float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3,3,1,1] w, float[3] b>
{ c = Conv(x, w, b) r = Relu(c) y = Conv(r, w, b) }"""
FEED = {"x": np.random.default_rng(2).standard_normal((2, 3, 4, 4)).astype(np.float32)}


def values_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_equal_constants_of_readers_without_a_tie_are_apart() -> None:
    model = model_of(NORMS)
    form = make_form(Model(model))
    assert form.weights == ("w", "one_of_a", "zero_of_a", "one_of_b", "zero_of_b")
    assert serialize(form.write(form.initial()).proto) == serialize(model)
    values = {"one_of_b": np.array([2, 3, 4], np.float32), "zero_of_a": np.array([0.5, 0, 0], np.float32)}
    written = form.write(values).proto
    after = values_of(written)
    assert after["one"].tolist() == [1, 1, 1] and after["zero"].tolist() == [0, 0, 0]  # mean and var keep them
    nodes = {node.output[0]: node for node in written.graph.node}
    assert list(nodes["a"].input) == ["c", "one", "zero_of_a", "zero", "one"]
    assert list(nodes["b"].input) == ["r", "one_of_b", "zero", "zero", "one"]
    assert after["one_of_b"].tolist() == [2, 3, 4]
    trained = onnx.ModelProto()
    trained.CopyFrom(form.proto)
    for tensor in trained.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    assert Executor(Model(written)).run(FEED)["y"].tobytes() == Executor(Model(trained)).run(FEED)["y"].tobytes()


def test_a_weight_that_several_operators_read_is_one_parameter() -> None:
    model = model_of(SHARED)
    form = make_form(Model(model))
    assert form.weights == ("w", "b")
    written = form.write({"w": form.initial()["w"] * 2}).proto
    assert [n.SerializeToString() for n in written.graph.node] == [n.SerializeToString() for n in model.graph.node]


def test_a_bias_of_zeros_is_no_tie() -> None:
    model = model_of(SHARED.replace("float[3] b", "float[3] b = {0, 0, 0}"))
    form = make_form(Model(model))
    assert form.weights == ("w", "b", "b_of_y")
    assert values_of(form.write({"b": np.ones(3, np.float32)}).proto)["b"].tolist() == [1, 1, 1]
    written = form.write({"b_of_y": np.ones(3, np.float32)}).proto
    assert values_of(written)["b"].tolist() == [0, 0, 0] and list(written.graph.node[2].input) == ["r", "w", "b_of_y"]


def test_what_is_frozen_for_one_reader_is_apart_for_the_other() -> None:
    form = make_form(Model(model_of(SHARED)), freeze=["^y$"])
    assert form.weights == ("w_of_c", "b_of_c")


def test_a_table_that_is_also_looked_up_in_stays_for_that() -> None:
    model = model_of(
        "net (float[2,3] x, int64[2] i) => (float[2,3] y) <float[3,3] w> { a = MatMul(x, w) e = Gather(w, i) y = Add(a, e) }"
    )
    form = make_form(Model(model))
    assert form.weights == ("w_of_a",)
    written = form.write({"w_of_a": np.zeros((3, 3), np.float32)}).proto
    assert list(written.graph.node[0].input) == ["x", "w_of_a"] and list(written.graph.node[1].input) == ["w", "i"]


def test_weights_inside_local_functions_are_not_trained() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> net (float[2,3] x) => (float[2,3] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}>
        { a = own.Layer(x, w) y = Relu(a) }
        <domain: "own", opset_import: ["" : 17]> Layer (a, w) => (b) { k = Constant<value_floats=[1.0, 2.0, 3.0]>() m = MatMul(a, w) b = Add(m, k) }"""
    )
    form = make_form(Model(model))
    assert form.weights == ("w",)
    assert any("local function" in note for note in form.notes)
    assert values_of(form.write({"w": np.zeros((3, 3), np.float32)}).proto)["w"].sum() == 0
