# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Order of nodes, what outputs need, and what is taken away when nobody needs it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.order import (
    connected,
    dependency_order,
    key_on_cycle,
    needed,
    reads_of,
    remove_dead,
    remove_unread_initializers,
    topological,
    topological_protos,
    wrapped,
)
from tests.graphs import model_of, shuffled

TEXT = "net (float[2] x, float[2] unread) => (float[2] y) <float[2] w, float[2] lost> { a = Add(x, w) b = Mul(x, lost) c = Relu(a) y = Neg(c) }"
BODY = "net (float[2] x, bool p) => (float[2] y) <float[2] w, float[2] lost> { a = Add(x, w) b = Abs(x) y = If(p)<then_branch = t () => (float[2] u) { u = Relu(a) }, else_branch = e () => (float[2] v) { v = Relu(x) }> }"


def made(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    return [node.output[0] for node in nodes]


def test_an_order_that_holds_is_kept() -> None:
    nodes = wrapped(model_of(TEXT).graph.node)
    assert topological(nodes) is nodes
    assert [node.index for node in nodes] == [0, 1, 2, 3]


@pytest.mark.parametrize("text", [TEXT, BODY])
@pytest.mark.parametrize("seed", range(5))
def test_each_node_comes_behind_those_that_it_reads_from(text: str, seed: int) -> None:
    model = shuffled(model_of(text), seed)
    there = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    for node in topological_protos(model.graph.node):
        assert there.issuperset(reads_of(node))
        there.update(node.output)
    assert there >= {"a", "b", "y"}


def test_nodes_that_are_ready_keep_their_order() -> None:
    nodes = list(model_of(TEXT).graph.node)
    assert made(topological_protos([nodes[i] for i in (3, 1, 2, 0)])) == ["b", "a", "c", "y"]


@pytest.mark.parametrize(
    "text",
    [
        "net (float[2] x) => (float[2] y) { a = Relu(x) y = Add(b, a) b = Neg(y) }",
        "net (bool p) => (float[2] y) { y = If(p)<then_branch = t () => (float[2] u) { u = Relu(b) }, else_branch = e () => (float[2] v) { v = Relu(b) }> b = Neg(y) }",
    ],
)
def test_a_cycle_is_refused_by_a_node(text: str) -> None:
    with pytest.raises(QdqError, match=r"y: .*cycle"):
        topological_protos(model_of(text).graph.node)


def test_keys_come_behind_what_they_need_and_first_come_first() -> None:
    assert dependency_order({"d": ["b"], "c": [], "b": ["a", "a"], "a": []}) == ["c", "a", "b", "d"]


def test_what_is_behind_a_cycle_is_left_out_but_not_on_it() -> None:
    needs = {"behind": ["one"], "one": ["two"], "two": ["one"], "free": []}
    assert dependency_order(needs) == ["free"]
    assert key_on_cycle(needs) in ("one", "two")
    assert key_on_cycle({"itself": ["itself"]}) == "itself"
    assert key_on_cycle({"a": [], "b": ["a"]}) is None


def test_bodies_read_what_is_around_them() -> None:
    nodes = model_of(BODY).graph.node
    assert [reads_of(node) for node in nodes] == [["x", "w"], ["x"], ["p", "a", "x"]]


def test_needed_nodes_and_names() -> None:
    nodes = wrapped(model_of(TEXT).graph.node)
    kept, names = needed(nodes, ["c", "elsewhere"])
    assert [node.key for node in kept] == ["a", "c"]
    assert names == {"c", "a", "x", "w", "elsewhere"}


def test_what_leads_nowhere_is_removed() -> None:
    model = model_of(TEXT)
    remove_dead(model.graph)
    assert made(model.graph.node) == ["a", "c", "y"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    assert [value.name for value in model.graph.input] == ["x"]


def test_other_outputs_can_be_asked_for() -> None:
    model = model_of(TEXT)
    remove_dead(model.graph, ["b"])
    assert made(model.graph.node) == ["b"]
    assert [tensor.name for tensor in model.graph.initializer] == ["lost"]


def test_what_a_body_reads_is_kept() -> None:
    model = model_of(BODY)
    remove_dead(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Add", "If"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]


def test_initializers_that_nobody_reads_are_removed_alone() -> None:
    model = model_of(TEXT)
    model.graph.node[1].input[1] = "x"
    remove_unread_initializers(model.graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    assert made(model.graph.node) == ["a", "b", "c", "y"] and len(model.graph.input) == 2


def test_an_initializer_that_is_an_output_or_read_in_a_body_stays() -> None:
    model = model_of(BODY.replace("Relu(a)", "Add(a, lost)"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    model.graph.node[0].input[1] = "x"
    remove_unread_initializers(model.graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "lost"]


def test_links_join_keys_into_parts_in_the_order_of_their_first_keys() -> None:
    assert connected("abcdef", ["fb", "e", "", "dc", "bd"]) == [["a"], ["b", "c", "d", "f"], ["e"]]
