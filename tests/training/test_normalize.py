# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A training copy is flat and plain, computes the same, and leaves the original alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.runtime.executor import Executor
from qdqtool.training.normalize import training_copy
from tests.graphs import model_of

X = {"x": np.arange(-4, 4, dtype=np.float32).reshape(2, 4)}


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_same(model: onnx.ModelProto, copy: onnx.ModelProto) -> None:
    assert Executor(Model(copy)).run(X)["y"].tobytes() == Executor(Model(model)).run(X)["y"].tobytes()


def test_constants_identities_and_dropout_go() -> None:
    model = model_of(
        """net (float[2,4] x) => (float[2,4] y)
        { c = Constant<value_floats=[1.0,2.0,3.0,4.0]>() i = Identity(c) d = Dropout(x) e = Identity(d) y = Mul(e, i) }"""
    )
    before = model.SerializeToString(deterministic=True)
    copy = training_copy(Model(model))
    assert ops_of(copy) == ["Mul"] and list(copy.graph.node[0].input) == ["x", "c"]
    assert [tensor.name for tensor in copy.graph.initializer] == ["c"]
    assert model.SerializeToString(deterministic=True) == before
    assert copy.ir_version == 10
    assert_same(model, copy)


def test_what_makes_an_output_stays() -> None:
    model = model_of(
        "net (float[2,4] x) => (float[2,4] y, float[2,4] z) { a = Relu(x) y = Identity(a) z = Dropout(a) }"
    )
    assert ops_of(training_copy(Model(model))) == ["Relu", "Identity", "Identity"]


@pytest.mark.parametrize("how", ["training", "mask"])
def test_a_dropout_that_does_something_stays(how: str) -> None:
    text = {
        "training": "net (float[2,4] x) => (float[2,4] y) <float r = {0.5}, bool t = {1}> { a = Dropout(x, r, t) y = Relu(a) }",
        "mask": "net (float[2,4] x) => (float[2,4] y) { a, m = Dropout(x) n = Not(m) y = Where(n, x, a) }",
    }[how]
    assert "Dropout" in ops_of(training_copy(Model(model_of(text))))


def test_nodes_come_in_order() -> None:
    model = model_of("net (float[2,4] x) => (float[2,4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert ops_of(training_copy(Model(model))) == ["Relu", "Neg", "Abs"]


def test_local_functions_are_put_in_place() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> net (float[2,4] x) => (float[2,4] y) { a = own.Twice(x) y = Relu(a) }
        <domain: "own", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }"""
    )
    copy = training_copy(Model(model))
    assert ops_of(copy) == ["Add", "Relu"] and not copy.functions
    assert_same(model, copy)


@pytest.mark.parametrize(("opset", "expected"), [(11, 13), (13, 13), (17, 17), (21, 21), (22, 21)])
def test_opsets_end_between_13_and_21(opset: int, expected: int) -> None:
    model = model_of(
        "net (float[2,4] x) => (float[2,4] y) { a = Relu(x) y = Softmax<axis=-1>(a) }", opset, 10 if opset > 20 else 7
    )
    copy = training_copy(Model(model))
    assert opset_of(copy) == expected
    assert_same(model, copy)


@pytest.mark.parametrize(
    "node", ["y = RMSNormalization(x, w)", "q = QuantizeLinear<precision=1>(x, s, z) y = DequantizeLinear(q, s, z)"]
)
def test_what_opset_21_lacks_is_refused(node: str) -> None:
    model = model_of(
        f"net (float[2,4] x) => (float[2,4] y) <float[4] w, float s = {{0.5}}, int8 z = {{0}}> {{ {node} }}", 23, 10
    )
    with pytest.raises(QdqError, match=r"opset 23 .*opset 21"):
        training_copy(Model(model))


def test_integers_that_are_moved_get_pairs_around() -> None:
    model = model_of(
        """net (float[2,4] x) => (float[4,2] y) <float s = {0.1}, int8 z = {0}>
        { q = QuantizeLinear(x, s, z) t = Transpose(q) y = DequantizeLinear(t, s, z) }"""
    )
    copy = training_copy(Model(model))
    assert ops_of(copy) == ["QuantizeLinear", "DequantizeLinear", "Transpose", "QuantizeLinear", "DequantizeLinear"]
    assert_same(model, copy)


def test_weights_are_no_inputs() -> None:
    model = model_of("net (float[2,4] x) => (float[2,4] y) <float[4] w> { y = Mul(x, w) }", ir=3)
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))
    assert [value.name for value in training_copy(Model(model)).graph.input] == ["x"]
