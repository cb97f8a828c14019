# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What is said of a whole model for the DLA: verdicts, the free batch, sizes, Q/DQ, findings. The limits: test_dla_limits.py."""

from __future__ import annotations

import re
from typing import Any

import onnx
import pytest

import qdqtool
from qdqtool.dla.assignment import dla_findings, in_float32
from qdqtool.dla.rules import load_dla_rules, usual_platform
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.lint import lint
from tests.graphs import model_of, view_of
from tests.precision.typed_graphs import with_types

V8_5, V8_0, V11_4 = TrtVersion(8, 5, 2), TrtVersion(8, 0, 1), TrtVersion(11, 4, 1)
NET = "g (float[{0},3,16,16] x) => (float[{0},4] z) <float[8,3,3,3] w, float[4,8] v, float[4] b> {{ a = Conv<pads=[1,1,1,1]>(x, w) c = Relu(a) p = GlobalAveragePool(c) f = Flatten(p) z = Gemm<transB=1>(f, v, b) }}"


def devices(text: str, **options: Any) -> dict[str, str]:
    return {one.node: one.device for one in dla_findings(view_of(text), V8_5, **options).verdicts}


def test_each_node_has_a_verdict_with_its_subgraph() -> None:
    report = dla_findings(view_of(NET.format(1)), V8_5)
    assert [(one.node, one.device, one.subgraph) for one in report.verdicts] == [
        ("a", "dla", 1), ("c", "dla", 1), ("p", "gpu", 0), ("f", "gpu", 0), ("z", "dla", 2),
    ]  # fmt: skip
    assert [one.name for one in report.fallbacks] == ["p", "f"] and len(report.on_dla) == 3
    (saving,) = report.subgraphs.savings
    assert saving.nodes == ("p", "f") and saving.left == 1
    assert report.most is not None and report.most.most == 4 and not report.too_many


@pytest.mark.parametrize("batch", ["1", "N"])
def test_a_size_that_is_computed_from_sizes_is_fixed(batch: str) -> None:
    text = f"""g (float[{batch},4,8,8] x) => (float[M,K,A,B] z) <int64[1] one = {{0}}, int64[3] rest = {{4,4,16}}>
    {{ s = Shape(x) n = Gather<axis=0>(s, one) t = Concat<axis=0>(n, rest) r = Reshape(x, t) z = Sigmoid(r) }}"""
    verdicts = dla_findings(view_of(text), V8_5).verdicts
    assert not any(reason.rule == "dla-static" for one in verdicts for reason in one.reasons)
    assert verdicts[-1].device == "dla"


def test_a_free_batch_is_taken_for_one() -> None:
    free = dla_findings(view_of(NET.format("N")), V8_5)
    assert free.free_batch and [one.device for one in free.verdicts] == ["dla", "dla", "gpu", "gpu", "dla"]
    assert not dla_findings(view_of(NET.format(1)), V8_5).free_batch


def test_constants_and_sizes_leave_no_layer() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { s = Shape(x) i = Identity(x) k = Constant<value_float = 2.0>() c = Cast<to=1>(s) y = Relu(i) z = Mul(y, k) }"
    assert devices(text) == {"s": "none", "i": "none", "k": "none", "c": "none", "y": "dla", "z": "dla"}


def test_too_many_subgraphs() -> None:
    cut = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(10))
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] t9) <float[1] u> {{ {cut} }}"
    assert dla_findings(view_of(text), V8_5).too_many  # 5, where TensorRT 8 holds 4
    assert not dla_findings(view_of(text), TrtVersion(10, 3, 0)).too_many  # 16
    assert not dla_findings(view_of(text), TrtVersion(7, 1, 3)).too_many  # 8


def test_what_too_many_subgraphs_mean_is_told_with_what_cuts_the_graph() -> None:
    cut = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(10))
    more = " ".join(f"u{i} = Relu({'t8' if not i else f'u{i - 1}'})" for i in range(3))
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] t9, float[1,4,8,8] u2) <float[1] u> {{ {cut} {more} }}"
    report = dla_findings(view_of(text), V8_5)
    assert report.at_most_on_dla == 4 + 1 + 1 + 1, "the largest subgraph, t8 and the three after it, and three others"
    first, cuts = report.overflow()
    assert re.match("5 DLA subgraphs, .* Orin holds 4 .*; at most 7 of the 8 nodes ", first)
    assert re.match(".* Exp .4 places, .* t1.: qdqtool lint MODEL --target dla --trt-version ", cuts)
    assert "--fix" not in cuts
    assert dla_findings(view_of(text), TrtVersion(10, 3, 0)).overflow() == [], "16 are held there"


def test_fixes_are_told_with_too_many_subgraphs_only_where_there_is_something_to_rewrite() -> None:
    cut = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(9))
    resize = 'z = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(t8, , k)'
    text = f"g (float[1,4,8,8] x) => (float[1,4,4,4] z) <float[4] k = {{1, 1, 0.5, 0.5}}> {{ {cut} {resize} }}"
    report = dla_findings(view_of(text), V8_5)
    assert report.rewritable == {"z"}
    assert re.search("--fix Q030 -o NEW writes 1 of .*shuffles, Slices, Resizes ", report.overflow()[-1])


def test_slices_of_channels_can_be_rewritten_where_there_are_too_many_subgraphs() -> None:
    cut = " ".join(
        f"a{i}, b{i} = Split<axis=1>({'x' if not i else f't{i - 1}'}) t{i} = Concat<axis=1>(b{i}, a{i})"
        for i in range(6)
    )
    report = dla_findings(view_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] t5) <float[1] u> {{ {cut} }}"), V8_0)
    assert report.too_many and report.rewritable == {f"a{i}" for i in range(6)}


# NvInfer.h 8.4.1 is the first that says what a slice must keep to; the guide of 8.4 is the first at hand with Leaky ReLU.
ACTED = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { a = Relu(x) l = LeakyRelu(a) z = Relu(l) }"
HALF = "g (float[1,4,8,8] x) => (float[1,2,8,8] y) <float[1] u> { a, b = Split<axis=1>(x) y = Add(a, b) }"


def test_what_rests_on_a_guess_is_marked_with_what_holds_without_it() -> None:
    report = dla_findings(view_of(ACTED), TrtVersion(8, 2, 1))
    (one,) = report.guessed
    assert (one.node, one.device, one.guessed_rules) == ("l", "dla", ("dla-leaky-relu-8-0",))
    assert (len(report.subgraphs.members), report.parts_without_guesses) == (1, 2)
    assert re.match("by a guess, .*1 LeakyRelu .rule dla-leaky-relu-8-0. on the DLA, 2 subgraphs if ", report.guesses())
    assert report.summary()[-1] == report.guesses()
    facts = report.to_json()
    assert (facts["guessed"], facts["subgraphs_without_guesses"]) == (1, 2)
    assert [node["status"] for node in facts["nodes"]] == ["documented", "guess", "documented"]
    assert [node["layer"] for node in facts["nodes"]][1] == "dla-leaky-relu-8-0"


@pytest.mark.parametrize("text", [ACTED, HALF])
def test_what_documents_say_is_no_guess(text: str) -> None:
    report = dla_findings(view_of(text), TrtVersion(8, 5, 2))
    assert report.guessed == () and report.guesses() == "" and "guess" not in " ".join(report.summary())


def test_that_a_version_has_no_layer_is_a_guess_where_its_first_version_is_one() -> None:
    report = dla_findings(view_of(HALF), TrtVersion(8, 0, 1))
    (one,) = report.guessed
    assert (one.device, one.guessed_rules, one.reasons[0].status) == ("gpu", ("dla-slice-8-2",), "guess")
    assert report.guesses().endswith("1 Split (rule dla-slice-8-2) on the GPU")
    found = findings(HALF, TrtVersion(8, 0, 1))
    assert re.match("Split .* Split on Xavier .*rule dla-slice-8-2, a guess", found[0].message)


def test_a_fallback_that_a_document_says_beside_a_guess_is_sure() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,256] z) <int64[2] k = {1, 256}> { a = Relu(x) z = Reshape(a, k) }"
    report = dla_findings(view_of(text), TrtVersion(8, 0, 1))
    assert [one.rule for one in report.fallbacks[0].reasons] == ["dla-no-shuffle", "dla-shuffle-four"]
    assert report.guessed == ()


def test_q_dq_are_seen_through() -> None:
    model = model_of(NET.format(1))
    placed = qdqtool.insert(model, options=qdqtool.InsertOptions(plan=qdqtool.PlanOptions(target="dla")))
    plain, quantized = (
        lint(m, qdqtool.LintOptions("dla", V8_5, select=("Q030", "Q031"))) for m in (model, placed.model)
    )
    assert [one.key for one in plain.findings] == [one.key for one in quantized.findings]
    assert plain.dla is not None and quantized.dla is not None
    assert [one.device for one in plain.dla.verdicts] == [one.device for one in quantized.dla.verdicts]


# ---------------------------------------------------------------- findings


def findings(text: str, version: TrtVersion = V8_5, **options: Any) -> list[qdqtool.Finding]:
    asked = qdqtool.LintOptions("dla", version, select=("Q030", "Q031", "Q032"), **options)
    return list(lint(model_of(text), asked).findings)


def test_fallbacks_and_cuts_are_findings() -> None:
    found = {one.code: one for one in reversed(findings(NET.format(1)))}
    assert set(found) == {"Q030", "Q031"}
    assert found["Q030"].where == "p" and found["Q030"].severity == "warning"
    assert found["Q030"].message.startswith("GlobalAveragePool") and "rule dla-no-global-pool" in found["Q030"].message
    assert "AveragePool" in found["Q030"].fix
    assert re.search(" with f: .* 1 of 2 subgraphs$", found["Q031"].message)


def test_a_graph_that_the_dla_runs_whole_has_no_finding() -> None:
    assert findings("g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { z = Relu(x) }") == []


def test_more_loadables_than_a_core_holds_are_a_finding() -> None:
    cut = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(10))
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] t9) <float[1] u> {{ {cut} }}"
    (one,) = (one for one in findings(text) if one.code == "Q032")
    assert re.match(r"5 DLA subgraphs, .* 4 .*\(rule dla-loadables-8\)", one.message)
    assert not [one for one in findings(text, TrtVersion(10, 3, 0)) if one.code == "Q032"]


SILU = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w> {{ c = Conv(x, w) s = Sigmoid(c) {0} z = Conv(m, w) }}"
PRODUCT = SILU.format("m = Mul(c, s)")


def ranges_found(model: Any, version: TrtVersion = V8_5) -> list[tuple[str, str]]:
    found = lint(model, qdqtool.LintOptions("dla", version, select=("Q034",))).findings
    return [(one.where, one.severity) for one in found]


def with_pairs(text: str, *scales: float) -> Any:
    """The graph with a pair on `c` and on `s`, of these scales."""
    constants = ", ".join(f"float k{i} = {{{scale}}}" for i, scale in enumerate(scales))
    pairs = " ".join(
        f"{name}q = QuantizeLinear({name}, k{i}, zero) {name}d = DequantizeLinear({name}q, k{i}, zero)"
        for i, name in enumerate("cs")
    )
    text = text.replace("w> {", f"w, {constants}, int8 zero = {{0}}> {{")
    return model_of(text.replace("m = Mul(c, s)", f"{pairs} m = Mul(cd, sd)"))


def test_a_product_of_two_ranges_is_a_finding() -> None:
    assert ranges_found(with_pairs(PRODUCT, 0.5, 0.25)) == [("m", "warning")]
    assert ranges_found(with_pairs(PRODUCT, 0.5, 0.5)) == []
    assert ranges_found(model_of(PRODUCT)) == [("m", "note")], "no scale is known yet"
    assert ranges_found(model_of(SILU.format("m = Add(c, s)"))) == [], "an Add is given one"
    assert ranges_found(model_of(SILU.format("m = Mul(c, w)"))) == [], "a constant has none"


def test_a_product_beside_the_dla_may_have_two_ranges() -> None:
    text = SILU.format("e = Exp(c) m = Div(e, s)")
    assert ranges_found(model_of(text)) == [], "8.5.2 has no Div"
    assert ranges_found(model_of(text), TrtVersion(10, 3, 0)) == [("m", "note")]


def test_what_is_to_be_done_about_two_ranges_depends_on_the_version() -> None:
    model = with_pairs(PRODUCT, 0.5, 0.25)
    typed = with_types(model, TypeAssignment(onnx.TensorProto.FLOAT16, for_dla=True))
    cases = (
        (model, V8_5, "peel --target dla --emit trtexec"),
        (model, TrtVersion(8, 2, 1), "peel --target dla --emit polygraphy-script"),  # whose trtexec names no layers
        (typed, V11_4, "without Q/DQ"),
    )
    for file, version, todo in cases:
        (one,) = lint(file, qdqtool.LintOptions("dla", version, select=("Q034",))).findings
        assert todo in one.fix and "their scales are 0.5 and 0.25" in one.message
    half = onnx.ModelProto.FromString(model.SerializeToString())
    next(node for node in half.graph.node if node.op_type == "Mul").input[1] = "s"
    half = with_types(half, TypeAssignment(onnx.TensorProto.FLOAT16, for_dla=True))
    assert ranges_found(half, V11_4) == [], "it computes in float"


def test_the_gpu_is_not_asked_what_the_dla_can() -> None:
    result = lint(model_of(NET.format(1)), qdqtool.LintOptions("gpu"))
    assert result.dla is None and not {"Q030", "Q031", "Q032"} & {one.code for one in result.findings}


def test_as_json() -> None:
    facts = dla_findings(view_of(NET.format(1)), V8_5, "orin").to_json()
    assert (facts["platform"], facts["trt_version"], facts["subgraphs"], facts["loadables"]) == ("orin", "8.5.2", 2, 4)
    assert facts["savings"] == [{"nodes": ["p", "f"], "subgraphs": 1}] and facts["free_batch"] is False
    assert facts["nodes"][2]["reasons"][0]["rule"] == "dla-no-global-pool"


# ---------------------------------------------------------------- rules


def test_the_usual_platform() -> None:
    assert (usual_platform(V8_0), usual_platform(TrtVersion(8, 4, 0))) == ("xavier", "orin")


def test_the_dla_is_back_in_11_4_1() -> None:
    report = dla_findings(view_of(NET.format(1)), TrtVersion(11, 4, 1))
    assert report.platform == "orin" and [one.device for one in report.verdicts] == ["dla", "dla", "gpu", "gpu", "dla"]
    with pytest.raises(QdqError, match=r"11\.4\.1 .*AGX Orin .*; choose orin"):
        dla_findings(view_of(NET.format(1)), TrtVersion(11, 4, 1), "xavier")


def test_what_is_refused() -> None:
    view = view_of(NET.format(1))
    with pytest.raises(QdqError, match=r"no DLA .*; 11\.4\.1"):
        dla_findings(view, TrtVersion(10, 9, 0))
    with pytest.raises(QdqError, match="not support Orin"):
        dla_findings(view, V8_0, "orin")
    with pytest.raises(QdqError, match=r"'thor' .*xavier or orin"):
        load_dla_rules(V8_5, "thor")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('ops = ["Conv"]\nplatforms = ["thor"]', "platform 'thor'"),
        ('check = "static"\nmost = 1.5', "most is 1.5"),
        ('check = "static"\ninsted = "x"', "unknown key 'insted', did you mean 'instead'"),
        ("", "no '(check|ops)'"),
    ],
)
def test_rules_that_are_not_of_the_schema(text: str, reason: str, tmp_path: Any, monkeypatch: Any) -> None:
    kind = "layer" if "ops" in text else "limit"
    common = 'name = "mine"\nwhy = "w"\nsee = "s"\nstatus = "guess"'
    (tmp_path / "dla.toml").write_text(f"schema = 1\n[[{kind}]]\n{common}\n{text}\n")
    monkeypatch.setattr("qdqtool.dla.rules.rules_folder", lambda: tmp_path)
    with pytest.raises(QdqError, match=reason):
        load_dla_rules(V8_5, "orin")


def test_every_rule_says_why_and_where_from() -> None:
    rules = load_dla_rules(TrtVersion(10, 3, 0), "orin")
    names = [rule.name for rule in (*rules.layers, *rules.limits)]
    assert len(names) == len(set(names)) > 50
    for rule in (*rules.layers, *rules.limits):
        assert rule.why.endswith(".") and rule.see and rule.status in ("documented", "measured", "guess")


def test_a_channel_shuffle_cuts_and_a_projection_does_not() -> None:
    shuffle = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { a = Relu(x) s = Constant<value_ints = [1,2,2,8,8]>() r = Reshape(a, s) t = Transpose<perm=[0,2,1,3,4]>(r) k = Constant<value_ints = [1,4,8,8]>() y = Reshape(t, k) z = Relu(y) }"
    report = dla_findings(view_of(shuffle), V8_5)
    assert [one.node for one in report.fallbacks] == ["r", "t", "y"] and len(report.subgraphs.members) == 2
    assert report.subgraphs.savings[0].nodes == ("r", "t", "y")


def test_two_lines_say_whether_the_dla_is_for_it() -> None:
    found = dla_findings(view_of(NET.format(1)), V8_5).summary()
    assert len(found) == 3 and re.search("Orin, TensorRT 8.5.2, .*3 of 5 nodes in 2 subgraphs .* 4", found[0])
    assert found[1].startswith("on the GPU: 1 GlobalAveragePool, 1 Flatten; qdqtool lint MODEL --target dla ")
    assert found[2].startswith("Xavier runs this version, too: ") and "--platform xavier says" in found[2]
    assert len(dla_findings(view_of(NET.format(1)), TrtVersion(10, 3, 0)).summary()) == 2, (
        "JetPack 5 was the last of Xavier"
    )
    cut = " ".join(f"t{i} = {'Exp' if i % 2 else 'Relu'}({'x' if not i else f't{i - 1}'})" for i in range(10))
    many = dla_findings(view_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] t9) <float[1] u> {{ {cut} }}"), V8_5)
    assert "too many subgraphs" in many.summary()[1]
    whole = dla_findings(view_of("g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[1] u> { y = Relu(x) }"), V8_5)
    assert whole.summary()[1].startswith("no node")


def test_what_the_file_has_in_fp32_falls_back_where_types_are_the_files() -> None:
    report = dla_findings(view_of(NET.format(1)), V11_4, float32={"c"})
    assert [(one.node, [why.rule for why in one.reasons]) for one in report.fallbacks if one.op == "Relu"] == [
        ("c", ["dla-fp32"])
    ]
    assert not [one for one in dla_findings(view_of(NET.format(1)), V8_5, float32={"c"}).fallbacks if one.op == "Relu"]


def test_types_are_read_off_a_file_with_pairs_or_halves() -> None:
    plain = model_of(NET.format(1))
    half = with_types(plain, TypeAssignment(onnx.TensorProto.FLOAT16, frozenset({"c", "z"})))
    assert in_float32(Model(half), V11_4) == {"c", "z"}, "z is an output, and made by a Cast where it is half"
    assert in_float32(Model(with_types(plain, TypeAssignment(onnx.TensorProto.FLOAT16))), V11_4) == set()
    assert in_float32(Model(plain), V11_4) == set(), "its types are still to come"
    assert in_float32(Model(half), V8_5) == set(), "the builder chooses them"
