# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which attentions a plan quantizes: all of their pairs or none, with the reason. Their forms: tests/rtx."""

from __future__ import annotations

import re

import pytest

from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.attention import with_fixed_weights
from qdqtool.match.plan import Plan, PlanOptions, explain
from qdqtool.match.planner import Planner, make_plan
from qdqtool.match.restrict_plan import restrict
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of, view_of

WEIGHTS = "float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32,8] wy, int64[4] to = {0,0,2,16}, int64[3] back = {0,0,32}, float s = {0.25}"
LINEARS = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) qr = Reshape(q, to) kr = Reshape(k, to) vr = Reshape(v, to) qt = Transpose<perm=[0,2,1,3]>(qr) kt = Transpose<perm=[0,2,3,1]>(kr) vt = Transpose<perm=[0,2,1,3]>(vr)"
CORE = "c = MatMul(qt, kt) d = Mul(c, s) e = Softmax(d) f = MatMul(e, vt)"
BEHIND = "ft = Transpose<perm=[0,2,1,3]>(f) fr = Reshape(ft, back) o = MatMul(fr, wo) y = MatMul(o, wy)"
PAIRS = {"q", "k", "v", "e", "f"}


def net(core: str = CORE, tokens: str = "12", behind: str = BEHIND, outputs: str = "float[N] y") -> str:
    """One attention of two heads of 16 between linear layers."""
    return f"g (float[1,{tokens},32] x) => ({outputs}) <{WEIGHTS}> {{ {LINEARS} {core} {behind} }}"


def plan_of(text: str, attention: str = "int8", decisions: Decisions | None = None, **options: object) -> Plan:
    asked = PlanOptions(float_heads="none", attention=attention, **options)  # type: ignore[arg-type]
    return make_plan(view_of(text), asked, decisions=decisions)


def tensors(plan: Plan) -> set[str]:
    return {point.tensor for point in plan.activations}


def reason(plan: Plan) -> str:
    (one,) = plan.attentions
    assert not one.int8 and not one.points and not (PAIRS - {"f"}) & tensors(plan)
    assert [(left.site, left.reason) for left in plan.refusals] == [("f", one.reason)]
    return one.reason


def test_an_attention_has_all_five_pairs_before_what_rearranges_values() -> None:
    plan = plan_of(net())
    assert tensors(plan) == {"x", *PAIRS, "o"} and plan.refusals == ()
    (one,) = plan.attentions
    assert one.int8 and set(one.points) == PAIRS and [node.key for node in one.nodes] == ["c", "d", "e", "f"]
    assert "1 of 1 attention in INT8" in plan.counts()[0]


def test_what_comes_out_of_an_attention_has_one_pair_for_it_and_the_product_behind() -> None:
    (point,) = [point for point in plan_of(net()).activations if point.tensor == "f"]
    assert [(read.node, read.index) for read in point.reads] == [("ft", 0)]


def test_a_float_attention_has_the_pair_that_the_product_behind_reads_alone() -> None:
    plan = plan_of(net(), "float")
    assert tensors(plan) == {"x", "f", "o"} and "--attention float" in reason(plan)


def test_auto_follows_what_was_measured_and_says_what_is_missing_without() -> None:
    unmeasured = plan_of(net(), "auto")
    assert "auto decides by the loss on --data, " in reason(unmeasured) and unmeasured.attentions[0].is_open
    kept = plan_of(net(), "auto", Decisions(attention={"f": "it loses too much"}))
    assert reason(kept) == "it loses too much" and not kept.attentions[0].is_open
    assert tensors(plan_of(net(), "auto", Decisions(attention={"f": ""}))) == tensors(plan_of(net()))
    assert reason(plan_of(net(), "float", Decisions(attention={"f": ""})))


def test_attentions_that_a_run_names_stay_in_float() -> None:
    view = view_of(net())
    plan = make_plan(view, PlanOptions(float_heads="none", attention="int8"), floats=["f"])
    assert tensors(plan) == {"x", "f", "o"}


def test_a_planner_gives_plans_with_an_attention_in_float_and_without() -> None:
    planner = Planner(view_of(net()), PlanOptions(float_heads="none", attention="int8"))
    found = [tensors(planner.plan(floats)) for floats in (["f"], [], ["o"], ["f"])]
    assert found == [{"x", "f", "o"}, {"x", *PAIRS, "o"}, {"x", *PAIRS, "o"}, {"x", "f", "o"}]


@pytest.mark.parametrize("attention", ["int8", "auto"])
def test_a_free_number_of_tokens_is_taken_only_where_int8_is_asked_for(attention: str) -> None:
    plan = plan_of(net(tokens="N"), attention, Decisions(attention={"f": ""}))
    assert plan.attentions[0].int8 is (attention == "int8")
    if attention == "auto":
        assert "is dynamic" in reason(plan)


def test_a_free_size_of_heads_is_never_taken() -> None:
    text = net(tokens="N").replace("int64[4] to = {0,0,2,16},", "").replace("x) =>", "x, int64[4] to) =>")
    assert "is not known" in reason(plan_of(text))


NONE = {
    "it is an output itself": (
        net(behind="y = Relu(f)", outputs="float[N] f, float[N] y"),
        "no operator after its output",
    ),
    "its shape alone is read": (net(behind="y = Shape(f)", outputs="int64[4] y"), "no operator after its output"),
    "another axis": (net(CORE.replace("Softmax(d)", "Softmax<axis=1>(d)")), "not over the last axis"),
    "513 tokens": (net(tokens="513"), "513 tokens: INT8 takes up to 512"),
    "1 token": (net(tokens="1"), "1 token: INT8 needs 2 or more"),
}


@pytest.mark.parametrize("kind", NONE)
def test_what_is_no_one_kernel_stays_in_float_and_says_why(kind: str) -> None:
    text, word = NONE[kind]
    (one,) = plan_of(text).attentions
    assert not one.int8 and word in one.reason


EINSUM = (
    "qe = Transpose<perm=[0,2,1,3]>(qt) ke = Transpose<perm=[0,3,1,2]>(kt) ve = Transpose<perm=[0,2,1,3]>(vt)"
    ' c = Einsum<equation="{}">(qe, ke) d = Mul(c, s) e = Softmax(d) fe = Einsum<equation="{}">(e, ve)'
    " f = Transpose<perm=[0,2,1,3]>(fe)"
)


def test_products_written_as_einsum_are_an_attention_with_its_pairs() -> None:
    plan = plan_of(net(EINSUM.format("bqhd,bkhd->bhqk", "bhqk, bkhd -> bqhd")))
    (one,) = plan.attentions
    assert one.int8 and {"q", "k", "v", "e", "fe"} <= set(one.points)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("bqhd,bkhd->bhkq", "bhqk,bkhd->bqhd", "not a product of queries and keys"),  # scores by key and query
        ("...qd,...kd->...qk", "...qk,...kd->...qd", "not a product"),
        ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhk", "not a product"),  # nothing is summed
    ],
)
def test_an_einsum_that_is_another_product_stays_in_float(first: str, second: str, word: str) -> None:
    (one,) = plan_of(net(EINSUM.format(first, second))).attentions
    assert not one.int8 and word in one.reason


@pytest.mark.parametrize("size", [8, 24])
def test_heads_in_an_einsum_are_measured_by_its_letters(size: int) -> None:
    inputs = f"float[1,12,2,{size}] q, float[1,12,2,{size}] k, float[1,12,2,{size}] v"
    body = 'c = Einsum<equation="bqhd,bkhd->bhqk">(q, k) e = Softmax(c) f = Einsum<equation="bhqk,bkhd->bqhd">(e, v)'
    (one,) = plan_of(f"g ({inputs}) => (float[N] y) {{ {body} y = Relu(f) }}").attentions
    assert not one.int8 and f"heads of {size} values" in one.reason


def test_values_left_of_the_transposed_weights_are_an_attention_that_stays_in_float() -> None:
    core = CORE.replace(
        "f = MatMul(e, vt)",
        "et = Transpose<perm=[0,1,3,2]>(e) vl = Transpose<perm=[0,1,3,2]>(vt) fl = MatMul(vl, et) f = Transpose<perm=[0,1,3,2]>(fl)",
    )
    (one,) = plan_of(net(core)).attentions
    assert one.rule == "attention-transposed" and not one.int8 and "transposed weights" in one.reason
    assert one.name == "fl"


OTHERS = {
    "scores that are read twice": net(CORE.replace("e = S", "u = Relu(d) e = S"), behind=f"{BEHIND} t = Relu(u)", outputs="float[N] y, float[N] t"),
    "a scale that is computed": net(CORE.replace("Mul(c, s)", "Mul(c, c)")),
    "no Softmax": net(CORE.replace("Softmax(d)", "Relu(d)")),
    "weights on the right": net(CORE.replace("MatMul(e, vt)", "MatMul(kt, e)")),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_no_form_fits_is_no_attention(kind: str) -> None:
    assert plan_of(OTHERS[kind]).attentions == ()


def test_the_last_axis_may_be_written_from_the_front() -> None:
    assert plan_of(net(CORE.replace("Softmax(d)", "Softmax<axis=3>(d)"))).attentions[0].int8


def test_the_dla_and_versions_before_the_rule_know_no_attention() -> None:
    view = view_of(net())
    assert make_plan(view, PlanOptions("dla", attention="int8")).attentions == ()
    assert plan_of(net(), trt_version=TrtVersion(8, 5, 3)).attentions == ()
    assert plan_of(net(), trt_version=TrtVersion(8, 6, 1)).attentions[0].int8


def test_explain_tells_of_each_of_its_nodes() -> None:
    plan = plan_of(net(), "auto")
    for name in ("c", "e", "f"):
        lines = explain(plan, name)
        assert any(re.match(f"{re.escape(name)}: .*left in float: .*--data", line) for line in lines)
        assert any(line.startswith("rule attention: ") for line in lines)
    assert "c > d > e > f" in explain(plan_of(net()), "d")[0]


def test_without_the_scale_of_one_pair_the_others_go_too() -> None:
    view, plan = view_of(net()), plan_of(net())
    cut = restrict(view, plan, tensors(plan) - {"k"})
    assert tensors(cut) == {"x", "f", "o"} and not cut.attentions[0].int8
    assert [(one.site, one.rule) for one in cut.refusals] == [("k", "no-scale"), ("f", "attention")]
    assert restrict(view, plan, tensors(plan)).attentions == plan.attentions


def test_an_attention_with_a_tensor_of_zeros_alone_stays_in_float() -> None:
    plan = make_plan(view_of(net()), PlanOptions(float_heads="none", attention="int8"), all_zero={"v"})
    assert tensors(plan) == {"x", "f", "o"} and not plan.attentions[0].int8


def test_the_scale_behind_a_softmax_is_fixed_where_it_has_a_pair() -> None:
    measured = {"e": Scale.of(0.001, origin="ptq"), "q": Scale.of(0.5, origin="ptq")}
    fixed = with_fixed_weights(measured, plan_of(net()).attentions)
    assert float(fixed["e"].bits) == pytest.approx(1 / 127) and fixed["e"].origin == "bound"
    assert fixed["q"] == measured["q"]
    assert with_fixed_weights(measured, plan_of(net(), "float").attentions) == measured


def test_an_attention_option_that_is_none_is_refused() -> None:
    with pytest.raises(QdqError, match=r"--attention: 'some' .*auto, int8 or float"):
        PlanOptions(attention="some")  # type: ignore[arg-type]


def test_pairs_that_stand_are_seen_through() -> None:
    from qdqtool import insert
    from qdqtool.verbs.insert_options import InsertOptions

    done = insert(model_of(net()), options=InsertOptions(plan=PlanOptions(attention="int8", float_heads="none")))
    again = make_plan(GraphView(done.model.graph), PlanOptions(float_heads="none", attention="int8"))
    assert again.attentions[0].int8 and tensors(again) == tensors(done.plan)
    assert float(done.inserted.scales["e"].bits) == pytest.approx(1 / 127)


def test_every_form_says_whether_it_is_one_kernel_and_for_which_sizes() -> None:
    for form in load_rules("gpu").attentions:
        assert bool(form.head_sizes) == form.int8 == (form.most == 512)
