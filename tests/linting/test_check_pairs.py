# SPDX-License-Identifier: Apache-2.0
"""What lint says of a pair in itself: each check lets a sound graph through and stops at the fault."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import model_of
from tests.linting.quantized import classifier, conv, findings_of, graph, pair, places_of

SOUND = classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")


@pytest.mark.parametrize("code", ["Q003", "Q004", "Q005", "Q006", "Q022", "Q024", "Q025"])
def test_a_sound_graph_is_let_through(code: str) -> None:
    assert findings_of(SOUND, code) == []


def with_bias(kind: np.dtype[np.generic] | type = np.int32) -> onnx.ModelProto:
    """A convolution whose bias is stored as integers after a DequantizeLinear."""
    model = classifier(f"{pair('x')} bias = DequantizeLinear(stored, s) {conv('c', 'x_dq', extra='bias')} a = Relu(c)")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8).astype(kind), "stored"))
    return model


def test_q003_a_q_that_nobody_reads_can_be_repaired() -> None:
    unread = classifier(f"xq = QuantizeLinear(x, s, z) {conv('c', 'x')} a = Relu(c)")
    (finding,) = findings_of(unread, "Q003")
    assert (finding.where, finding.severity, finding.fixable) == ("x", "error", True)


V10_3, V10_15 = TrtVersion(10, 3, 0), TrtVersion(10, 15, 0)


@pytest.mark.parametrize(
    ("between", "version", "severity"),
    [
        ("Transpose(xq)", None, "note"),
        ("MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(xq)", None, "note"),
        ("Transpose(xq)", V10_15, "note"),
        ("Transpose(xq)", V10_3, "error"),
        ("Relu(xq)", None, "error"),
    ],
)
def test_q003_integers_that_only_move_are_a_note_where_the_parser_was_seen_to_take_them(
    between: str, version: TrtVersion | None, severity: str
) -> None:
    model = graph(f"xq = QuantizeLinear(x, s, z) r = {between} y = DequantizeLinear(r, s, z)")
    first, second = findings_of(model, "Q003", version=version)
    assert (first.where, first.severity, second.where, second.severity) == ("x", severity, "y", severity)
    assert ("no DQ" if severity == "error" else "moves, ") in first.message
    assert f" {between.partition('<')[0].partition('(')[0]} r " in second.message


@pytest.mark.parametrize("body", ["y = Relu(x)", "y = DequantizeLinear(q, s, z)"])
@pytest.mark.parametrize(("version", "severity"), [(None, "note"), (V10_15, "note"), (V10_3, "error")])
def test_q003_integers_that_are_an_output(body: str, version: TrtVersion | None, severity: str) -> None:
    model = graph(f"q = QuantizeLinear(x, s, z) {body}")
    model.graph.output.append(helper.make_tensor_value_info("q", onnx.TensorProto.INT8, None))
    (finding,) = findings_of(model, "Q003", version=version)
    assert (finding.where, finding.severity) == ("x", severity)


def test_q003_is_an_error_for_the_dla_whatever_moves_the_integers() -> None:
    model = graph("xq = QuantizeLinear(x, s, z) r = Transpose(xq) y = DequantizeLinear(r, s, z)")
    assert {one.severity for one in findings_of(model, "Q003", target="dla")} == {"error"}


def test_q003_what_quantizes_to_fp4_itself_is_no_loose_end() -> None:
    model = graph("f, t = TRT_FP4DynamicQuantize(x, s) y = DequantizeLinear(f, s)")
    assert places_of(model, "Q003") == []
    model.graph.node[0].op_type = "Elsewhere"
    assert places_of(model, "Q003") == ["y"]


def test_q003_integers_that_another_operator_reads() -> None:
    model = graph("xq = QuantizeLinear(x, s, z) y = DequantizeLinear(xq, s, z) n = Shape(xq)")
    (finding,) = findings_of(model, "Q003")
    assert finding.where == "x" and "Shape n reads" in finding.message


def test_q004_stops_at_zero_points_that_are_not_zero_and_not_at_the_middle_of_uint8() -> None:
    assert places_of(classifier(f"{pair('x', zero='five')} {conv('c', 'x_dq')} a = Relu(c)"), "Q004") == ["x"]
    assert places_of(classifier(f"{pair('x', zero='middle')} {conv('c', 'x_dq')} a = Relu(c)"), "Q004") == []


def test_q005_uint8_is_repairable_where_its_zero_point_is_in_the_middle() -> None:
    (finding,) = findings_of(classifier(f"{pair('x', zero='u')} {conv('c', 'x_dq')} a = Relu(c)"), "Q005")
    assert (finding.where, finding.fixable) == ("x", False) and "uint8" in finding.message
    (finding,) = findings_of(classifier(f"{pair('x', zero='middle')} {conv('c', 'x_dq')} a = Relu(c)"), "Q005")
    assert finding.fixable and "qdqtool lint --fix" in finding.fix


@pytest.mark.parametrize(("zero", "reported"), [("u", True), ("middle", False)])
def test_q005_tells_that_uint8_with_the_zero_point_0_clips(zero: str, reported: bool) -> None:
    (finding,) = findings_of(classifier(f"{pair('x', zero=zero)} {conv('c', 'x_dq')} a = Relu(c)"), "Q005")
    assert ("clips everything above 127 times the scale" in finding.message) is reported and finding.severity == "error"


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        (onnx.TensorProto.FLOAT8E5M2, ["x"]),
        (onnx.TensorProto.FLOAT8E4M3FNUZ, ["x"]),
        (onnx.TensorProto.UINT4, ["x"]),
        (onnx.TensorProto.INT32, ["x"]),
        (onnx.TensorProto.FLOAT8E4M3FN, []),
    ],
)
def test_q005_stops_at_types_that_the_importer_does_not_have(kind: int, places: list[str]) -> None:
    model = classifier(f"{pair('x', zero='other')} {conv('c', 'x_dq')} a = Relu(c)", opset=21)
    model.graph.initializer.append(helper.make_tensor("other", kind, [], [0]))
    assert places_of(model, "Q005") == places


def test_q005_leaves_an_int32_bias_to_q006() -> None:
    assert places_of(with_bias(), "Q005") == []


def test_q005_a_q_without_a_zero_point_means_two_things() -> None:
    model = classifier("xq = QuantizeLinear(x, s) xd = DequantizeLinear(xq, s) " + conv("c", "xd") + " a = Relu(c)")
    (finding,) = findings_of(model, "Q005")
    assert (finding.where, finding.severity) == ("x", "warning") and "no zero point" in finding.message


def test_q005_stored_integers_without_a_zero_point_are_of_their_own_type() -> None:
    body = f"{pair('x')} wd = DequantizeLinear(stored, s) c = Conv<pads=[1,1,1,1]>(x_dq, wd) a = Relu(c)"
    for kind, expected in ((np.int8, []), (np.uint8, ["wd"])):
        model = classifier(body)
        model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), kind), "stored"))
        assert places_of(model, "Q005") == expected


def test_q005_leaves_int4_and_fp8_alone() -> None:
    for kind in (onnx.TensorProto.INT4, onnx.TensorProto.FLOAT8E4M3FN):
        model = classifier(f"{pair('x', zero='other')} {conv('c', 'x_dq')} a = Relu(c)", opset=21)
        model.graph.initializer.append(helper.make_tensor("other", kind, [], [0]))
        assert places_of(model, "Q005") == places_of(model, "Q004") == []


@pytest.mark.parametrize(("kind", "places"), [(onnx.TensorProto.INT4, ["x"]), (onnx.TensorProto.FLOAT8E4M3FN, [])])
def test_q004_int4_is_symmetric_too(kind: int, places: list[str]) -> None:
    model = classifier(f"{pair('x', zero='other')} {conv('c', 'x_dq')} a = Relu(c)", opset=21)
    model.graph.initializer.append(helper.make_tensor("other", kind, [], [1]))
    assert places_of(model, "Q004") == places


def test_q006_an_int32_bias_and_a_rounded_one() -> None:
    (finding,) = findings_of(with_bias(), "Q006")
    assert (finding.where, finding.fixable) == ("bias", True) and "int32 with a DQ" in finding.message
    model = classifier(f"{pair('x')} {pair('b')} {conv('c', 'x_dq', extra='b_dq')} a = Relu(c)")
    (finding,) = findings_of(model, "Q006")
    assert (finding.where, finding.severity) == ("b", "warning") and "a pair" in finding.message
    assert places_of(classifier(f"{pair('x')} {conv('c', 'x_dq', extra='b')} a = Relu(c)"), "Q006") == []


@pytest.mark.parametrize(("kind", "severity"), [(np.int32, "error"), (np.int8, "warning")])
def test_q006_int8_is_built_and_int32_is_refused(kind: type, severity: str) -> None:
    (finding,) = findings_of(with_bias(kind), "Q006")
    assert (finding.severity, finding.fixable) == (severity, True) and np.dtype(kind).name in finding.message


def test_q022_an_integer_input_is_no_loose_end() -> None:
    model = model_of(
        "net (int8[1,8,8,8] x) => (float[1,8,8,8] y) <float s = {0.1}, int8 z = {0}> { y = DequantizeLinear(x, s, z) }"
    )
    assert places_of(model, "Q022") == ["x"] and places_of(model, "Q003") == []


def test_q024_pairs_in_bodies_and_functions() -> None:
    inner = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["o"]),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, None)],
    )
    model = graph("y = Relu(x) keep = Mul(s, s) n = Cast<to=3>(z)")
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["r"], "choice", then_branch=inner, else_branch=inner))
    assert sorted(places_of(model, "Q024")) == ["choice/else_branch", "choice/then_branch"]
    text = "f (x, s, z) => (y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    function = onnx.parser.parse_function(f'<domain: "local", opset_import: ["" : 17]> {text}')
    plain = graph("y = Relu(x)")
    plain.functions.append(function)
    (finding,) = findings_of(plain, "Q024")
    assert (finding.where, finding.severity) == ("f", "warning")


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_q025_integer_operators_of_any_domain(domain: str) -> None:
    model = graph("y = Relu(x)")
    model.graph.node.append(helper.make_node("QLinearConv", ["x"], ["q"], "integers", domain=domain))
    assert places_of(model, "Q025") == ["integers"]


ARITHMETIC = "m = Div(x, s) i = Round(m) k = Clip(i, lo, hi)"


@pytest.mark.parametrize(
    ("body", "more", "fixable"),
    [
        (f"{ARITHMETIC} y = Mul(k, s)", "float lo = {-128}, float hi = {127}", True),
        (f"{ARITHMETIC} y = Mul(k, s)", "float lo = {0}, float hi = {255}", False),
        (f"{ARITHMETIC} y = Mul(k, s)", "float lo = {-512}, float hi = {511}", False),
        (f"{ARITHMETIC} y = Mul(k, t)", "float lo = {-128}, float hi = {127}", None),
    ],
    ids=["symmetric", "asymmetric", "ten bits", "no fake quantization"],
)
def test_fake_quantization_as_arithmetic_is_found_and_symmetric_one_repaired(
    body: str, more: str, fixable: bool | None
) -> None:
    model = graph(body, more=more)
    found = findings_of(model, "Q059")
    assert [(one.where, one.fixable) for one in found] == ([] if fixable is None else [("y", fixable)])
    if fixable:
        fixed = lint(model, LintOptions(fix=("all",)))
        assert "Q059" in {one.code for one in fixed.fixed} and "Q059" not in {one.code for one in fixed.findings}
        assert [node.op_type for node in fixed.model.graph.node] == ["QuantizeLinear", "DequantizeLinear"]
