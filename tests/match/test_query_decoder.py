# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which layers are a decoder's of queries, on small graphs in the shape of DETR and its descendants."""

from __future__ import annotations

import re

import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.heads import find_heads
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.query_decoder import decoder_layers, reference_readers
from qdqtool.rulebook import load_rules
from tests.graphs import view_of

WEIGHTS = "float[8,8] wm, float[8,8] wk, float[8,8] wv, float[8,8] wo, float[8,4] wb, float[8,4] wb2, float[8,4] we, float[4,8] wr, float[8,6] wc, float[8,3] ws"
MEMORY = "memory = MatMul(x, wm)"
ATTENDS = """k = MatMul(memory, wk) v = MatMul(memory, wv) kt = Transpose<perm=[0,2,1]>(k) a = MatMul(query, kt) p = Softmax<axis=-1>(a)
    m = MatMul(p, v) o = MatMul(m, wo)"""
BOX = "b = MatMul(o, wb) z = Sigmoid(b) c = MatMul(o, wc)"
DETR = f"{MEMORY} {ATTENDS} {BOX}"
# A TopK picks tokens; their box is the reference that each layer reads and refines.
RT_DETR = f"""{MEMORY} s = MatMul(memory, ws) best = ReduceMax<axes=[-1], keepdims=0>(s) none, i = TopK<axis=1>(best, five)
    iu = Unsqueeze(i, last) e = MatMul(memory, we) ie = Expand(iu, box) picked = GatherElements<axis=1>(e, ie)
    ix = Expand(iu, wide) target = GatherElements<axis=1>(memory, ix) r = Sigmoid(picked) pos = MatMul(r, wr) query = Add(target, pos)
    {ATTENDS} d = MatMul(o, wb) l = Log(r) dl = Add(d, l) r2 = Sigmoid(dl) pos2 = MatMul(r2, wr) o2 = Add(o, pos2)
    d2 = MatMul(o2, wb2) l2 = Log(r2) dl2 = Add(d2, l2) z = Sigmoid(dl2) c = MatMul(o2, wc)"""
MORE = "int64[1] five = {5}, int64[1] last = {2}, int64[3] box = {1,5,4}, int64[3] wide = {1,5,8}"


def graph(body: str, more: str = MORE) -> GraphView:
    return view_of(
        f"g (float[1,16,8] x) => (float[N] z, float[N] c) <{WEIGHTS}{', ' + more if more else ''}> {{ {body} }}"
    )


def layers_of(view: GraphView) -> list[str]:
    rules = load_rules("gpu").heads
    return [node.key for node in decoder_layers(view, find_heads(view, rules), rules)]


def test_learned_queries_that_attend_to_the_image_are_a_decoder() -> None:
    folded = graph(DETR, "float[1,5,8] query")
    assert layers_of(folded) == ["a", "o", "b", "c"], "keys and values are of the image's own tokens"
    made = graph(
        f"shape = Shape(x) n = Gather(shape, first) n1 = Unsqueeze(n, first1) one = Concat<axis=0>(n1, rest) query = Expand(learned, one) {DETR}",
        "float[1,5,8] learned, int64 first = {0}, int64[1] first1 = {0}, int64[2] rest = {5,8}",
    )
    assert layers_of(made) == ["o", "b", "c"], "queries of the batch's size are as little of the image"


def test_queries_that_a_topk_picks_are_a_decoder() -> None:
    assert layers_of(graph(RT_DETR)) == ["pos", "o", "d", "pos2", "d2", "c"]


def test_a_weight_that_nodes_compute_from_constants_asks_nothing() -> None:
    body = RT_DETR.replace("memory = MatMul(x, wm)", "w0 = Transpose(w) memory = MatMul(x, w0)")
    assert layers_of(graph(body, f"{MORE}, float[8,8] w")) == layers_of(graph(RT_DETR))
    body = RT_DETR.replace(
        "memory = MatMul(x, wm)",
        "n = Size(x) w0 = Mod(n, n) wi = Cast<to=1>(w0) w1 = Add(w, wi) memory = MatMul(x, w1)",
    )
    assert layers_of(graph(body, f"{MORE}, float[8,8] w")) == layers_of(graph(RT_DETR))


def test_without_a_box_head_attention_to_constants_is_no_decoder() -> None:
    body = DETR.replace("b = MatMul(o, wb) z = Sigmoid(b)", "z = Sigmoid(o)")
    assert layers_of(graph(body, "float[1,5,8] query")) == []


def test_boxes_without_queries_have_no_decoder() -> None:
    body = f"query = MatMul(x, wo) {MEMORY} {ATTENDS.replace('wo)', 'wm)')} {BOX}"
    assert layers_of(graph(body)) == []


# What is no decoder: a constant on the left, or a TopK, and a wide last linear layer, in networks that find no boxes.
SPECTRUM = "s = MatMul(dft, x) t = Transpose<perm=[0,2,1]>(s) p = Mul(t, t) h = MatMul(p, wt) g = Relu(h) z = MatMul(g, wb) c = MatMul(g, wc)"
LATENTS = f"{MEMORY} {ATTENDS} n = LayerNormalization<axis=-1>(o, gain) h = MatMul(n, wm) g = Relu(h) z = MatMul(g, wide) c = MatMul(g, wc)"
EXPERTS = f"""{MEMORY} r = MatMul(memory, ws) p = Softmax<axis=-1>(r) v, i = TopK<axis=-1>(p, one) w = ReduceSum<keepdims=1>(v, last) f = MatMul(memory, wk)
    e = Mul(f, w) q = MatMul(e, wo) k = MatMul(e, wk) kt = Transpose<perm=[0,2,1]>(k) a = MatMul(q, kt) sm = Softmax<axis=-1>(a) m = MatMul(sm, e)
    z0 = MatMul(m, wb) z = Sigmoid(z0) c = MatMul(m, wc)"""


@pytest.mark.parametrize("last", ["z = MatMul(g, wb)", "z0 = MatMul(g, wb) z = Sigmoid(z0)"], ids=["raw", "bounded"])
def test_a_transform_by_a_constant_on_the_left_asks_nothing(last: str) -> None:
    body = SPECTRUM.replace("z = MatMul(g, wb)", last)
    assert layers_of(graph(body, "float[12,16] dft, float[12,8] wt")) == []


def test_learned_latents_of_an_encoder_without_boxes_are_no_decoder() -> None:
    """A raw linear layer whose width divides by four shows no box, even beside a layer of classes."""
    for width in (4, 48):
        assert layers_of(graph(LATENTS, f"float[1,5,8] query, float[8] gain, float[8,{width}] wide")) == []


def test_a_topk_of_experts_is_no_decoder() -> None:
    """What the gates weigh attends to itself, not to what nothing was picked from."""
    assert layers_of(graph(EXPERTS, "int64[1] one = {1}, int64[1] last = {2}")) == []


def test_a_box_is_bounded_or_refined() -> None:
    raw = DETR.replace("b = MatMul(o, wb) z = Sigmoid(b)", "z = MatMul(o, wb)")
    assert layers_of(graph(raw, "float[1,5,8] query")) == []
    sized = DETR.replace(
        "z = Sigmoid(b)", "d, s = Split<axis=-1, num_outputs=2>(b) e = Exp(s) z = Concat<axis=-1>(d, e)"
    )
    assert layers_of(graph(sized, "float[1,5,8] query")) == ["a", "o", "b", "c"], "sizes as exponents, as in RF-DETR"


@pytest.mark.parametrize(
    "sampled",
    [
        "at = MatMul(query, w2) grid = Reshape(at, four) mt = Transpose<perm=[0,2,1]>(memory) map = Reshape(mt, square) got = GridSample(map, grid) gs = Reshape(got, back) o0 = Transpose<perm=[0,2,1]>(gs)",
        "at = MatMul(query, w1) ai = Cast<to=7>(at) aw = Expand(ai, wide) o0 = GatherElements<axis=1>(memory, aw)",
    ],
    ids=["GridSample", "gathered"],
)
def test_picked_queries_may_look_up_places_that_they_compute(sampled: str) -> None:
    picks = RT_DETR.partition("query = ")[0] + "query = Add(target, pos)"
    body = f"{picks} {sampled} o = MatMul(o0, wo) {BOX}"
    more = f"{MORE}, float[8,2] w2, float[8,1] w1, int64[4] four = {{1,5,1,2}}, int64[4] square = {{1,8,4,4}}, int64[3] back = {{1,8,5}}"
    found = layers_of(graph(body, more))
    assert found == ["pos", "at", "o", "b", "c"]


def test_a_second_stage_on_regions_is_no_decoder() -> None:
    view = view_of(
        f"""g (float[1,8,4,4] x, float[5,4] rois) => (float[N] z, float[N] c) <{WEIGHTS}, float[8,8,1,1] w, int64[1] five = {{5}}> {{
        f = Conv(x, w) flat = ReduceMax<axes=[1,2], keepdims=0>(rois) none, i = TopK(flat, five) kept = Gather(rois, i)
        a = RoiAlign<output_height=1, output_width=1>(f, kept, i) q = GlobalAveragePool(a) h = Flatten(q) z = MatMul(h, wb) c = MatMul(h, wc) }}"""
    )
    assert layers_of(view) == []


def test_references_are_read_by_the_layers_of_their_positions() -> None:
    view = graph(RT_DETR)
    readers = reference_readers(view, find_heads(view, load_rules("gpu").heads))
    assert [node.key for node in readers] == ["pos", "pos2"]


def test_heads_are_the_boxes_of_every_layer() -> None:
    heads = make_plan(graph(RT_DETR)).heads
    labels = {"s": "score", "e": "regression", "d": "regression", "d2": "regression", "c": "last layer"}
    assert {head.key: head.label for head in heads} == labels
    evidence = {head.key: head.evidence for head in heads}
    words = {"s": "bounded", "e": "next layer", "d": "next layer", "d2": "after a bounded", "c": "query"}
    assert [key for key, word in words.items() if word not in evidence[key]] == []


@pytest.mark.parametrize(
    ("options", "floats", "quantized"),
    [
        (PlanOptions(), {"pos", "o", "e", "d", "pos2", "d2", "c"}, {"memory", "k", "v", "s"}),
        (PlanOptions(float_heads="none"), {"pos", "o", "pos2", "c"}, {"memory", "k", "v", "s", "e", "d", "d2"}),
        (PlanOptions(decoder="int8"), {"pos", "e", "d", "pos2", "d2"}, {"memory", "k", "v", "o", "c", "s"}),
        (PlanOptions(decoder="int8", float_heads="none"), {"pos", "pos2"}, {"memory", "k", "v", "o", "c", "s", "d2"}),
    ],
    ids=["float", "boxes alone", "int8", "heads too"],
)
def test_a_plan_leaves_the_decoder_in_float(options: PlanOptions, floats: set[str], quantized: set[str]) -> None:
    view = graph(RT_DETR)
    plan = make_plan(view, options)
    weights = {read.node for point in plan.weights for read in point.reads}
    assert not weights & floats
    assert weights >= quantized
    references = {"l", "l2", "r", "r2", "picked", "dl", "dl2"}
    assert not references & {point.tensor for point in plan.activations}, "anchors and references stay float"


def test_a_box_head_of_a_float_decoder_reads_nothing_that_was_rounded_for_the_classes_beside_it() -> None:
    plan = make_plan(graph(RT_DETR))
    assert not {read.node for point in plan.activations for read in point.reads} & {"d", "d2", "o", "c"}


def test_attentions_of_a_float_decoder_stay_in_float_and_those_of_the_encoder_do_not() -> None:
    wide = {"float[8,8]": "float[16,16]", "float[8,": "float[16,", "float[4,8]": "float[4,16]", "{1,5,8}": "{1,5,16}"}
    inside = """qs = MatMul(memory, wo) ks = Transpose<perm=[0,2,1]>(qs) sc = MatMul(qs, ks) sp = Softmax<axis=-1>(sc) sm = MatMul(sp, memory) tokens = Add(sm, memory)"""
    body = RT_DETR.replace(MEMORY, f"{MEMORY} {inside}").replace(
        "MatMul(memory, wk) v = MatMul(memory, wv)", "MatMul(tokens, wk) v = MatMul(tokens, wv)"
    )
    text = f"g (float[1,16,16] x) => (float[N] z, float[N] c) <{WEIGHTS}, {MORE}> {{ {body} }}"
    for old, new in wide.items():
        text = text.replace(old, new)
    for decoder, int8 in (("float", {"sm"}), ("int8", {"sm", "m"})):
        plan = make_plan(view_of(text), PlanOptions(attention="int8", decoder=decoder))  # type: ignore[arg-type]
        assert {one.key for one in plan.attentions if one.int8} == int8, decoder
    (left,) = [one for one in make_plan(view_of(text), PlanOptions(attention="int8")).attentions if not one.int8]
    assert "--decoder int8" in left.reason


# D-FINE: a first box by the log-odds of its reference, then sides as distributions whose bins are computed of constants.
D_FINE = f"""query = Relu(x) {MEMORY} {ATTENDS} first = MatMul(o, wb) l = Log(r) fl = Add(first, l) r1 = Sigmoid(fl)
    d = MatMul(o, wd) dr = Reshape(d, sides) dp = Softmax<axis=-1>(dr) low, high = Split<axis=0, num_outputs=2>(half)
    ln = Neg(low) bins = Concat<axis=0>(ln, high) mean = MatMul(dp, bins) ms = Squeeze(mean, last3) z = Add(r1, ms)
    pos = MatMul(r1, wr) best = ReduceMax<axes=[-1], keepdims=0>(dp) q = MatMul(best, wr) o2 = Add(pos, q) c = MatMul(o2, wc)"""


def test_every_box_of_d_fine_is_a_head() -> None:
    more = "float[1,16,4] r, float[8,20] wd, int64[4] sides = {0,0,4,5}, float[5,1] half, int64[1] last3 = {3}"
    view = graph(D_FINE.replace("num_outputs=2>(half)", "num_outputs=2>(half)"), more)
    labels = {head.key: head.evidence.partition(":")[0] for head in find_heads(view, load_rules("gpu").heads)}
    assert [(key, "refines" in said, "classes" in said) for key, said in sorted(labels.items())] == [
        ("c", False, True),
        ("d", True, False),
        ("first", True, False),
    ]


def test_a_plan_says_why() -> None:
    plan = make_plan(graph(RT_DETR))
    assert {r.site for r in plan.refusals if r.rule == "decoder-float"} == {"pos", "o", "pos2", "c"}
    assert any(re.search("4 layers .*decoder", line) for line in plan.counts())
    plan = make_plan(graph(RT_DETR), PlanOptions(decoder="int8"))
    assert {r.site for r in plan.refusals if r.rule == "reference-float"} == {"pos", "pos2"}


def test_a_decoder_of_another_type_is_refused() -> None:
    with pytest.raises(QdqError, match="--decoder: 'fp16' is not one"):
        PlanOptions(decoder="fp16")  # type: ignore[arg-type]
