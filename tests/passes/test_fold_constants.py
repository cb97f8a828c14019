# SPDX-License-Identifier: Apache-2.0
"""Constants that operators compute, stored: the same numbers under the same names, and what stays as it is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from qdqtool import AmpOptions, InsertOptions, PeelOptions, amp, insert, peel
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.fold_constants import FoldedConstants, fold_constants, unfolded_note
from qdqtool.rulebook import load_rules
from tests.ort_session import PLAIN, session_of

pytest.importorskip("onnxruntime")
HEAD = "float[1,4,6,6] x) => (float[1,4,6,6] z"
STORED = (
    "float[6,6] k = {%s}, int64[2,1] rows = {1,4}, float[2,6] u = {%s}, float[4,4,1,1] w = {%s}, int64[2] to = {0,1}"
)
STORED %= tuple(",".join(str(n % 7 - 3) for n in range(count)) for count in (36, 12, 16))
MASKED = "m = ScatterND(k, rows, u) n = Unsqueeze(m, to) c = Conv(x, w) z = Add(c, n)"


def model(body: str, more: str = "", head: str = HEAD) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({head}) <{STORED}{more}> {{ {body} }}'
    proto = parser.parse_model(text)
    for node in proto.graph.node:
        node.name = node.output[0]
    return proto


def folded(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, FoldedConstants]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = fold_constants(Model(copy))
    onnx.checker.check_model(copy)
    return copy, found


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_what_comes_of_constants_is_stored_under_its_name_and_the_results_are_the_same() -> None:
    before = model(MASKED)
    after, found = folded(before)
    assert found == FoldedConstants(2, ("n",))
    assert re.match("folded 2 operators .* 1 constant, such as n$", found.note())
    assert operators(after) == ["Conv", "Add"]
    stored = {one.name: numpy_helper.to_array(one) for one in after.graph.initializer}
    assert set(stored) == {"w", "n"} and stored["n"].shape == (1, 1, 6, 6)
    expected = numpy_helper.to_array(before.graph.initializer[0]).copy()
    expected[[1, 4]] = numpy_helper.to_array(before.graph.initializer[2])
    assert np.array_equal(stored["n"][0, 0], expected)
    x = np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)
    (one,), (two,) = (session_of(proto, PLAIN).run(None, {"x": x}) for proto in (before, after))
    assert one.tobytes() == two.tobytes()


def test_a_constant_that_others_read_stays_and_constant_nodes_go_with_their_last_reader() -> None:
    body = "f = Constant<value = float {2.0}>() m = Mul(k, f) c = Conv(x, w) a = Add(c, m) z = Add(a, k)"
    after, found = folded(model(body))
    assert found == FoldedConstants(1, ("m",)) and operators(after) == ["Conv", "Add", "Add"]
    assert {"k", "m"} < {one.name for one in after.graph.initializer}


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv(x, w) z = Add(c, k)",
        "i = Identity(k) c = Conv(x, w) z = Add(c, i)",
        "r = RandomNormalLike(k) c = Conv(x, w) z = Add(c, r)",
        "q = QuantizeLinear(k, s, p) d = DequantizeLinear(q, s, p) t = Transpose(d) c = Conv(x, w) z = Add(c, t)",
        "e = Expand(k, huge) r = ReduceMax<axes=[0],keepdims=0>(e) c = Conv(x, w) z = Add(c, r)",
        "h = NonZero(k) g = Cast<to=1>(h) r = ReduceMax<keepdims=1>(g) c = Conv(x, w) z = Add(c, r)",
    ],
)
def test_what_stays_as_it_is(body: str) -> None:
    proto = model(body, ", float s = {0.5}, int8 p = {0}, int64[3] huge = {1000000,6,6}")
    after, found = folded(proto)
    assert found == FoldedConstants(0, ()) and found.note().endswith("nothing was folded")
    assert after.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)


def test_an_output_of_the_graph_keeps_its_node() -> None:
    after, found = folded(model("m = ScatterND(k, rows, u) z = Transpose(m)", head="float[1] x) => (float[6,6] z"))
    assert found == FoldedConstants(1, ("m",)) and operators(after) == ["Transpose"]


def test_what_a_body_reads_is_stored() -> None:
    body = (
        "m = ScatterND(k, rows, u) c = Conv(x, w) "
        "z = If(b) <then_branch = t () => (float[1,4,6,6] y) { y = Add(c, m) }, "
        "else_branch = e () => (float[1,4,6,6] y) { y = Identity(c) }>"
    )
    after, found = folded(model(body, ", bool b = {1}"))
    assert found == FoldedConstants(1, ("m",)) and operators(after) == ["Conv", "If"]


def test_the_note_names_the_operators_that_the_target_does_not_fold() -> None:
    (note,) = unfolded_note(GraphView(model(MASKED).graph), load_rules("rtx"))
    assert re.match(r"1 operator on constants \(ScatterND\)", note)
    assert unfolded_note(GraphView(model(MASKED).graph), load_rules("gpu")) == []
    for body in ("m = Mul(k, k) c = Conv(x, w) z = Add(c, m)", "c = Conv(x, w) z = ScatterND(c, rows4, u)"):
        proto = model(body, ", int64[2,4] rows4 = {0,0,0,0,0,0,0,1}")
        assert unfolded_note(GraphView(proto.graph), load_rules("rtx")) == []


def test_insert_folds_first_and_peel_gives_the_source_back(tmp_path: Path) -> None:
    source, written = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model(MASKED), source)
    plain = insert(source, output=written, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none")))
    assert any("--fold-constants" in note for note in plain.notes)
    done = insert(
        source, output=written, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none"), fold_constants=True)
    )
    assert re.match("folded 2 operators .* 1 constant, such as n$", done.notes[0])
    assert not any("--fold-constants" in note for note in done.notes)
    insert(source, output=written, options=InsertOptions(plan=PlanOptions(float_heads="none"), fold_constants=True))
    options = PeelOptions(trt_version="8502", source=source, allow_estimated=True)
    assert peel(written, options=options, output=tmp_path / "p.onnx", cache=tmp_path / "p.cache").model.is_file()
    assert (tmp_path / "p.onnx").read_bytes() == source.read_bytes()


def test_amp_folds_first_whether_or_not_the_types_are_there() -> None:
    options = AmpOptions(fold_constants=True, assume_range=100.0)
    done = amp(model(MASKED), options=options)
    assert done.notes[0].startswith("folded 2 operators") and "ScatterND" not in operators(done.model)
    typed = amp(model(MASKED), options=AmpOptions(assume_range=100.0)).model
    again = amp(typed, options=options)
    assert again.notes[0].startswith("folded") and "ScatterND" not in operators(again.model)
    x = np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)
    (one,), (two,) = (session_of(proto, PLAIN).run(None, {"x": x}) for proto in (typed, again.model))
    assert np.allclose(one, two, rtol=1e-3, atol=1e-2)
