# SPDX-License-Identifier: Apache-2.0
"""One planner, many plans: what stays in float in one of them is no matter in the next."""

from __future__ import annotations

import pytest

from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import Planner, make_plan
from tests.graphs import view_of

W = "float[4,4,1,1] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}"
CHAIN = f"""g (float[1,4,8,8] x) => (float[1,4,8,8] d) <{W}> {{
    a = Conv(x, w) r = Relu(a) b = Conv(r, w) c = Conv(b, w) s = Add(c, r) d = Conv(s, w) }}"""
SETS = [(), ("b",), ("a", "d"), ("a", "b", "c", "d"), ("d",), ()]


def test_plans_of_one_planner_are_those_made_each_by_itself() -> None:
    view, options = view_of(CHAIN), PlanOptions(float_heads="none")
    planner = Planner(view, options)
    for floats in SETS:
        assert planner.plan(floats) == make_plan(view, options, floats=floats)
    assert planner.plan() == make_plan(view, options)


def test_an_operator_in_float_in_one_plan_is_int8_again_in_the_next() -> None:
    planner = Planner(view_of(CHAIN), PlanOptions(float_heads="none"))
    kept, after = planner.plan(["b"]), planner.plan([])
    assert [one.site for one in kept.refusals] == ["b"] and after.refusals == ()
    assert {read.node for point in after.weights for read in point.reads} == {"a", "b", "c", "d"}


def test_the_headline_counts_pairs_and_what_is_left_if_anything_is() -> None:
    planner = Planner(view_of(CHAIN), PlanOptions(float_heads="none"))
    assert planner.plan([]).headline() == "pairs on 4 activations and 1 weight"
    assert planner.plan(["b"]).headline().endswith("and 1 weight, 1 place left in float")


def test_a_mixed_plan_has_the_formats_that_were_decided() -> None:
    options = PlanOptions(float_heads="none", format="mixed")
    with pytest.raises(QdqError, match="is decided by insert alone"):
        make_plan(view_of(CHAIN), options)
    decided = Decisions(formats=dict.fromkeys("abcd", ("int8", "it is fast")))
    assert {point.format.name for point in make_plan(view_of(CHAIN), options, decisions=decided).points} == {"int8"}


def test_what_was_decided_before_stays_in_float_in_every_plan() -> None:
    planner = Planner(view_of(CHAIN), decisions=Decisions(float_layers={"c": "it loses much"}))
    for floats in (None, (), ("a",)):
        reasons = {one.site: one.reason for one in planner.plan(floats).refusals}
        assert reasons["c"] == "it loses much"


def test_a_name_that_is_no_operator_is_refused_at_once() -> None:
    with pytest.raises(QdqError, match="--keep-float nothing"):
        Planner(view_of(CHAIN), PlanOptions(keep_float=("nothing",)))
