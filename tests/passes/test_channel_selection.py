# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Channel shuffles that become 1x1 convolutions: the same bits come out, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import LintOptions
from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types
from qdqtool.graph.view import GraphView
from qdqtool.passes.channel_selection import find_channel_selections, find_channel_slices
from qdqtool.trtversion import parse
from qdqtool.verbs.lint import lint
from tests.graphs import model_of
from tests.ort_session import session_of

V8 = parse("8.0.1")
W = "<float[8,8,1,1] w, int64[5] five = {1, 2, 4, 6, 6}, int64[4] four = {1, 8, 6, 6}, int64[3] three = {4, 2, 36}, int64[5] parts = {2, 1, 4, 6, 6}, int64 zero = {0}, int64 one = {1}, float[4,4,1,1] v>"
WHOLE = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {W} {{ c = Conv(x, w) a = Reshape(c, five) b = Transpose<perm=[0,2,1,3,4]>(a) d = Reshape(b, four) y = Conv(d, w) }}"
UNIT = f"g (float[1,8,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] z) {W} {{ c = Conv(x, w) a = Reshape(c, three) b = Transpose<perm=[1,0,2]>(a) d = Reshape(b, parts) e = Gather<axis=0>(d, zero) f = Gather<axis=0>(d, one) y = Relu(e) z = Conv(f, v) }}"


def selections(text: str) -> dict[str, list[int]]:
    model = model_of(text, 13)
    found = find_channel_selections(GraphView(model.graph), known_types(Model(model)))
    return {name: order.tolist() for one in found for name, order in one.made.items()}


def run(model: onnx.ModelProto) -> list[bytes]:
    x = np.random.default_rng(1).normal(size=(1, 8, 6, 6)).astype(np.float32)
    return [one.tobytes() for one in session_of(model).run(None, {"x": x})]


def with_weights(text: str) -> onnx.ModelProto:
    model = model_of(text, 13)
    values = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.name in "wv":
            array = values.normal(size=tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def test_the_order_of_the_channels_is_found() -> None:
    assert selections(WHOLE) == {"d": [0, 4, 1, 5, 2, 6, 3, 7]}
    assert selections(UNIT) == {"e": [0, 2, 4, 6], "f": [1, 3, 5, 7]}


OTHERS = {
    "turned": WHOLE.replace("perm=[0,2,1,3,4]", "perm=[0,2,1,4,3]"),
    "read elsewhere": WHOLE.replace("y = Conv(d, w)", "k = Relu(a) y = Conv(d, w)"),
    "free batch": WHOLE.replace("float[1,8,6,6] x", "float[N,8,6,6] x"),
    "other reader": UNIT.replace("f = Gather<axis=0>(d, one)", "s = Relu(d) f = Gather<axis=0>(s, one)"),
    "halves": WHOLE.replace("float[1,8,6,6] x", "float16[1,8,6,6] x").replace("float[8,8,1,1] w", "float16[8,8,1,1] w"),
    "given out": WHOLE.replace("float[1,8,6,6] y)", "float[1,8,6,6] y, float[1,2,4,6,6] a)"),
    "computed index": UNIT.replace("float[1,8,6,6] x)", "float[1,8,6,6] x, int64 at)").replace("d, zero", "d, at"),
    "index out of range": UNIT.replace("int64 zero = {0}", "int64 zero = {2}"),
    "another axis": UNIT.replace("Gather<axis=0>(d, one)", "Gather<axis=1>(d, one)"),
    "two batches": WHOLE.replace("four = {1, 8, 6, 6}", "four = {2, 4, 6, 6}").replace("float[8,8,1,1] w", "float[8,8,1,1] w, float[4,4,1,1] u").replace("Conv(d, w)", "Conv(d, u)").replace("float[1,8,6,6] y", "float[2,4,6,6] y"),
}  # fmt: skip


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_taken_for_a_shuffle(text: str) -> None:
    assert selections(text) == {}


@pytest.mark.parametrize("text", [WHOLE, UNIT], ids=["whole", "unit"])
def test_the_same_bits_come_out_of_a_graph_that_the_dla_runs_whole(text: str) -> None:
    model = with_weights(text)
    before = run(model)
    plain = lint(model, LintOptions("dla", V8, select=("Q030", "Q032")))
    assert {one.fixable for one in plain.findings} == {True} and "--fix Q030" in plain.findings[0].fix
    fixed = lint(model, LintOptions("dla", V8, fix=("Q030",)))
    assert any("channel shuffles are" in note for note in fixed.notes)
    assert run(fixed.model) == before
    onnx.checker.check_model(fixed.model, full_check=True)
    assert fixed.dla is not None and not fixed.dla.fallbacks and len(fixed.dla.subgraphs.members) == 1
    read = {name for node in fixed.model.graph.node for name in node.input}
    shuffled = {"five", "four"} if text == WHOLE else {"three", "parts", "zero", "one"}
    assert not shuffled & read and not shuffled & {one.name for one in fixed.model.graph.initializer}


def test_it_is_done_only_where_its_code_is_given() -> None:
    model = with_weights(WHOLE)
    assert not any("shuffle" in note for note in lint(model, LintOptions("dla", V8, fix=("all",))).notes)
    assert not any(
        one.fixable
        for one in lint(model_of(OTHERS["turned"], 13), LintOptions("dla", V8)).findings
        if one.code == "Q030"
    )


HALVES = "g (float[1,8,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] z, float[1,3,6,6] u) <float[8,8,1,1] w, float[4,4,1,1] v, int64[1] low = {0}, int64[1] mid = {4}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}, int64[1] two = {2}, int64[1] neg = {-6}, float[3,3,1,1] k> { c = Conv(x, w) a = Slice(c, low, mid, axis) b = Slice(c, mid, end, axis) y = Conv(a, v) z = Conv(b, v) p = Slice(c, neg, end, axis, two) u = Conv(p, k) }"
PARTED = "g (float[1,8,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] z) <float[8,8,1,1] w, float[4,4,1,1] v> { c = Conv(x, w) a, b = Split<axis=1>(c) y = Conv(a, v) z = Conv(b, v) }"


@pytest.mark.parametrize("text", [HALVES, PARTED])
def test_slices_of_channels_become_convolutions_where_the_dla_has_no_slice(text: str) -> None:
    model = with_weights(text.replace("float[3,3,1,1] k", "float[3,3,1,1] v2").replace("Conv(p, k)", "Conv(p, v2)"))
    asked = LintOptions("dla", V8, platform="xavier", select=("Q030", "Q031"), fix=("Q030",))
    done = lint(model, asked)
    assert done.model is not None and run(done.model) == run(model)
    assert {node.op_type for node in done.model.graph.node} == {"Conv"} and not done.findings
    assert done.dla is not None and len(done.dla.subgraphs.members) == 1
    assert {one.name for one in done.model.graph.initializer}.isdisjoint({"low", "mid", "end", "axis", "two", "neg"})
    newer = lint(model, LintOptions("dla", parse("8.5.2"), platform="xavier", fix=("Q030",)))
    kept = {node.op_type for node in newer.model.graph.node} if newer.model is not None else set()
    assert kept & {"Slice", "Split"}, "the DLA of 8.5 runs them"


def test_slices_of_other_axes_are_left() -> None:
    text = HALVES.replace("int64[1] axis = {1}", "int64[1] axis = {3}").replace("float[1,4,6,6]", "float[N,M,K,L]")
    model = model_of(text.replace("float[1,3,6,6] u", "float[N,M,K,L] u"), 13)
    assert find_channel_slices(GraphView(model.graph), known_types(Model(model))) == []


CUT = "g (float[1,8,6,6] x, int64[1] at) => (float[N,M,K,L] y) <int64[1] low = {0}, int64[1] mid = {4}, int64[1] axis = {1}, int64[2] both = {1, 0}, int64[4] firsts = {0, 4, 0, 0}, int64[4] lasts = {1, 8, 6, 6}, int64[2] parts = {4, 4}> { c = Relu(x) BODY y = Relu(a) }"
SLICES = {
    "axes left out": ("a = Slice(c, firsts, lasts)", {"a": [4, 5, 6, 7]}),
    "axis from the end": ("a, b = Split<axis=-3>(c)", {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}),
    "a part without a name": ("a,  = Split<axis=1>(c, parts)", {}),
    "computed start": ("a = Slice(c, at, mid, axis)", {}),
    "computed end": ("a = Slice(c, low, at, axis)", {}),
    "fewer ends than axes": ("a = Slice(c, low, mid, both)", {}),
    "none is taken": ("a = Slice(c, mid, mid, axis)", {}),
    "rows": ("a, b = Split<axis=2>(c)", {}),
}


@pytest.mark.parametrize(("body", "wanted"), SLICES.values(), ids=SLICES)
def test_a_slice_is_taken_for_channels_where_all_its_bounds_say_so(body: str, wanted: dict[str, list[int]]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {CUT.replace("BODY", body)}')
    found = find_channel_slices(GraphView(model.graph), known_types(Model(model)))
    assert {name: order.tolist() for one in found for name, order in one.made.items()} == wanted


def test_what_a_repair_leaves_and_brings_is_counted() -> None:
    """79 of 85 findings were said to be repaired with 7 left: a cut has another first node once shuffles are gone."""
    cut = "y = Conv(d, w)".replace("d", "p")
    model = with_weights(WHOLE.replace("y = Conv(d, w)", f"s = Softmax<axis=1>(d) p = Sin(s) {cut}"))
    before = lint(model, LintOptions("dla", V8))
    result = lint(model, LintOptions("dla", V8, fix=("Q030",)))
    assert [one.code for one in result.new] == ["Q031"]
    assert len(before.findings) - len(result.fixed) + len(result.new) == len(result.findings)
    count = len(result.fixed)
    assert result.repaired() == f"{count} findings repaired, {len(result.findings)} left, 1 of them new (Q031)"
    whole = lint(with_weights(WHOLE), LintOptions("dla", V8, select=("Q030",), fix=("Q030",)))
    assert whole.repaired().startswith("3 findings repaired")
    assert "nothing was repaired" in lint(model, LintOptions("dla", V8, fix=("Q001",))).repaired()
