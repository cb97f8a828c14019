# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The plan as a whole: what the user decides, what it explains, what it refuses."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.match.plan import Plan, PlanOptions, Read, Refusal, explain
from qdqtool.match.planner import make_plan
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_4, V8_6, V10, model_of, plan_of, points_of, readers_of, shuffled, view_of

W = "float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float[4,4,1,1] w4"
DETECTOR = f"""g (float[1,4,8,8] x) => (float[1,4,8,8] boxes, float[1,4,8,8] scores, float[1,4,8,8] marks) <{W}> {{
 [stem] c = Conv(x, w1) f = Relu(c) [loc_conv] boxes = Conv(f, w2) [cls_conv] s = Conv(f, w3) scores = Sigmoid(s) [mark_conv] marks = Conv(f, w4) }}"""
BODIES = f"""g (float[1,4,8,8] x, bool p) => (float[1,4,8,8] z) <{W}> {{ c = Conv(x, w1)
 z = If<then_branch = t () => (float[1,4,8,8] t2) {{ [inner] t1 = Conv(c, w2) t2 = Conv(t1, w2) }}, else_branch = e () => (float[1,4,8,8] e1) {{ e1 = Relu(c) }}>(p) }}"""
LOOP = f"""g (float[1,4,8,8] x, int64 n, bool go) => (float[1,4,8,8] z) <{W}> {{ c = Conv(x, w1)
 d = Loop<body = l (int64 i, bool g, float[1,4,8,8] s) => (bool g2, float[1,4,8,8] s2) {{ g2 = Identity(g) s2 = Conv(s, w2) }}>(n, go, c) z = Conv(d, w3) }}"""


def floats(**options: object) -> tuple[str, ...]:
    return plan_of(DETECTOR, **options).float_nodes


def test_which_heads_stay_in_float() -> None:
    assert floats(float_heads="regression") == ("boxes", "marks")
    assert floats(float_heads="all") == ("boxes", "marks", "s")
    assert floats(float_heads="none") == ()
    assert PlanOptions().float_heads == "regression"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("cls_conv", ("s",)),
        ("^scores$", ("s",)),
        ("^s$", ("s",)),
        ("(cls|loc)_conv", ("boxes", "s")),
        ("^stem$", ("c",)),
        ("", ("boxes", "c", "marks", "s")),
    ],
    ids=["node", "output it leads to", "tensor", "two", "no head at all", "everything"],
)
def test_heads_by_pattern(pattern: str, found: tuple[str, ...]) -> None:
    assert floats(heads=(pattern,)) == found


def test_patterns_add_up_and_not_heads_take_away() -> None:
    assert floats(float_heads="regression", heads=("cls",)) == ("boxes", "marks", "s")
    assert floats(float_heads="regression", not_heads=("mark",)) == ("boxes",)
    assert floats(float_heads="all", not_heads=("mark", "loc")) == ("s",)
    assert floats(heads=("_conv",), not_heads=("^boxes$",)) == ("marks", "s")
    assert "w2" in {p.tensor for p in plan_of(DETECTOR, float_heads="regression", not_heads=("loc",)).weights}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": ("loc_con$",)}, r"--heads loc_con\$: matches no weighted operator; near: loc_conv"),
        ({"heads": ("Relu",)}, "--heads Relu: matches no weighted operator"),
        ({"not_heads": ("stem",)}, "--not-heads stem: matches no weighted operator"),
        ({"heads": ("cls", "zzz")}, "--heads zzz: matches no weighted operator; see insert --dry-run"),
        ({"heads": ("(",)}, r"--heads \(: not a regular expression"),
        ({"not_heads": ("[",)}, r"--not-heads \[: not a regular expression"),
    ],
    ids=["near", "no weighted operator", "no head", "second of two", "broken", "broken not"],
)
def test_a_pattern_that_matches_nothing_is_an_error(options: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(QdqError, match=message) as error:
        plan_of(DETECTOR, **options)
    assert error.value.exit_code == 2


def test_what_stays_in_float_may_be_given_outright() -> None:
    plan = make_plan(view_of(DETECTOR), PlanOptions(heads=("no such node",)), floats=["c"])
    assert plan.float_nodes == ("c",)
    assert {p.tensor for p in plan.activations} == {"f"}


def test_a_plan_is_frozen_and_hashable_and_the_same_every_time() -> None:
    plan = plan_of(DETECTOR)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.points = ()  # type: ignore[misc]
    assert plan.points == plan_of(DETECTOR).points and len(set(plan.points)) == len(plan.points)
    assert plan.activations + plan.weights == plan.points


@pytest.mark.parametrize("text", [DETECTOR, BODIES, LOOP], ids=["detector", "if", "loop"])
@pytest.mark.parametrize("seed", range(3))
def test_points_and_refusals_do_not_depend_on_the_order_of_nodes(text: str, seed: int) -> None:
    model = model_of(text)
    plan, other = plan_of(model, float_heads="regression"), plan_of(shuffled(model, seed), float_heads="regression")
    assert (plan.points, plan.float_nodes) == (other.points, other.float_nodes)
    assert set(plan.refusals) == set(other.refusals)


# ---------------------------------------------------------------- control flow


def test_the_body_of_an_if_is_left_alone_with_a_refusal_for_each_weighted_operator() -> None:
    plan = plan_of(BODIES)
    assert [p.tensor for p in plan.points] == ["x", "w1"], "what a body reads has no pair: nothing in it is INT8"
    assert {(r.site, r.rule) for r in plan.refusals} == {
        ("z/then_branch/inner", "control-flow"),
        ("z/then_branch/t2", "control-flow"),
    }


def test_the_body_of_a_loop_is_left_alone() -> None:
    plan = plan_of(LOOP)
    assert {p.tensor for p in plan.points} == {"x", "w1", "d", "w3"}
    assert [r.site for r in plan.refusals] == ["d/body/s2"]


def test_no_refusal_without_a_weighted_operator_in_a_body() -> None:
    text = BODIES.replace("[inner] t1 = Conv(c, w2) t2 = Conv(t1, w2)", "t2 = Relu(c)")
    assert plan_of(text).refusals == ()


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        (["float-head"], "left in float: 1 detection head"),
        (["float-head"] * 3, "left in float: 3 detection heads"),
        (["no-scale", "keep-float"], "left in float: 1 operator kept for accuracy; 1 place without a scale"),
        (["attention"] * 4, "left in float: 4 products of attention"),
        (["weighted"] * 2, "left in float: 2 operators whose weight cannot be quantized"),
        (["pool"], "left in float: 1 place by the rule pool"),
    ],
)
def test_counts_say_what_stays_in_float_and_why(rules: list[str], line: str) -> None:
    plan = plan_of(DETECTOR)
    refusals = tuple(Refusal(f"n{number}", rule, "r") for number, rule in enumerate(rules))
    assert dataclasses.replace(plan, refusals=refusals).counts()[1:] == [line]


# ---------------------------------------------------------------- explain


def lines(name: str, **options: object) -> str:
    return "\n".join(explain(plan_of(DETECTOR, **options), name))


def test_explain_a_point_a_reader_a_refusal_a_head_and_a_group() -> None:
    assert re.search("^f: activation .* rule weighted", lines("f"), re.M)
    assert re.search("^w2: weight .* rule conv-weight", lines("boxes"), re.M)
    assert re.search("^loc_conv: .* float .* rule float-head", lines("loc_conv", float_heads="regression"), re.M)
    assert "loc_conv: regression head: " in lines("loc_conv")
    assert "rule conv: stem > f" in lines("stem")


def test_explain_names_the_tensor_that_a_scale_is_shared_with() -> None:
    text = f"g (float[1,2,8,8] x) => (float[N] z) <float[2,2,1,1] a, float[2,2,1,1] b, float[3,4,1,1] c> {{ r = Conv(x, a) s = Conv(x, b) k = Concat<axis=1>(r, s) z = Conv(k, c) }}{''}"
    plan = plan_of(text)
    assert "shared with r" in "".join(explain(plan, "s"))
    assert "shared with" not in "".join(explain(plan, "r"))
    assert plan.shared_scales() == {"x": ["x"], "r": ["r", "s"]}


def test_explain_says_which_names_are_near() -> None:
    with pytest.raises(QdqError, match=r"loc_con: .*; near: loc_conv"):
        lines("loc_con")
    with pytest.raises(QdqError, match="see insert --dry-run"):
        explain(Plan((), (), (), (), ()), "q")


# ---------------------------------------------------------------- versions


def test_the_newest_rules_are_the_default() -> None:
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] z) <{W}> {{ c = Conv(x, w1) s = Sigmoid(c) m = Mul(c, s) y = Add(m, x) z = Conv(y, w2) }}"
    assert points_of(text) == points_of(text, trt_version=V10) != points_of(text, trt_version=V8_4)


def test_reads_are_ordered_by_name_and_input() -> None:
    plan = plan_of(DETECTOR)
    point = next(p for p in plan.points if p.tensor == "f")
    assert point.reads == (Read("boxes", 0), Read("marks", 0), Read("s", 0))
    assert readers_of(plan, "f") == {("boxes", 0), ("marks", 0), ("s", 0)} and point.group == "stem"


DEPTHWISE = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,1,3,3] dw, float[4,4,1,1] w1, float[4,4,1,1] w2> {
 a = Conv(x, w1) [dw_conv] d = Conv<group=4, pads=[1,1,1,1]>(a, dw) e = Sigmoid(d) s = Mul(d, e) y = Conv(s, w2) }"""


FLOAT = """schema = 1
extends = "gpu"
[[float]]
name = "no-kernel"
match = "Conv:depthwise > silu"
trt = "==8.5"
why = "Our build found no implementation."
see = "our build log"
status = "measured"
"""


def own_rules(folder: Path) -> Path:
    path = folder / "mine.toml"
    path.write_text(FLOAT)
    return path


def test_a_chain_without_an_int8_kernel_stays_in_float(tmp_path: Path) -> None:
    own = own_rules(tmp_path)
    decided = plan_of(DEPTHWISE, trt_version=TrtVersion(8, 5, 2), rules=own)
    assert decided.float_nodes == ("d",)
    (refusal,) = [one for one in decided.refusals if one.site == "dw_conv"]
    assert (refusal.rule, "found no implementation" in refusal.reason) == ("no-kernel", True)
    assert {point.tensor for point in decided.points} == {"x", "w1", "s", "w2"}
    lines = explain(decided, "dw_conv", PlanOptions(trt_version=TrtVersion(8, 5, 2), rules=own))
    assert any("rule no-kernel: " in line and "our build log" in line for line in lines)


@pytest.mark.parametrize("version", [TrtVersion(8, 4, 3), TrtVersion(8, 5, 2), V8_6, None])
def test_a_depthwise_convolution_with_silu_is_quantized(version: TrtVersion | None) -> None:
    """NVIDIA/TensorRT issue 3385: 8.5.2 fails where nothing reads the pair after it, and insert makes no such pair."""
    decided = plan_of(DEPTHWISE, trt_version=version)
    assert decided.float_nodes == () and {"a", "s"} <= {point.tensor for point in decided.points}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (DEPTHWISE, TrtVersion(8, 4, 3)),
        (DEPTHWISE, V8_6),
        (DEPTHWISE.replace("Sigmoid(d) s = Mul(d, e)", "Relu(d) s = Relu(e)"), TrtVersion(8, 5, 2)),
        (
            DEPTHWISE.replace("group=4, ", "").replace("dw, float", "dw0, float").replace("(a, dw)", "(a, w1)"),
            TrtVersion(8, 5, 2),
        ),
    ],
    ids=["before", "after", "no SiLU", "an ordinary convolution"],
)
def test_other_chains_and_versions_are_quantized(text: str, version: TrtVersion, tmp_path: Path) -> None:
    assert plan_of(text, trt_version=version, rules=own_rules(tmp_path)).float_nodes == ()


@pytest.mark.parametrize(
    ("body", "noun"),
    [
        ("r = Relu(x) z = Conv(r, w)", "output layer"),  # an image, a spectrum, an embedding
        ("r = Relu(x) z = Conv(r, w) y = Conv(r, w)", "output layer"),
        ("r = Relu(x) z = Conv(r, w) c = Conv(r, w) y = Sigmoid(c)", "detection head"),
        ("r = Relu(x) b = Conv(r, w) s = Sigmoid(b) z = Mul(s, grid) y = Relu(r)", "detection head"),
    ],
)
def test_heads_are_detection_heads_only_where_boxes_or_scores_are(body: str, noun: str) -> None:
    text = f"g (float[1,4,8,8] x) => (float[N] z{', float[N] y' if 'y =' in body else ''}) <float[4,4,1,1] w, float[1,4,8,8] grid> {{ {body} }}"
    made = qdqtool.insert(model_of(text), options=qdqtool.InsertOptions(allow_empty=True))
    (left,) = [line for line in made.plan.counts() if line.startswith("left in float")]
    assert left.endswith((noun, f"{noun}s"))
    assert any(line.startswith(f"{noun}s in float: ") for line in made.summary())
    assert all(noun in one.reason for one in made.plan.refusals if one.rule == "float-head")
