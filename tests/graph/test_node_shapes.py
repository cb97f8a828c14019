# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Shapes that are followed node by node: one walk passes any number of Reshapes whose targets are computed."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.graph import shapes
from qdqtool.graph.node_shapes import shape_of
from qdqtool.graph.shapes import followed_shapes, known_shapes
from tests.graphs import view_of

# What an exporter writes for `x.view(x.size(0), 4, -1)`, sizes divided on the way.
SPLIT = "s{0} = Shape({1}) n{0} = Gather<axis=0>(s{0}, k0) h{0} = Div(n{0}, k2) f{0} = Cast<to=1>(h{0}) i{0} = Cast<to=7>(f{0}) t{0} = Concat<axis=0>(i{0}, k2, rest) r{0} = Reshape({1}, t{0})"
NUMBERS = "int64[1] k0 = {0}, int64[1] k2 = {2}, int64[1] rest = {-1}"


def chain(count: int) -> str:
    steps = " ".join(SPLIT.format(at, "x" if at == 0 else f"r{at - 1}") for at in range(count))
    return f"g (float[64,6] x) => (float[A,B,C] y) <{NUMBERS}> {{ {steps} y = Relu(r{count - 1}) }}"


def test_a_chain_of_computed_targets_takes_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(
        shapes,
        "inferred",
        lambda model, **how: runs.append(1) or onnx.shape_inference.infer_shapes(model, data_prop=True).graph,
    )  # type: ignore[func-returns-value]
    found = known_shapes(view_of(chain(5)))
    assert found["r4"] == (2, 2, 96) and found["y"] == (2, 2, 96)
    assert len(runs) <= 2, "once over the graph, once over what the walk left"


BODY = "then_graph = t () => (float[A] then) { then = Identity(x) }, else_graph = e () => (float[B] other) { other = Neg(x) }"
LEFT = {
    "a body": f"g (bool c, float[4] x) => (float[A] y) {{ m = If<{BODY}>(c) y = Relu(m) }}",
    "an operator that ONNX lacks": "g (float[4] x) => (float[A] y) { m = trt.Plugin(x) y = Relu(m) }",
    "a free axis": f"g (float[N,6] x) => (float[A,B,C] y) <{NUMBERS}> {{ {SPLIT.format(0, 'x')} y = Relu(r0) }}",
    "a target that is not known": "g (float[4,6] x, int64[2] t) => (float[A,B] y) { m = Reshape(x, t) y = Relu(m) }",
}


def test_a_length_below_zero_is_not_known() -> None:
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, (-3, 0, 4, "N"))
    assert shape_of(kind) == (None, 0, 4, None)


@pytest.mark.parametrize("kind", LEFT)
def test_what_one_node_does_not_tell_is_left_to_inference_over_the_graph(kind: str) -> None:
    view = view_of(LEFT[kind])
    found = followed_shapes(view)
    assert None in found.get("y", (None,))
