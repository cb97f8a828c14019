# SPDX-License-Identifier: Apache-2.0
"""Where a shared scale may be split: at what a shuffle passes on, and nowhere else; and what a cut does to a plan."""

from __future__ import annotations

import pytest

from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, explain
from qdqtool.match.planner import make_plan
from qdqtool.match.requantize_points import possible_requantize_points
from qdqtool.rulebook import load_rules
from tests.graphs import model_of, points_of, readers_of, view_of

# Two blocks of a shuffle network: each passes half of its channels on and works on the other half.
SHUFFLE = """g (float[N,4,8,8] x) => (float[N,8,8,8] y)
  <float[4,4,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float[8,8,1,1] w4, int64[2] halves> {
  a = Conv(x, w0) b = Conv(x, w1) c = Concat<axis=1>(a, b)
  p, q = Split<axis=1>(c, halves) d = Conv(q, w2) e = Concat<axis=1>(p, d) y = Conv(e, w4) }"""


def cuts_of(text: str) -> list[str]:
    return possible_requantize_points(view_of(text), load_rules("gpu"))


def plan_with(text: str, **more: object) -> Plan:
    return make_plan(GraphView(model_of(text).graph), PlanOptions(float_heads="none"), **more)  # type: ignore[arg-type]


def test_what_a_shuffle_passes_on_may_be_cut() -> None:
    assert cuts_of(SHUFFLE) == ["p"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = Conv(e, w4)", "y = Conv(e, w4) z = Conv(p, w3)"),  # an INT8 operator reads it too
        ("e = Concat<axis=1>(p, d)", "r = Relu(p) e = Concat<axis=1>(r, d)"),  # its values are changed on the way
        ("p, q = Split<axis=1>(c, halves)", "p = Relu(a) q = Relu(b)"),  # a group makes it: it has a point anyway
    ],
)
def test_elsewhere_there_is_nothing_to_cut(old: str, new: str) -> None:
    assert cuts_of(SHUFFLE.replace(old, new)) == []


def test_an_output_of_the_model_is_not_cut() -> None:
    assert cuts_of(SHUFFLE.replace("float[N,8,8,8] y)", "float[N,8,8,8] y, float[N,4,8,8] p)")) == []


def test_a_concat_of_a_concat_is_not_cut() -> None:
    text = SHUFFLE.replace("p, q = Split<axis=1>(c, halves)", "q = Relu(b)").replace("(p, d)", "(c, d)")
    assert cuts_of(text.replace("w4, int64[2] halves", "w4").replace("float[8,8,1,1]", "float[8,12,1,1]")) == []


def test_without_a_cut_both_blocks_share_one_scale() -> None:
    plan = plan_with(SHUFFLE)
    assert {point.tensor for point in plan.activations} == {"x", "a", "b", "d"}
    assert plan.shared_scales()["a"] == ["a", "b", "d"]


def test_a_cut_tensor_has_a_pair_and_a_scale_shared_with_what_it_is_joined_with() -> None:
    plan = plan_with(SHUFFLE, decisions=Decisions(("p",)))
    assert plan.shared_scales()["a"] == ["a", "b"] and sorted(plan.shared_scales()["p"]) == ["d", "p"]
    assert readers_of(plan, "p") == {("e", 0)} and readers_of(plan, "a") == {("c", 0)}


def test_a_cut_that_the_graph_lacks_changes_nothing() -> None:
    assert plan_with(SHUFFLE, decisions=Decisions(("nowhere",))).points == plan_with(SHUFFLE).points
    assert points_of(SHUFFLE) == {"x", "a", "b", "d"}


def test_a_kept_operator_is_float_and_says_why() -> None:
    plan = plan_with(SHUFFLE, decisions=Decisions(float_layers={"d": "it costs too much"}))
    assert "d" in plan.float_nodes and not any(read.node == "d" for p in plan.weights for read in p.reads)
    refusal = next(one for one in plan.refusals if one.site == "d")
    assert (refusal.rule, refusal.reason) == ("keep-float", "it costs too much")
    assert any(
        line.startswith("d: ") and line.endswith(f"rule keep-float: {refusal.reason}") for line in explain(plan, "d")
    )


def test_a_kept_operator_comes_on_top_of_float_heads() -> None:
    view = GraphView(model_of(SHUFFLE).graph)
    plan = make_plan(view, PlanOptions(float_heads="all"), decisions=Decisions(float_layers={"d": "why"}))
    assert set(plan.float_nodes) == {"d", "y"}
    assert {one.rule for one in plan.refusals} == {"float-head", "keep-float"}
