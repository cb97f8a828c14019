# SPDX-License-Identifier: Apache-2.0
"""Groups of operators: heads, levels, resolutions and runs of blocks, each set once and in one order."""

from __future__ import annotations

from qdqtool.graph.heads import find_heads
from qdqtool.graph.view import GraphView
from qdqtool.measuring.operator_groups import blocks_of, operator_groups
from qdqtool.rulebook import load_rules
from tests.collapsing_nets import headed_net, residual_net
from tests.graphs import model_of, shuffled

# Two levels: what leads to y8 alone is fine, what leads to y16 alone is coarse, a leads to both.
PYRAMID = """g (float[N,4,16,16] x) => (float[N,4,16,16] y8, float[N,4,8,8] y16)
  <float[4,4,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float[4,4,1,1] w4> {
  a = Conv(x, w0) f = Conv(a, w1) y8 = Conv(f, w2) c = Conv<strides=[2,2]>(a, w3) y16 = Conv(c, w4) }"""
GRIDS = {"a": (16, 16), "f": (16, 16), "y8": (16, 16), "c": (8, 8), "y16": (8, 8)}


def groups_of(view: GraphView, operators: list[str], grids: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, ...]]:
    heads = find_heads(view, load_rules("gpu", None, None).heads)
    return {one.label: one.nodes for one in operator_groups(view, heads, operators, grids)}


def test_heads_levels_and_resolutions() -> None:
    found = groups_of(GraphView(model_of(PYRAMID).graph), list(GRIDS), GRIDS)
    assert found["all 2 heads"] == ("y16", "y8")
    assert found["the 2 operators of the level 16x16"] == ("f", "y8")
    assert found["the 2 operators of the level 8x8"] == ("c", "y16")
    assert found["all 3 operators with outputs of 16x16"] == ("a", "f", "y8")
    assert "all 2 operators with outputs of 8x8" not in found  # the level again


def test_no_group_of_one_none_of_all_and_no_head_that_is_float_already() -> None:
    view = GraphView(model_of(PYRAMID).graph)
    found = groups_of(view, ["a", "f", "c", "y16"], GRIDS)
    assert not [label for label in found if "heads" in label or "level 16x16" in label]
    assert all(1 < len(nodes) < 4 for nodes in found.values())
    assert len({frozenset(nodes) for nodes in found.values()}) == len(found)


def test_blocks_end_at_residual_sums() -> None:
    view = GraphView(residual_net(3).graph)
    operators = ["s0", "t1", "a1", "c1", "a2", "c2", "a3", "c3", "y"]
    blocks = blocks_of(view, operators)
    assert blocks.blocks == (("s0", "t1", "a1", "c1"), ("a2", "c2"), ("a3", "c3"), ("y",))
    assert blocks.last(2).nodes == ("a3", "c3", "y")
    assert blocks.last(2).label == "the last 2 of 4 residual blocks (from a3 on)"
    assert blocks.first(1).label == "the first of 4 residual blocks (up to c1)"


def test_without_residual_sums_each_operator_is_a_block() -> None:
    blocks = blocks_of(GraphView(headed_net(2).graph), ["y1", "t0", "a0", "y0"])
    assert blocks.blocks == (("a0",), ("t0",), ("y0",), ("y1",)) and blocks.unit == "operators"


def test_the_order_of_the_nodes_changes_nothing() -> None:
    model = residual_net(3)
    operators = ["y", "s0", "t1", "a1", "c1", "a2", "c2", "a3", "c3"]
    grids = dict.fromkeys(operators, (12, 12))
    one, other = (groups_of(GraphView(m.graph), operators, grids) for m in (model, shuffled(model, 3)))
    assert list(one.items()) == list(other.items())
