# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Names, constants, node order and what is pruned of a training copy."""

from __future__ import annotations

import numpy as np

from qdqtool.training.draft import GraphDraft, ordered, prune
from tests.graphs import model_of, shuffled

TEXT = "net (float[2] x, float[2] unread) => (float[2] y) <float[2] w, float[2] lost> { a = Add(x, w) b = Mul(x, lost) c = Relu(a) y = Neg(c) }"


def test_names_are_taken_once() -> None:
    draft = GraphDraft(model_of(TEXT))
    assert [draft.unique(name) for name in ("a", "a", "new", "new")] == ["a_1", "a_2", "new", "new_1"]


def test_equal_constants_are_one() -> None:
    draft = GraphDraft(model_of(TEXT))
    one, two = np.ones(2, np.float32), np.ones((1, 2), np.float32)
    names = [
        draft.constant("k", one),
        draft.constant("k", one.copy()),
        draft.constant("k", two),
        draft.constant("k", one.astype(np.int32)),
    ]
    assert names == ["k", "k", "k_1", "k_2"]
    assert draft.constant("n", np.zeros((), np.int8)) == "n" and list(draft.proto.graph.initializer[-1].dims) == []


def test_order_is_kept_or_made() -> None:
    model = model_of(TEXT)
    nodes = list(model.graph.node)
    assert ordered(nodes) is nodes
    for seed in range(5):
        made = {"x", "w", "lost"}
        for node in ordered(list(shuffled(model, seed).graph.node)):
            assert made.issuperset(node.input)
            made.update(node.output)
        assert made >= {"y", "b"}


def test_chains_of_names_are_followed() -> None:
    draft = GraphDraft(model_of(TEXT))
    draft.rename_reads({"a": "b", "b": "x"})
    assert draft.proto.graph.node[2].input[0] == "x"


def test_what_leads_nowhere_is_pruned() -> None:
    model = model_of(TEXT)
    prune(model)
    assert [node.output[0] for node in model.graph.node] == ["a", "c", "y"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    assert [value.name for value in model.graph.input] == ["x"]


def test_what_a_body_reads_is_kept() -> None:
    model = model_of(
        "net (float[2] x, bool p) => (float[2] y) { a = Neg(x) b = Abs(x) y = If(p)<then_branch = t () => (float[2] u) { u = Relu(a) }, else_branch = e () => (float[2] v) { v = Relu(x) }> }"
    )
    prune(model)
    assert [node.op_type for node in model.graph.node] == ["Neg", "If"]
