# SPDX-License-Identifier: Apache-2.0
"""Points: outputs of groups that both sides have, at most so many, heads and outputs always."""

from __future__ import annotations

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.training.losses.points import choose_points
from tests.graphs import model_of

ROWS = 6
TEXT = (
    "net (float[1,4,8,8] x) => (float[1,4,8,8] y, int64[1,1,8,8] best) <"
    + ", ".join(f"float[4,4,3,3] w{i}" for i in range(ROWS))
    + "> { r0 = Identity(x) "
    + " ".join(f"c{i} = Conv<pads=[1,1,1,1]>(r{i}, w{i}) r{i + 1} = Relu(c{i})" for i in range(ROWS - 1))
    + f" y = Conv<pads=[1,1,1,1]>(r{ROWS - 1}, w{ROWS - 1}) best = ArgMax<axis=1>(y) }}"
)


def points(*, most: int = 48, missing: tuple[str, ...] = ()) -> tuple[str, ...]:
    model = model_of(TEXT)
    known = {name for node in model.graph.node for name in node.output} - set(missing)
    return choose_points(GraphView(model.graph), model, known, most)


def test_ends_of_groups_and_float_outputs_in_graph_order() -> None:
    assert points() == ("r1", "r2", "r3", "r4", "r5", "y")


@pytest.mark.parametrize(("most", "chosen"), [(5, "r1 r2 r3 r4 r5"), (3, "r1 r3 r5"), (2, "r2 r5"), (1, "r5"), (0, "")])
def test_at_most_so_many_evenly_and_heads_beside_them(most: int, chosen: str) -> None:
    assert points(most=most) == (*chosen.split(), "y")


def test_what_the_teacher_lacks_is_left_out() -> None:
    assert points(missing=("r2", "y")) == ("r1", "r3", "r4", "r5")
    assert points(missing=(*(f"r{i}" for i in range(6)), "y")) == ()


def test_what_the_form_lacks_is_left_out() -> None:
    model, form = model_of(TEXT), model_of(TEXT)
    for node in form.graph.node:
        node.output[:] = ["renamed" if name == "r3" else name for name in node.output]
        node.input[:] = ["renamed" if name == "r3" else name for name in node.input]
    names = {name for node in model.graph.node for name in node.output}
    assert choose_points(GraphView(model.graph), form, names) == ("r1", "r2", "r4", "r5", "y")


def test_pairs_are_seen_through() -> None:
    model = model_of(
        """net (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float s = {0.1}, int8 z = {0}, float[4,4,3,3] w0, float[4,4,3,3] w1>
        {
         xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
         vq = QuantizeLinear(w0, s, z) v = DequantizeLinear(vq, s, z)
         c = Conv<pads=[1,1,1,1]>(xd, v) r = Relu(c)
         rq = QuantizeLinear(r, s, z) rd = DequantizeLinear(rq, s, z)
         y = Conv<pads=[1,1,1,1]>(rd, w1)
        }"""
    )
    assert choose_points(
        GraphView(model.graph), model, {name for node in model.graph.node for name in node.output}
    ) == ("r", "y")
