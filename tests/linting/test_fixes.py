# SPDX-License-Identifier: Apache-2.0
"""Repairs: the finding is gone, none is new, and the float function is the same to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.edit import set_metadata
from qdqtool.verbs.lint import LintResult, lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import V8_6
from tests.linting.quantized import classifier, conv, graph, pair
from tests.ort_session import PLAIN, session_of

PAIR = ("QuantizeLinear", "DequantizeLinear")
WIDE = "float[8,16,1,1] wide, float[8,8,1,1] one"


def joined(*scales: str) -> onnx.ModelProto:
    left, right, behind = scales
    body = f"{pair('x')} {conv('c', 'x_dq')} {conv('d', 'x_dq', 'w2')} {pair('c', left)} {pair('d', right)}"
    body += f" k = Concat<axis=1>(c_dq, d_dq) {pair('k', behind)} {pair('wide')} a = Conv(k_dq, wide_dq)"
    return classifier(body, more=WIDE)


def integer_bias() -> onnx.ModelProto:
    model = classifier(f"{pair('x')} bias = DequantizeLinear(stored, s) {conv('c', 'x_dq', extra='bias')} a = Relu(c)")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8, dtype=np.int32), "stored"))
    return model


def stored_uint8() -> onnx.ModelProto:
    body = f"{pair('x')} wd = DequantizeLinear(stored, s, middle) c = Conv<pads=[1,1,1,1]>(x_dq, wd) a = Relu(c)"
    model = classifier(body)
    values = np.random.default_rng(5).integers(0, 256, (8, 8, 3, 3)).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(values, "stored"))
    return model


def box_head(boxes: str) -> onnx.ModelProto:
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {pair('one')} d = Conv(r_dq, one_dq) {boxes}"
    return graph(body, more=WIDE)


SUBJECTS: dict[str, list[onnx.ModelProto]] = {
    "Q001": [
        classifier(f"{pair('x')} {conv('c', 'x_dq')} {pair('c')} n = BatchNormalization(c_dq, g, b, b, v) a = Relu(n)"),
        classifier(f"{pair('x')} {conv('c', 'x_dq')} {pair('c')} k = Sigmoid(c_dq) a = Mul(c_dq, k)"),
    ],
    "Q002": [
        classifier(
            f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {conv('d', 'r_dq', 'w2')} {pair('d', 't')}"
            f" e = Add(d_dq, x_dq) h = Relu(e) {pair('h')} {conv('a', 'h_dq')}"
        )
    ],
    "Q003": [classifier(f"xq = QuantizeLinear(x, s, z) {conv('c', 'x')} a = Relu(c)")],
    "Q005": [
        classifier(f"{pair('x', zero='middle')} {conv('c', 'x_dq')} a = Relu(c)"),
        stored_uint8(),
    ],
    "Q006": [
        integer_bias(),
        classifier(f"{pair('x')} {pair('b')} {conv('c', 'x_dq', extra='b_dq')} a = Relu(c)"),
    ],
    "Q007": [
        classifier(f"{pair('x')} {conv('c', 'x_dq')} n = Shape(x_dq) a = Reshape(c, n)"),
        graph(f"n = Shape(x) m = Cast<to=1>(n) {pair('m')} k = Cast<to=7>(m_dq) y = Reshape(x, k)"),
    ],
    "Q008": [
        box_head(f"{pair('d')} f = Exp(d_dq) {pair('f')} y = Mul(f_dq, t)"),
        box_head(f"{pair('d')} {pair('d_dq', 't', to='e')} y = Exp(e)"),
    ],
    "Q009": [box_head("y = Exp(d)")],
    "Q018": [classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")],
    "Q020": [
        joined("s", "t", "s"),
        joined("s", "s", "t"),
        classifier(f"{pair('x')} {pair('x', 't', to='o')} {conv('c', 'x_dq')} {conv('d', 'o', 'w2')} a = Add(c, d)"),
    ],
    "Q026": [
        classifier(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} a = Softmax(r_dq)"),
        classifier(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {pair('r_dq', to='e')} a = Tanh(e)"),
    ],
}
CASES = [(code, number) for code, models in SUBJECTS.items() for number in range(len(models))]


def repaired(model: onnx.ModelProto, *codes: str) -> LintResult:
    """The model with some codes repaired; it is itself unchanged."""
    before = model.SerializeToString()
    result = lint(model, LintOptions(fix=codes))
    assert model.SerializeToString() == before
    return result


def in_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with pairs on floats turned into Identity; stored integers keep their DequantizeLinear."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    stored = {tensor.name for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        if node.op_type in PAIR and not (node.op_type == PAIR[1] and node.input[0] in stored):
            del node.input[1:], node.attribute[:]
            node.op_type = "Identity"
    del copy.graph.value_info[:]
    return copy


def outputs_of(model: onnx.ModelProto) -> list[bytes]:
    """What a model gives for seeded values, by onnxruntime without fusion."""
    session = session_of(model, PLAIN)
    x = np.random.default_rng(1).normal(size=(1, 8, 8, 8)).astype(np.float32)
    return [np.asarray(value).tobytes() for value in session.run(None, {session.get_inputs()[0].name: x})]


@pytest.mark.parametrize(("code", "number"), CASES)
def test_the_finding_is_gone_none_is_new_and_the_float_function_is_the_same(code: str, number: int) -> None:
    model = SUBJECTS[code][number]
    before = {finding.key for finding in lint(model).findings}
    assert any(place[0] == code for place in before), "the model has the fault"
    result = repaired(model, code)
    after = {finding.key for finding in result.findings}
    assert not [place for place in after if place[0] == code]
    assert after <= before, after - before
    assert {finding.key for finding in result.fixed} == before - after
    assert result.notes[0].startswith(f"{code}: ")
    onnx.checker.check_model(result.model)
    assert outputs_of(in_float(model)) == outputs_of(in_float(result.model))


@pytest.mark.parametrize("code", ["Q002", "Q008", "Q020", "Q026"])
def test_repairing_everything_leaves_nothing_that_can_be(code: str) -> None:
    result = repaired(SUBJECTS[code][-1], "all")
    assert not [one for one in result.findings if one.fixable and one.code != "Q017"]
    again = repaired(result.model, "all")
    assert again.model.SerializeToString() == result.model.SerializeToString() and again.notes == ()


def test_only_the_codes_that_were_asked_for_are_repaired() -> None:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} {pair('c')} r = Relu(c_dq) {pair('r')} a = Softmax(r_dq)")
    result = repaired(model, "Q001")
    assert {one.code for one in result.fixed} == {"Q001"}
    assert "Q026" in {one.code for one in result.findings}


def test_constants_that_nobody_reads_any_more_go_and_others_stay() -> None:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} {pair('c', 't')} a = Relu(c_dq)")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "unused"))
    names = {tensor.name for tensor in repaired(model, "Q001").model.graph.initializer}
    assert {tensor.name for tensor in model.graph.initializer} - names == {"t"}


def test_the_largest_scale_wins_and_shared_ones_of_others_stay() -> None:
    model = joined("s", "t", "s")
    done = repaired(model, "Q020").model
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in done.graph.initializer}
    scales = {n.input[0]: stored[n.input[1]].tobytes() for n in done.graph.node if n.op_type == PAIR[0]}
    large, small = np.float32(0.2).tobytes(), np.float32(0.1).tobytes()
    assert [scales[name] for name in ("c", "d", "k", "x", "w")] == [large, large, large, small, small]


def test_a_q_with_two_dqs_keeps_one_scale() -> None:
    body = f"{pair('x')} {pair('x', 't', to='o')} again = DequantizeLinear(o_q, t, z)"
    model = classifier(
        f"{body} {conv('c', 'x_dq')} {conv('d', 'again', 'w2')} {conv('e', 'o')} f2 = Add(c, d) a = Add(e, f2)"
    )
    done = repaired(model, "Q020").model
    of = {node.output[0]: node.input[1] for node in done.graph.node if node.op_type in PAIR}
    assert len({of[name] for name in ("o_q", "o", "again", "x_dq", "x_dq_q")}) <= 2
    assert of["o_q"] == of["o"] == of["again"] and of["x_dq"] == of["x_dq_q"]
    assert "Q029" not in {one.code for one in lint(done).findings}


def test_a_pair_on_an_output_stays() -> None:
    model = graph(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r', to='y')}")
    result = repaired(model, "all")
    assert [node.output[0] for node in result.model.graph.node][-1] == "y"
    assert "Q026" in {one.code for one in result.findings}


def test_a_pair_that_a_body_reads_stays() -> None:
    model = graph(f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} y = Relu(r)")
    body = helper.make_graph(
        [helper.make_node("Relu", ["r_dq"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["u"], "choice", then_branch=body, else_branch=body))
    assert "r_dq" in {name for node in repaired(model, "Q026").model.graph.node for name in node.output}


def test_a_head_that_shares_its_input_reads_the_same_pair_on() -> None:
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {pair('one')} d = Conv(r_dq, one_dq) y = Exp(d)"
    model = graph(f"{body} {conv('e', 'r_dq', 'w2')} o = Sigmoid(e)", "float[1,8,8,8] y, float[1,8,8,8] o", more=WIDE)
    done = repaired(model, "Q009").model
    head = next(node for node in done.graph.node if node.output[0] == "d")
    assert list(head.input) == ["r_dq", "one"]
    alone = repaired(box_head("y = Exp(d)"), "Q009").model
    assert next(list(node.input) for node in alone.graph.node if node.output[0] == "d") == ["r", "one"]


def with_colon() -> onnx.ModelProto:
    model = classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")
    for node in model.graph.node:
        node.input[:] = [{"c": "c:0", "x": "x:0"}.get(name, name) for name in node.input]
        node.output[:] = [{"c": "c:0"}.get(name, name) for name in node.output]
    model.graph.input[0].name = "x:0"
    return model


def test_names_are_changed_only_when_asked_for_by_code() -> None:
    model = with_colon()
    assert "Q017" in {one.code for one in repaired(model, "all").findings}
    result = repaired(model, "Q017")
    assert [one.code for one in result.fixed] == ["Q017"]
    assert result.model.graph.input[0].name == "x_0"
    assert "x:0 is now x_0" in result.notes[0] and "cache" in result.notes[0]
    assert outputs_of(in_float(model)) == outputs_of(in_float(result.model))


def test_names_stay_where_the_model_holds_the_scales_of_insert() -> None:
    model = with_colon()
    set_metadata(model, "scales", "{}")
    assert repaired(model, "Q017").model.graph.input[0].name == "x:0"


def test_nodes_are_named_after_their_first_outputs_and_named_ones_stay() -> None:
    model = graph("r = Relu(x) q = Relu(r) y = Relu(q)")
    model.graph.node[2].name = "r"
    names = [node.name for node in repaired(model, "Q018").model.graph.node]
    assert names[1:] == ["q", "r"] and names[0] not in ("", "q", "r")


def test_codes_without_a_repair_are_refused() -> None:
    for code, word in (("Q004", "has no safe repair"), ("Q999", "no check has this code")):
        with pytest.raises(QdqError, match=word):
            lint(SUBJECTS["Q001"][0], LintOptions(fix=(code,)))


def test_a_repair_for_the_dla_leaves_pairs_inside_groups() -> None:
    model = SUBJECTS["Q001"][0]
    result = lint(model, LintOptions("dla", V8_6, fix=("all",)))
    assert "c_dq" in {name for node in result.model.graph.node for name in node.output}


def test_what_insert_makes_needs_no_repair() -> None:
    plain = classifier("c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) a = Conv<pads=[1,1,1,1]>(r, w2)")
    for number, node in enumerate(plain.graph.node):
        node.name = f"n{number}"
    made = verbs.insert(plain).model
    result = repaired(made, "all")
    assert result.model.SerializeToString() == made.SerializeToString() and result.fixed == ()


@pytest.mark.slow
def test_what_a_finding_says_that_lint_fix_does_can_be_fixed(shared: Path) -> None:
    files = sorted((*(shared / "corpus" / "qdq").glob("*.onnx"), *(shared / "formats").rglob("*.onnx")))
    assert files
    for file in files:
        for target in ("gpu", "dla", "rtx"):
            try:
                found = lint(file, LintOptions(target=target)).findings
            except QdqError:
                continue  # a file that no verb takes
            broken = [one.code for one in found if one.fix.startswith("qdqtool lint --fix") and not one.fixable]
            assert not broken, (file.name, target, broken)
