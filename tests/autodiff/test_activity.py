# SPDX-License-Identifier: Apache-2.0
"""Where gradients flow: after a parameter, before the loss, and not through steps."""

from __future__ import annotations

import pytest

from qdqtool.autodiff.activity import find_activity
from tests.graphs import model_of

CASES = [  # nodes, what a gradient is needed of, nodes it passes
    ("a = Mul(x, p) loss = ReduceSum(a)", "p a loss", "Mul ReduceSum"),
    ("f = Exp(x) a = Mul(f, p) loss = ReduceSum(a)", "p a loss", "Mul ReduceSum"),
    ("a = Mul(x, p) u = Exp(p) loss = ReduceSum(a)", "p a loss", "Mul ReduceSum"),
    ("r = Round(p) a = Mul(r, p) loss = ReduceSum(a)", "p a loss", "Mul ReduceSum"),
    ("i = ArgMax(p) c = Cast<to=1>(i) a = Add(c, x) loss = ReduceSum(a)", "", ""),
    ("i = Cast<to=7>(p) a = Cast<to=1>(i) loss = ReduceSum(a)", "p", "Cast"),
    ("a = own.Round(p) loss = ReduceSum(a)", "p a loss", "Round ReduceSum"),
]


@pytest.mark.parametrize(("nodes", "tensors", "passed"), CASES, ids=[nodes for nodes, *_ in CASES])
def test_where_gradients_flow(nodes: str, tensors: str, passed: str) -> None:
    graph = model_of(f"g (float[2] x) => (float loss) <float[2] p> {{ {nodes} }}").graph
    activity = find_activity(graph.node, ["p"], "loss", lambda name: name != "i")
    names = ["x", "p", *(name for node in graph.node for name in node.output)]
    assert [name for name in names if activity.has(name)] == tensors.split()
    assert [node.op_type for node in graph.node if activity.passes(node)] == passed.split()
