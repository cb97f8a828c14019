# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Names and constants of a training copy."""

from __future__ import annotations

import numpy as np

from qdqtool.training.draft import GraphDraft
from tests.graphs import model_of

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


def test_chains_of_names_are_followed() -> None:
    draft = GraphDraft(model_of(TEXT))
    draft.rename_reads({"a": "b", "b": "x"})
    assert draft.proto.graph.node[2].input[0] == "x"
