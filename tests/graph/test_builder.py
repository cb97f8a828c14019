# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Names, constants and nodes that are added to a graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from qdqtool.graph.builder import GraphBuilder, names_in, tensor_of
from tests.graphs import model_of

TEXT = "net (float[2] x, float[2] unread) => (float[2] y) <float[2] w, float[2] lost> { a = Add(x, w) b = Mul(x, lost) c = Relu(a) y = Neg(c) }"


def test_names_are_taken_once() -> None:
    draft = GraphBuilder(model_of(TEXT))
    assert [draft.unique(name) for name in ("a", "a", "new", "new")] == ["a_1", "a_2", "new", "new_1"]


def test_equal_constants_are_one() -> None:
    draft = GraphBuilder(model_of(TEXT))
    one, two = np.ones(2, np.float32), np.ones((1, 2), np.float32)
    names = [
        draft.constant("k", one),
        draft.constant("k", one.copy()),
        draft.constant("k", two),
        draft.constant("k", one.astype(np.int32)),
    ]
    assert names == ["k", "k", "k_1", "k_2"]
    assert draft.constant("n", np.zeros((), np.int8)) == "n" and list(draft.proto.graph.initializer[-1].dims) == []


def test_chains_of_names_are_followed() -> None:
    draft = GraphBuilder(model_of(TEXT))
    draft.rename_reads({"a": "b", "b": "x"})
    assert draft.proto.graph.node[2].input[0] == "x"


def test_names_of_nodes_and_of_bodies_are_taken_too() -> None:
    text = "net (float[2] x, bool p) => (float[2] y) <float[2] w> { [neg] a = Neg(x) y = If(p)<then_branch = t () => (float[2] u) { v = Add(a, w) u = Relu(v) }, else_branch = e () => (float[2] o) { o = Relu(x) }> }"
    assert names_in(model_of(text).graph) >= {"x", "p", "y", "w", "neg", "a", "u", "v", "o"}


def test_appended_nodes_are_named_after_their_output() -> None:
    builder = GraphBuilder(model_of(TEXT))
    names = [builder.append("Neg", ["x"], "k"), builder.append("Cast", ["x"], "k", to=7)]
    assert names == ["k", "k_1"]
    last = builder.proto.graph.node[-1]
    assert (last.op_type, last.name, last.output[0], last.attribute[0].i) == ("Cast", "k_1", "k_1", 7)


def test_another_node_list_is_put_in_order() -> None:
    builder = GraphBuilder(model_of(TEXT))
    builder.set_nodes(reversed(list(builder.proto.graph.node)))
    assert [node.output[0] for node in builder.proto.graph.node] == ["b", "a", "c", "y"]


@pytest.mark.parametrize("value", [np.float32(2), np.arange(6.0).reshape(2, 3).T, np.zeros((2, 0), np.int8)])
def test_a_tensor_has_the_type_and_shape_of_its_array(value: np.ndarray) -> None:
    tensor = tensor_of(value, "t")
    assert tensor.name == "t"
    found = numpy_helper.to_array(tensor)
    assert found.dtype == value.dtype and found.shape == value.shape and np.array_equal(found, value)
