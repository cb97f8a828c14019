# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A plan cut down to the tensors that have a scale, and one with a point on more of them."""

from __future__ import annotations

import pytest

from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.restrict_plan import add_points, restrict, share_scales
from qdqtool.scales import Scale
from tests.graphs import V8_6, plan_of, readers_of, view_of

W = "float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w8"
CHAIN = f"g (float[1,4,8,8] x) => (float[N] z) <{W}> {{ c = Conv(x, w1) r = Relu(c) z = Conv(r, w2) }}"
SHARED = f"g (float[1,4,8,8] x) => (float[N] z) <{W}> {{ c = Conv(x, w1) r = Relu(c) d = Conv(r, w1) e = Relu(d) z = Conv(e, w1) }}"
CONCAT = f"g (float[1,4,8,8] x) => (float[N] z) <{W}> {{ a = Conv(x, w1) b = Conv(x, w2) k = Concat<axis=1>(a, b) f = Identity(k) z = Conv(f, w8) }}"
HALF = f"g (float[1,4,8,8] x) => (float[N] z) <{W}, float[1,4,8,8] const> {{ a = Conv(x, w1) k = Concat<axis=1>(a, const) z = Conv(k, w8) }}"
POOL = f"g (float[1,4,8,8] x) => (float[N] z) <{W}> {{ c = Conv(x, w1) p = MaxPool<kernel_shape=[2,2]>(c) f = Identity(p) z = Conv(f, w2) }}"
RESIDUAL = f"g (float[1,4,8,8] x) => (float[N] z) <{W}> {{ c = Conv(x, w1) a = Add(c, x) r = Relu(a) z = Conv(r, w2) }}"


def cut(text: str, *available: str) -> Plan:
    view = view_of(text)
    return restrict(view, make_plan(view, PlanOptions(float_heads="none")), set(available))


def tensors(plan: Plan) -> tuple[set[str], set[str]]:
    return {p.tensor for p in plan.activations}, {p.tensor for p in plan.weights}


def starved(plan: Plan) -> list[str]:
    return [refusal.site for refusal in plan.refusals if refusal.rule == "no-scale"]


ALL = [CHAIN, SHARED, CONCAT, HALF, POOL, RESIDUAL]


@pytest.mark.parametrize("text", ALL, ids=["chain", "shared", "concat", "half", "pool", "residual"])
def test_with_every_scale_the_plan_is_what_it_was_but_for_ties(text: str) -> None:
    whole = plan_of(text)
    same = cut(text, *(point.tensor for point in whole.activations))
    assert [(p.tensor, p.reads, p.axis) for p in same.points] == [(p.tensor, p.reads, p.axis) for p in whole.points]
    assert same.refusals == whole.refusals


def test_an_activation_without_a_scale_goes_and_the_weight_behind_it() -> None:
    plan = cut(CHAIN, "x")
    assert tensors(plan) == ({"x"}, {"w1"})
    assert starved(plan) == ["r", "z"]
    assert "no scale" in {r.site: r.reason for r in plan.refusals}["z"]


def test_nothing_is_left_without_any_scale() -> None:
    assert cut(CHAIN).points == ()


def test_a_shared_weight_keeps_the_readers_that_are_fed() -> None:
    plan = cut(SHARED, "x", "e")
    assert tensors(plan) == ({"x", "e"}, {"w1"})
    assert readers_of(plan, "w1") == {("c", 1), ("z", 1)}
    assert starved(plan) == ["r", "d"]


def test_a_concat_needs_a_scale_on_every_branch() -> None:
    assert tensors(plan_of(CONCAT)) == ({"x", "a", "b"}, {"w1", "w2", "w8"})
    assert tensors(cut(CONCAT, "x", "a", "b"))[1] == {"w1", "w2", "w8"}
    half = cut(CONCAT, "x", "a")
    assert tensors(half) == ({"x", "a"}, {"w1", "w2"}), "z would mix INT8 with float"
    assert starved(half) == ["b", "z"]


def test_a_constant_branch_of_a_concat_needs_none() -> None:
    whole = plan_of(HALF)
    assert "w8" in tensors(whole)[1]
    assert tensors(cut(HALF, *(point.tensor for point in whole.activations)))[1] == tensors(whole)[1]


def test_the_point_is_found_across_what_commutes() -> None:
    (behind,) = {p.tensor for p in plan_of(POOL).activations} - {"x"}
    assert tensors(cut(POOL, "x", behind)) == ({"x", behind}, {"w1", "w2"})
    assert tensors(cut(POOL, "x")) == ({"x"}, {"w1"})


def test_points_that_the_plan_would_tie_keep_scales_of_their_own() -> None:
    whole = plan_of(CONCAT)
    assert sorted(map(len, whole.shared_scales().values())) == [1, 2]
    assert all(point.shared_scale == point.tensor for point in cut(CONCAT, "x", "a", "b").activations)


def test_the_plan_given_is_not_changed() -> None:
    view = view_of(CHAIN)
    plan = make_plan(view, PlanOptions(float_heads="none"))
    before = (plan.points, plan.refusals)
    restrict(view, plan, {"x"})
    assert (plan.points, plan.refusals) == before


# ---------------------------------------------------------------------- more points


def test_points_anywhere_are_read_by_every_node() -> None:
    text = f"g (float[1,4,8,8] x) => (float[N] z, float[N] r) <{W}> {{ c = Conv(x, w1) r = Relu(c) a = Add(r, r) z = Exp(a) }}"
    view = view_of(text)
    plan = make_plan(view, PlanOptions(trt_version=V8_6, float_heads="none"))
    more = add_points(view, plan, ["x", "c", "r", "z"])
    assert [p.tensor for p in more.points] == [*(p.tensor for p in plan.points), "c", "r"], (
        "x is there, z has no reader"
    )
    assert readers_of(more, "c") == {("r", 0)} and readers_of(more, "r") == {("a", 0), ("a", 1)}
    assert {p.rule for p in more.points if p.tensor in ("c", "r")} == {"everywhere"}


def test_the_shape_of_a_tensor_is_not_read_through_a_pair() -> None:
    view = view_of("g (float[1,4] x) => (float[N] z) { a = Abs(x) s = Shape(a) z = Reshape(x, s) }")
    plan = make_plan(view, PlanOptions(float_heads="none"))
    assert add_points(view, plan, ["a"]).points == plan.points, "nothing but its shape is read"
    assert readers_of(add_points(view, plan, ["x"]), "x") == {("a", 0), ("z", 0)}


# ---------------------------------------------------------------------------- tensors that hold nothing but zeros


def without(text: str, *dead: str) -> Plan:
    return make_plan(view_of(text), PlanOptions(float_heads="none"), all_zero=set(dead))


def test_a_dead_tensor_stays_in_float_with_what_reads_it() -> None:
    plan = without(SHARED, "r")
    assert tensors(plan) == ({"x", "e"}, {"w1"})
    assert {read.node for point in plan.weights for read in point.reads} == {"c", "z"}
    reasons = {one.site: one.reason for one in plan.refusals if one.rule == "no-scale"}
    assert reasons.keys() == {"r", "d"} and all("is all zero" in why for why in reasons.values())
    assert reasons["d"].startswith("reads r, ")


def test_one_that_shares_a_scale_keeps_its_point() -> None:
    whole, plan = without(CONCAT), without(CONCAT, "b")
    assert plan.points == whole.points and plan.shared_scales()["a"] == ["a", "b"]
    scales = share_scales(plan, {"x": Scale.of(0.5), "a": Scale.of(0.25)}, {"b"})
    assert scales["b"].same_bits(scales["a"]) and (scales["b"].origin, scales["b"].method) == ("equal", "as a")
    assert share_scales(plan, {"x": Scale.of(0.5)}, {"a", "b"}).keys() == {"x"}
    assert share_scales(plan, {"a": Scale.of(0.25)}, set()).keys() == {"a"}, "what nobody saw has no scale"
    assert tensors(without(CONCAT, "a", "b")) == ({"x"}, {"w1", "w2"})


def test_a_dead_skip_leaves_the_branch_in_int8() -> None:
    text = RESIDUAL.replace("a = Add(c, x)", "s = Conv(x, w2) d = Relu(s) a = Add(c, d)")
    whole, plan = without(text), without(text, "d")
    assert tensors(whole) == ({"x", "d", "r"}, {"w1", "w2"}) and tensors(plan) == ({"x", "r"}, {"w1", "w2"})


def test_nothing_dead_is_the_plan_as_it_was() -> None:
    assert all(without(text, "not there").points == without(text).points for text in ALL)
