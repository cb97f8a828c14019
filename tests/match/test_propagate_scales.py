# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Scales carried to every tensor of the same values, and the check that nothing INT8 lacks one."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.propagate_scales import Coverage, borrowed_scales, check_coverage, spread_scales
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale
from tests.graphs import V8_6, model_of, plan_of, table_of, view_of

RULES = load_rules("gpu", V8_6)
ONE = Scale.of(0.1, method="mse")


def spread(body: str, points: dict[str, float], more: str = "") -> Coverage:
    text = f"g (float[1,4,8,8] x) => (float[N] z) <float[4] unused{', ' + more if more else ''}> {{ e = Exp(x) {body} z = Exp(y) }}"
    return spread_scales(view_of(text), RULES, {name: Scale.of(value) for name, value in points.items()})


CARRIED = {
    "MaxPool": ("y = MaxPool<kernel_shape=[2,2]>(e)", ""),
    "Reshape": ("y = Reshape(e, s)", "int64[1] s = {-1}"),
    "Flatten": ("y = Flatten(e)", ""),
    "Transpose": ("y = Transpose(e)", ""),
    "Slice": ("y = Slice(e, s, t)", "int64[1] s = {0}, int64[1] t = {1}"),
    "Squeeze": ("y = Squeeze(e, s)", "int64[1] s = {0}"),
    "Identity": ("y = Identity(e)", ""),
    "nearest Resize": ("y = Resize<mode=\"nearest\">(e, , s)", "float[4] s = {1,1,2,2}"),
    "zero Pad": ("y = Pad(e, s)", "int64[8] s = {0,0,1,1,0,0,1,1}"),
    "Gather": ("y = Gather(e, s)", "int64[1] s = {0}"),
    "two in a row": ("f = Flatten(e) y = Identity(f)", ""),
}  # fmt: skip


@pytest.mark.parametrize("way", ["forward", "back"])
@pytest.mark.parametrize(("body", "more"), CARRIED.values(), ids=CARRIED)
def test_the_same_values_have_the_same_scale_both_ways(body: str, more: str, way: str) -> None:
    point, other = ("e", "y") if way == "forward" else ("y", "e")
    coverage = spread(body, {point: 0.1}, more)
    assert set(coverage.scales) >= {"e", "y"}
    assert coverage.scales[other].bits.tobytes() == coverage.scales[point].bits.tobytes()
    assert coverage.spread[other] == point and point not in coverage.spread
    assert coverage.scales[other].origin == "equal" and coverage.scales[point].origin == "ptq"


STOPPED = {
    "Relu": ("y = Relu(e)", ""),
    "AveragePool": ("y = AveragePool<kernel_shape=[2,2]>(e)", ""),
    "linear Resize": ("y = Resize<mode=\"linear\">(e, , s)", "float[4] s = {1,1,2,2}"),
    "Pad with one": ("y = Pad(e, s, v)", "int64[8] s = {0,0,1,1,0,0,1,1}, float v = {1}"),
    "Gather from a table": ("i = Cast<to=7>(e) y = Gather(t, i)", "float[9,4] t"),
    "shape of a Reshape": ("y = Reshape(x, e)", ""),
}  # fmt: skip


@pytest.mark.parametrize(("body", "more"), STOPPED.values(), ids=STOPPED)
def test_other_values_have_their_own_scale(body: str, more: str) -> None:
    assert "y" not in spread(body, {"e": 0.1}, more).scales
    assert "e" not in spread(body, {"y": 0.1}, more).scales


def test_every_branch_of_a_concat_and_a_split() -> None:
    body = "f = Relu(e) g = Relu(f) k = Concat<axis=1>(f, g) h, y = Split<axis=1>(k, s)"
    for point in "fgkhy":
        assert set(spread(body, {point: 0.1}, "int64[2] s = {4,4}").scales) == set("fgkhy")


def test_a_constant_in_a_concat_has_none() -> None:
    assert set(spread("y = Concat<axis=1>(e, c)", {"e": 0.1}, "float[1,4,8,8] c").scales) == {"e", "y"}


def test_points_keep_their_own_and_the_largest_holds_where_several_reach() -> None:
    coverage = spread("f = Relu(e) k = Concat<axis=1>(e, f) y = Flatten(k)", {"e": 0.1, "f": 0.3})
    assert {name: float(scale.bits) for name, scale in coverage.scales.items()} == pytest.approx(
        {"e": 0.1, "f": 0.3, "k": 0.3, "y": 0.3}
    )
    assert coverage.spread == {"k": "f", "y": "f"}


def test_of_two_equal_scales_one_is_named() -> None:
    coverage = spread("f = Relu(e) k = Concat<axis=1>(e, f) y = Flatten(k)", {"f": 0.1, "e": 0.1})
    assert coverage.spread == {"k": "e", "y": "e"}


def test_a_point_stops_the_scale_of_another() -> None:
    coverage = spread("f = Flatten(e) g = Identity(f) y = Identity(g)", {"e": 0.5, "g": 0.1})
    assert float(coverage.scales["y"].bits) == pytest.approx(0.1), "behind g the values are rounded by g"
    assert float(coverage.scales["f"].bits) == pytest.approx(0.5)


def test_scales_come_in_topological_order() -> None:
    assert list(spread("f = Flatten(e) y = Identity(f)", {"y": 0.1}).scales) == ["e", "f", "y"]


def test_no_points_no_scales() -> None:
    assert spread("y = Flatten(e)", {}) == Coverage({}, {})


# ---------------------------------------------------------------- coverage

NET = """g (float[1,4,8,8] x) => (float[N] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[256,3] fc> {
 c = Conv(x, w1) r = Relu(c) q = MaxPool<kernel_shape=[1,1]>(r) d = Conv(q, w2) f = Flatten(d) z = Gemm(f, fc) }"""


def covered(without: str = "") -> list[str]:
    model = model_of(NET)
    view = GraphView(model.graph)
    plan = make_plan(view, PlanOptions(float_heads="none"))
    points = {name: scale for name, scale in table_of(plan).items() if name != without}
    return check_coverage(view, plan.groups, spread_scales(view, RULES, points), ["c", "d", "z"])


def test_outputs_of_int8_groups_that_stay_float_are_listed() -> None:
    assert covered() == ["z"]


@pytest.mark.parametrize("name", ["x", "q", "d"])
def test_an_int8_operator_whose_input_has_no_scale_is_an_error(name: str) -> None:
    lost = "f" if name == "d" else name
    with pytest.raises(QdqError, match=rf"^{lost}: .*no scale"):
        covered(without=name)


def test_operators_in_float_need_none() -> None:
    view = view_of(NET)
    assert check_coverage(view, plan_of(NET).groups, Coverage({}, {}), []) == []


def test_a_tensor_without_a_scale_borrows_that_of_the_same_values() -> None:
    text = """g (float[N,4,8,8] x) => (float[N,4,4,4] y, float[N,4,8,8] z) <float[4,4,1,1] w> {
              a = Relu(x) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(a) y = Conv(p, w) z = Sigmoid(a) }"""
    view = view_of(text)
    rules = load_rules("gpu")
    known = {"a": Scale.of(0.5), "w": Scale.of(0.1)}
    found = borrowed_scales(view, rules, known, ["a", "p", "z"])
    assert found.keys() == {"p"} and found["p"].same_bits(known["a"])
    assert found["p"].origin == "equal" and found["p"].method.endswith(" a")
    assert borrowed_scales(view, rules, known, ["a"]) == {}
