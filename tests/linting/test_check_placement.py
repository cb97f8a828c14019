# SPDX-License-Identifier: Apache-2.0
"""What lint says of where pairs stand: in a group, around an Add, behind heads, on sizes, for nobody, nowhere."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.graph.edit import set_metadata
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import V8_6, model_of
from tests.linting.quantized import classifier, conv, findings_of, graph, pair, places_of

SOUND = classifier(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {conv('d', 'r_dq', 'w2')} a = Relu(d)")
NORM = "BatchNormalization({}, g, b, b, v)"


@pytest.mark.parametrize("code", ["Q001", "Q002", "Q007", "Q008", "Q009", "Q013", "Q019", "Q026", "Q028"])
def test_a_sound_graph_is_let_through(code: str) -> None:
    assert findings_of(SOUND, code, version=V8_6) == []


# ---------------------------------------------------------------------- Q001


@pytest.mark.parametrize(
    ("inside", "reader"),
    [
        (f"{pair('c')} a = {NORM.format('c_dq')}", "BatchNormalization"),
        (f"n = {NORM.format('c')} {pair('n')} a = Relu(n_dq)", "Relu"),
        (f"{pair('c')} a = Add(c_dq, bias)", "Add"),
        (f"{pair('c')} a = LeakyRelu(c_dq)", "LeakyRelu"),
        (f"{pair('c')} k = Sigmoid(c_dq) a = Mul(c_dq, k)", "Sigmoid"),
    ],
)
def test_q001_a_pair_inside_a_group(inside: str, reader: str) -> None:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} {inside}", more="float[8,1,1] bias")
    finding = findings_of(model, "Q001")[0]
    assert finding.where in ("c", "n") and finding.fixable
    assert f" Conv c and the {reader} " in finding.message
    assert places_of(model, "Q001", target="dla") == []


def test_q001_a_pair_behind_the_group_or_where_nothing_fuses() -> None:
    twice = f"{pair('x')} {conv('c', 'x_dq')} {pair('c')} r = Relu(c_dq) k = Tanh(c_dq) a = Add(r, k)"
    assert places_of(classifier(twice), "Q001") == []
    behind = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {conv('a', 'r_dq', 'w2')}"
    assert places_of(classifier(behind), "Q001") == []


def test_pairs_for_a_dla_are_left_to_one_note_of_q001() -> None:
    plain = model_of("""net (float[1,4,8,8] x) => (float[1,8] y) <float[8,4,1,1] w1, float[8,8,1,1] w2>
    { c = Conv(x, w1) r = Relu(c) g = Sigmoid(r) d = Conv(g, w2) e = Add(d, g)
      p = GlobalAveragePool(e) y = Flatten(p) }""")
    model = insert(plain, options=InsertOptions(plan=PlanOptions("dla"), input_range=(0, 1))).model
    (finding,) = findings_of(model, "Q001")
    assert finding.severity == "note" and not finding.fixable and "placed for a DLA" in finding.message
    assert (
        findings_of(model, "Q026") == [] == findings_of(model, "Q002")
        and findings_of(model, "Q001", target="dla") == []
    )


# ---------------------------------------------------------------------- Q002


def residual(skip: str, fused: str, behind: str = "") -> onnx.ModelProto:
    """conv(conv(x)) + skip, then an INT8 convolution; pairs where the words `dq` say so."""
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {conv('d', 'r_dq', 'w2')}"
    body += f" {pair('d')}" if fused == "d_dq" else ""
    body += f" e = Add({fused}, {skip}) h = Relu(e) {pair('h')} {conv('a', 'h_dq')}"
    return classifier(body + behind)


@pytest.mark.parametrize(
    ("skip", "fused", "said"),
    [
        ("x_dq", "d", ""),
        ("x", "d_dq", ""),
        ("x_dq", "d_dq", "on both inputs: it does not fuse with Conv d"),
        ("x", "d", "on neither input: Conv d writes float"),
    ],
)
def test_q002_one_side_of_a_residual_add(skip: str, fused: str, said: str) -> None:
    found = findings_of(residual(skip, fused), "Q002")
    assert [one.where for one in found] == (["e"] if said else [])
    assert all(said in one.message and one.fixable == ("both" in said) for one in found)


def test_q002_the_inputs_of_the_add_are_not_told_twice() -> None:
    assert places_of(residual("x_dq", "d_dq"), "Q001") == []


def test_q002_neither_is_right_where_nobody_reads_int8_behind() -> None:
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {conv('d', 'r_dq', 'w2')} a = Add(d, x)"
    assert places_of(classifier(body), "Q002") == []


def test_q002_the_scale_may_come_across_what_commutes() -> None:
    body = (
        f"{pair('x')} m = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x_dq) {conv('c', 'x_dq')} r = Relu(c) {pair('r')}"
    )
    body += f" {conv('d', 'r_dq', 'w2')} e = Add(d, m) {pair('e')} {conv('a', 'e_dq')}"
    assert places_of(classifier(body), "Q002") == []


# ---------------------------------------------------------------------- Q007


def test_q007_in_front_of_shape_is_a_warning() -> None:
    for name, severities in (("x", []), ("x_dq", ["warning"])):
        body = f"{pair('x')} {conv('c', 'x_dq')} n = Shape({name}) a = Reshape(c, n)"
        found = findings_of(classifier(body), "Q007")
        assert [one.severity for one in found] == severities and all(one.where == "x" for one in found)


def test_q007_rounded_sizes_and_indices_are_errors() -> None:
    sized = graph(f"n = Shape(x) m = Cast<to=1>(n) {pair('m')} k = Cast<to=7>(m_dq) y = Reshape(x, k)")
    assert [(one.where, one.severity) for one in findings_of(sized, "Q007")] == [("m", "error")]
    halved = graph(
        f"n = Shape(x) m = Cast<to=1>(n) h = Mul(m, s) {pair('h')} k = Floor(h_dq) j = Relu(k) y = Add(x, s)"
    )
    assert places_of(halved, "Q007") == ["h"]
    index = graph(f"m = ReduceMax(x) {pair('m')} k = Cast<to=7>(m_dq) y = Gather(x, k)", "float y")
    assert places_of(index, "Q007") == ["m"]
    joined = f"m = ReduceMax(x) {pair('m')} j = Concat<axis=0>(one, m_dq) k = Cast<to=7>(j)"
    sized = graph(f"{joined} y = Expand(x, k)", "float y", more="float[1] one = {1}")
    assert places_of(sized, "Q007") == ["m"], "behind the first input of the Concat, too"
    scaled = graph(f"{pair('v')} y = Resize(x, , v_dq)", "float y")
    assert places_of(scaled, "Q007") == ["v"]


def test_q007_values_that_only_have_the_size_of_a_size_are_none() -> None:
    body = f"n = Shape(x) o = ConstantOfShape(n) {pair('o')} {conv('c', 'o_dq')} y = Relu(c)"
    assert places_of(graph(body), "Q007") == []
    body = f"n = Shape(x) e = Expand(s, n) {pair('e')} {conv('c', 'e_dq')} y = Relu(c)"
    assert places_of(graph(body), "Q007") == []


# ---------------------------------------------------------------------- Q008, Q009


def detector(boxes: str, head: str = "", score: str = "k = Sigmoid(e) o = Transpose(k)") -> onnx.ModelProto:
    """A box head d and a score head e on one tensor; the texts say what follows them."""
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {head or 'd = Conv(r_dq, one)'}"
    text = f"{body} e = Conv(r_dq, two) {score} {boxes}"
    return graph(text, "float[1,8,8,8] y, float[1,8,8,8] o", more="float[8,8,1,1] one, float[8,8,1,1] two")


@pytest.mark.parametrize(
    ("boxes", "found"),
    [
        ("f = Exp(d) y = Mul(f, t)", []),
        (f"{pair('d')} f = Exp(d_dq) y = Mul(f, t)", [("d", "error")]),
        (f"f = Exp(d) {pair('f')} y = Mul(f_dq, t)", [("f", "error")]),
        (f"f = Exp(d) {pair('b')} y = Mul(f, b_dq)", [("b", "error")]),
        (f"{pair('d')} y = Transpose(d_dq)", [("d", "warning")]),
        ("y = Sub(d, r_dq)", []),  # no box value: a convolution reads it
    ],
)
def test_q008_pairs_behind_a_box_head(boxes: str, found: list[tuple[str, str]]) -> None:
    assert [(one.where, one.severity) for one in findings_of(detector(boxes), "Q008")] == found


def test_q008_pairs_behind_a_score_are_not_its_matter() -> None:
    model = detector("y = Exp(d)", score=f"k = Sigmoid(e) {pair('k')} o = Transpose(k_dq)")
    assert places_of(model, "Q008") == [] and set(places_of(model, "Q026")) == {"k"}


def test_q009_a_box_head_in_int8_and_a_score_head_in_int8() -> None:
    head = f"{pair('one')} d = Conv(r_dq, one_dq)"
    (finding,) = findings_of(detector("y = Exp(d)", head), "Q009")
    assert (
        (finding.where, finding.fixable) == ("d", True)
        and "regression head" in finding.message
        and "(unbounded" in finding.message
    )
    assert places_of(detector("y = Exp(d)"), "Q009") == []
    score = f"{pair('two')} e2 = Conv(r_dq, two_dq) k = Sigmoid(e2) o = Transpose(k)"
    assert places_of(detector("y = Exp(d)", score=score), "Q009") == []


def test_q009_a_box_head_that_a_cache_made_int8_is_a_note_and_stays() -> None:
    """`lint` offered to undo on TensorRT 11 what `graft` had taken from the cache; the repaired model lost more."""
    head = f"{pair('one')} d = Conv(r_dq, one_dq)"
    model = detector("y = Exp(d)", head)
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] == "r":
            node.metadata_props.add(key="qdqtool.method", value="cache")
    (finding,) = findings_of(model, "Q009")
    assert (finding.severity, finding.fixable) == ("note", False)
    assert "calibration cache" in finding.message and "evaluate both" in finding.fix
    filled = detector(
        "y = Exp(d)",
        head,
        score=f"{pair('two')} e2 = Conv(r_dq, two_dq) {pair('e2')} k = Sigmoid(e2_dq) o = Transpose(k)",
    )
    for node in filled.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] == "e2":
            node.metadata_props.add(key="qdqtool.method", value="cache")
    (finding,) = findings_of(filled, "Q009")
    assert finding.fixable and "graft with --float-heads regression" in finding.fix


def test_q009_where_the_file_has_the_types_it_is_said_which_verb_writes_fp16() -> None:
    model = detector("y = Exp(d)", f"{pair('one')} d = Conv(r_dq, one_dq)")
    chosen, typed = findings_of(model, "Q009")[0], findings_of(model, "Q009", version=TrtVersion(11, 1, 0))[0]
    assert "lint --fix" in chosen.fix and "FP32" not in chosen.fix
    assert "lint --fix" in typed.fix and "FP32" in typed.fix


# ---------------------------------------------------------------------- Q013, Q026, Q028


def test_q013_one_side_of_a_convolution() -> None:
    weight = classifier(f"{conv('c', 'x')} r = Relu(c) {pair('r')} {conv('a', 'r_dq', 'w2')}")
    (finding,) = findings_of(weight, "Q013")
    assert finding.where == "c" and "no Q/DQ" in finding.message
    activation = classifier(
        f"{pair('x')} c = Conv<pads=[1,1,1,1]>(x_dq, w) r = Relu(c) {pair('r')} {conv('a', 'r_dq', 'w2')}"
    )
    (finding,) = findings_of(activation, "Q013")
    assert finding.where == "c" and "no Q/DQ" in finding.message


def test_q013_names_the_way_that_takes_integers_outside_of_pairs() -> None:
    """The plain `insert` that was advised refuses them."""
    body = f"{conv('c', 'x')} r = Relu(c) {pair('r')} {conv('a', 'r_dq', 'w2')}"
    (whole,) = findings_of(classifier(body), "Q013")
    assert whole.fix.startswith("qdqtool insert --data ")
    moved = body.replace(
        "r_dq = DequantizeLinear(r_dq_q,", "r_t = Transpose<perm=[0,1,2,3]>(r_dq_q) r_dq = DequantizeLinear(r_t,"
    )
    assert moved != body
    (loose,) = [one for one in findings_of(classifier(moved), "Q013") if one.where == "c"]
    assert loose.fix.startswith("qdqtool insert --requantize --data ")


def test_q013_float_heads_and_what_accuracy_keeps_in_float() -> None:
    assert places_of(detector("y = Exp(d)"), "Q013") == []
    model = classifier(
        f"{pair('x')} c = Conv<pads=[1,1,1,1]>(x_dq, w) r = Relu(c) {pair('r')} {conv('a', 'r_dq', 'w2')}"
    )
    facts = {"schema": 1, "tensors": {}, "facts": {"kept": {"c": "it loses most"}}}
    set_metadata(model, "scales", json.dumps(facts))
    assert places_of(model, "Q013") == places_of(model, "Q028") == []


def test_q013_a_product_that_insert_leaves_in_float_beside_fp8() -> None:
    """A convolution of few channels reads what another one reads in FP8: it computes in float, on purpose."""
    net = """g (float[1,32,4,4] x) => (float[1,32,4,4] y, float[1,32,4,4] t)
        <float[32,32,1,1] w, float[8,32,1,1] few, float[32,8,1,1] back>
        { r = Relu(x) c = Conv(r, w) d = Relu(c) y = Conv(d, w) z = Conv(r, few) u = Relu(z) t = Conv(u, back) }"""
    options = InsertOptions(plan=PlanOptions(trt_version=parse("11.4.1"), format="fp8"))
    made = insert(model_of(net, 19), options=options)
    assert ("z", "few-channels-float") in [(one.site, one.rule) for one in made.plan.refusals]
    assert places_of(made.model, "Q013") == []


def test_q013_a_scale_across_what_commutes_is_one() -> None:
    body = f"{pair('x')} m = Transpose<perm=[0,1,3,2]>(x_dq) {conv('a', 'm')}"
    assert places_of(classifier(body), "Q013") == []


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} a = Softmax(r_dq)", ["r"]),
        (f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} m = Transpose(r_dq) a = Tanh(m)", ["r"]),
        (f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} m = Transpose(r_dq) {conv('a', 'm', 'w2')}", []),
        (f"{pair('x')} {conv('c', 'x_dq')} q = Tanh(x_dq) a = Add(q, c)", []),
    ],
)
def test_q026_pairs_that_no_int8_operator_reads(body: str, places: list[str]) -> None:
    found = findings_of(classifier(body), "Q026")
    assert [one.where for one in found] == places and all(one.fixable for one in found)
    assert places_of(classifier(body), "Q026", target="dla") == []


def test_q026_on_an_output_it_cannot_be_repaired() -> None:
    model = graph(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r', to='y')}")
    (finding,) = findings_of(model, "Q026")
    assert (finding.where, finding.fixable) == ("r", False) and finding.fix.startswith("qdqtool insert --requantize")


def test_q026_leaves_to_others_what_they_tell() -> None:
    split = classifier(f"{pair('x')} {conv('c', 'x_dq')} {pair('c')} a = Relu(c_dq)")
    assert places_of(split, "Q001") == ["c"] and places_of(split, "Q026") == []


def test_q028_a_place_without_a_scale() -> None:
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) a = Conv<pads=[1,1,1,1]>(r, w2)"
    (finding,) = findings_of(classifier(body), "Q028")
    assert (finding.where, finding.severity) == ("r", "note") and "Conv a " in finding.message
    plain = classifier("c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) a = Conv<pads=[1,1,1,1]>(r, w2)")
    assert places_of(plain, "Q028") == [], "a plain model wants no scales"


def test_q028_a_pair_on_the_other_side_of_a_concat_will_do() -> None:
    body = (
        f"{pair('x')} {conv('c', 'x_dq')} {conv('d', 'x_dq', 'w2')} k = Concat<axis=1>(c, d) {pair('k')} {pair('wide')}"
    )
    model = classifier(f"{body} a = Conv(k_dq, wide_dq)", more="float[8,16,1,1] wide")
    assert places_of(model, "Q028") == []
    bare = classifier(body.replace(pair("k"), "") + " a = Conv(k, wide_dq)", more="float[8,16,1,1] wide")
    assert places_of(bare, "Q028") == ["c", "d"] and places_of(bare, "Q013") == ["a"]


# ---------------------------------------------------------------------- Q019


SILU = "k = Sigmoid(c) r = Mul(c, k)"


@pytest.mark.parametrize(
    ("version", "act", "weight", "faults"),
    [
        ((8, 5, 2), SILU, "dw", 1),
        ((8, 6, 2), SILU, "dw", 1),
        ((8, 4, 3), SILU, "dw", 0),
        ((10, 3, 0), SILU, "dw", 0),
        ((8, 5, 2), "r = Relu(c)", "dw", 0),
        ((8, 5, 2), SILU, "w", 0),
        (None, SILU, "dw", 0),
    ],
)
def test_q019_depthwise_silu_with_nothing_behind(
    version: tuple[int, int, int] | None, act: str, weight: str, faults: int
) -> None:
    """NVIDIA/TensorRT issue 3385: the error comes where no node follows the pair."""
    groups = 8 if weight == "dw" else 1
    body = f"{pair('x')} {pair(weight)} c = Conv<pads=[1,1,1,1], group={groups}>(x_dq, {weight}_dq) {act}"
    asked = version and TrtVersion(*version)
    last = graph(f"{body} {pair('r', to='y')}")
    assert len(places_of(last, "Q019", version=asked)) == faults
    followed = classifier(f"{body} {pair('r')} {conv('a', 'r_dq', 'w2')}")
    assert places_of(followed, "Q019", version=asked) == []
    mended = graph(f"{body} {pair('r')} y = Identity(r_dq)")
    assert places_of(mended, "Q019", version=asked) == []


def test_a_model_without_anything_is_let_through() -> None:
    model = model_of("net (float[2] x) => (float[2] y) { y = Relu(x) }")
    for code in ("Q001", "Q002", "Q007", "Q008", "Q009", "Q013", "Q026", "Q028"):
        assert findings_of(model, code) == []


@pytest.mark.parametrize(
    ("kind", "places"),
    [(onnx.TensorProto.INT8, ["x"]), (onnx.TensorProto.FLOAT8E4M3FN, []), (onnx.TensorProto.INT4, [])],
)
def test_q026_says_nothing_of_formats_beside_int8(kind: int, places: list[str]) -> None:
    model = classifier(f"{pair('x', zero='other')} a = Relu(x_dq)", opset=21)
    model.graph.initializer.append(onnx.helper.make_tensor("other", kind, [], [0]))
    assert places_of(model, "Q026") == places


# ---------------------------------------------------------------------- what the advice leads to

SIBLING = f"r = Relu(x) {pair('r')} {conv('c', 'r_dq')} k = Conv<pads=[1,1,1,1]>(r, w2) m = Add(c, k) n = Relu(m)"


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (
            "Q013",
            f"{pair('x')} c = Conv<pads=[1,1,1,1]>(x_dq, w) r = Relu(c) {pair('r', 't')} {conv('a', 'r_dq', 'w2')}",
        ),
        ("Q013", f"{conv('c', 'x')} r = Relu(c) {pair('r', 't')} {conv('a', 'r_dq', 'w2')}"),
        ("Q028", f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) a = Conv<pads=[1,1,1,1]>(r, w2)"),
        ("Q039", f"{SIBLING} {pair('n')} {conv('a', 'n_dq')}"),
    ],
)
def test_plain_insert_places_what_is_missing_and_keeps_the_scales_that_are_there(code: str, body: str) -> None:
    model = classifier(body)
    (finding, *_) = findings_of(model, code)
    assert "qdqtool insert --data" in finding.fix and "--requantize" not in finding.fix
    data = [{"x": np.random.default_rng(0).normal(size=(1, 8, 8, 8)).astype(np.float32)}]
    made = qdqtool.insert(model, data=data, options=qdqtool.InsertOptions(rest="fp32")).model
    assert not findings_of(made, code)
    before, after = GraphView(model.graph), GraphView(made.graph)
    for name, pairs in before.pairs.items():
        scales = [
            view.array(one.dequantize.inputs[1]) for view, one in ((before, pairs[0]), (after, after.pairs[name][0]))
        ]
        assert scales[0].tobytes() == scales[1].tobytes()


def test_q013_leaves_weights_in_int4_alone() -> None:
    text = "w = DequantizeLinear(q, s) m = MatMul(x, w) y = Relu(m)"
    model = model_of(f"net (float[2,8] x) => (float[2,4] y) {{ {text} }}", 21, 10)
    for kind, found in ((onnx.TensorProto.INT4, []), (onnx.TensorProto.INT8, ["m"])):
        model.graph.ClearField("initializer")
        model.graph.initializer.extend(
            [onnx.helper.make_tensor("q", kind, [8, 4], [1] * 32), onnx.numpy_helper.from_array(np.float32(0.1), "s")]
        )
        assert places_of(model, "Q013") == found
