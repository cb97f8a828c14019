# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which axes hold the rows that a TopK picked: 3 of 6 tokens of 4 values."""

from __future__ import annotations

import pytest

from qdqtool.graph.shapes import followed_shapes
from qdqtool.simulation.row_axes import RowAxes
from tests.graphs import view_of

# `b` holds the picked tokens, [1,3,4]; `v` their scores and `i` their places, [1,3].
PICK = "s = ReduceMax<axes=[-1], keepdims=0>(x) v, i = TopK<axis=1>(s, three) u = Unsqueeze(i, last) e = Expand(u, shape) b = GatherElements<axis=1>(x, e)"
CONSTANTS = """int64[1] three = {3}, int64[1] last = {2}, int64[1] first = {1}, int64[3] shape = {1,3,4}, float[4,4] w, float[4] g, float[3,1] own, float[6,4] table, int64[4] heads = {1,3,2,2},
    int64[2] flat = {3,4}, int64[3] merged = {1,2,6}, int64[4] wide = {2,1,3,4}, int64[2] halves = {2,2}, int64[1] k0 = {0}, int64[1] k2 = {2}, int64 one = {1}, float[1,2,5,5] image, float[1,3,1] gain"""

# What is computed of the rows -> their axes, by hand; None where they are lost.
FOLLOWED = {
    "Relu(b)": {1},
    "Add(b, g)": {1},
    "Add(g, b)": {1},
    "Add(b, b)": {1},
    "Add(b, own)": None,  # each row has a number of its own
    "Add(v, v)": {1},
    "Softmax(b)": {1},
    "Softmax<axis=1>(b)": {1},  # over the rows, whichever order they have
    "LayerNormalization(b, g)": {1},
    "LayerNormalization<axis=1>(b, gain)": None,
    "MatMul(b, w)": {1},
    "MatMul(x, bt)": {2},  # tokens by rows
    "MatMul(b, bt)": {1, 2},
    "MatMul(bt, b)": set(),  # a sum over all rows
    "MatMul(bt, own)": None,  # a sum with weights of their own
    "Transpose<perm=[1,0,2]>(b)": {0},
    "Reshape(b, heads)": {1},
    "Reshape(b, flat)": {0},
    "Reshape(b, merged)": None,
    "Unsqueeze(b, k0)": {2},
    "Expand(b, wide)": {2},
    "Gather<axis=2>(b, one)": {1},
    "Gather<axis=1>(b, one)": None,  # one of the rows
    "Gather<axis=0>(table, i)": {1},
    "GatherElements<axis=2>(b, e)": None,  # places among values of the rows
    "Concat<axis=2>(b, b)": {1},
    "Concat<axis=1>(b, b)": None,
    "Concat<axis=2>(b, c3)": None,
    "Slice(b, k0, first, last)": {1},
    "Slice(b, k0, k2, first)": None,  # a row is left out
    "ReduceSum(b, last)": {1},
    "ReduceSum<keepdims=0>(b, last)": {1},
    "ReduceSum<keepdims=0>(b, k0)": {0},
    "ReduceSum(b, first)": set(),
    "ReduceMean(b)": set(),
    "CumSum(b, one)": None,
    "TopK(b, three)": None,
    "GridSample(image, places)": {2},
}  # fmt: skip


def found(call: str) -> set[int] | None:
    body = f"{PICK} bt = Transpose<perm=[0,2,1]>(b) c3 = Slice(x, k0, three, first) r = Reshape(b, heads) places = Slice(r, k0, k2, k3)"
    names = "t, t2" if call.startswith("TopK") else "t"
    text = f"g (float[1,6,4] x) => (float[N] y) <{CONSTANTS}, int64[1] k3 = {{3}}> {{ {body} {names} = {call} y = Relu(t) }}"
    view = view_of(text)
    shapes = {name: shape for name, shape in followed_shapes(view).items() if None not in shape}
    pick = next(node for node in view.nodes if "v" in node.outputs)
    rows = RowAxes(view, pick, 3, shapes)  # type: ignore[arg-type]
    assert not rows.lost & rows.axes.keys()
    return None if "t" in rows.lost else set(rows.of("t"))


@pytest.mark.parametrize("call", FOLLOWED)
def test_an_operator_keeps_rows_or_loses_them(call: str) -> None:
    assert found(call) == FOLLOWED[call]


def test_what_does_not_read_the_rows_has_none_and_has_lost_none() -> None:
    assert found("Relu(x)") == set()


def test_a_size_that_is_read_of_the_rows_is_not_of_them() -> None:
    view = view_of(f"g (float[1,6,4] x) => (float[N] y) <{CONSTANTS}> {{ {PICK} n = Shape(b) y = ConstantOfShape(n) }}")
    pick = next(node for node in view.nodes if node.op == "TopK")
    shapes = {name: shape for name, shape in followed_shapes(view).items() if None not in shape}
    rows = RowAxes(view, pick, 3, {**shapes, "y": (1, 3, 4)})  # type: ignore[arg-type]
    assert rows.of("b") and not rows.of("n") and not rows.of("y") and not rows.lost
