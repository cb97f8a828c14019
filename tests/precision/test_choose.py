# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The choice as a value: what it says of itself, how it grows, what record it came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.precision.cast_cut import reasons_beside
from qdqtool.precision.casts import count_casts
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types, recorded_choice
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.float_graph import float_graph
from qdqtool.precision.reasons import FloatReason
from qdqtool.precision.value_ranges import assumed_ranges
from tests.graphs import SMALL_NET, model_of
from tests.precision.choices import choice_of, floats
from tests.precision.typed_graphs import with_types
from tests.steps import assert_linear

ATTENTION = """g (float[1,6,8] x) => (float[1,6,8] y) <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float s = {0.35}>
{
 q = MatMul(x, wq)
 k = MatMul(x, wk)
 v = MatMul(x, wv)
 t = Transpose<perm = [0, 2, 1]>(k)
 a = MatMul(q, t)
 m = Mul(a, s)
 p = Softmax(m)
 o = MatMul(p, v)
 r = MatMul(o, wo)
 y = Add(r, x)
}"""


def test_nothing_is_fp32_where_all_values_fit() -> None:
    choice = choice_of(ATTENTION)
    assert not floats(choice) and choice.casts == choice.plain_casts == 2 and choice.half == 10
    assert choice.headline() == "10 operators in FP16, 0 in FP32, 2 Casts"


def test_the_rest_may_be_bf16() -> None:
    choice = choice_of(ATTENTION, TypeOptions(TensorProto.BFLOAT16), a=1e6)
    assert choice.headline() == "10 operators in BF16, 0 in FP32, 2 Casts"


def test_large_scores_keep_what_makes_and_reads_them_in_fp32() -> None:
    choice = choice_of(ATTENTION, a=1e6)
    assert {key for key, rule in floats(choice).items() if rule == "range"} == {"a", "m"}
    assert choice.rows()[0] == ("operator", "type", "rule", "reason")
    assert repr(choice).startswith("<TypeChoice: ") and "in FP32" in repr(choice)


def test_more_operators_grow_what_saves_casts_anew() -> None:
    choice = choice_of(ATTENTION, a=1e6)
    more = choice.with_float32({"p": FloatReason("loss", "asked for")})
    assert more.reasons["p"].rule == "loss" and set(floats(choice)) <= set(floats(more)) | {"p"}
    assert more.casts == more.graph.casts(more.assignment.float32)


@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("named", [{}, {"a": 1e6}, {"q": 1e6, "r": 1e6}, {"x": 1e6}])
def test_what_is_chosen_passes_the_type_rules_with_the_casts_that_were_told(
    half_io: bool, named: dict[str, float]
) -> None:
    choice = choice_of(ATTENTION, TypeOptions(half_io=half_io), **named)
    typed = with_types(model_of(ATTENTION), choice.assignment)
    assert not infer_types(typed).conflicts and count_casts(typed) == choice.casts


def test_a_recorded_choice_has_the_same_operators_and_casts() -> None:
    choice = choice_of(ATTENTION, a=1e6)
    again = recorded_choice(Model(model_of(ATTENTION)), choice.assignment)
    assert (again.casts, set(again.reasons), again.operators) == (choice.casts, set(choice.reasons), choice.operators)
    assert {one.rule for one in again.reasons.values()} == {"recorded"}


ENDS = """g (float[1,2,2,8] x) => (float[1,2,2,4] a, float[1,2,2,4] b, float[1,2,2,8] u) <float[8,8] w, float k = {1e6}, int64[2] parts = {4, 4}> {
 c = MatMul(x, w) s, t = Split<axis = 3>(c, parts) a = Sigmoid(s) b = Transpose<perm=[0,1,2,3]>(t) u = Mul(x, k) }"""


BETWEEN = """g (float[1,64,64,8] x) => (float[1,64,64,8] y) <float[8,8] w, float[8,8] v, float k = {1e5}> {
 a = MatMul(x, w) m = Sigmoid(a) t = Tanh(m) b = Mul(t, k) n = Sigmoid(b) y = MatMul(n, v) }"""


def test_what_saves_casts_says_what_is_fp32_beside_it() -> None:
    """It said `between operators in FP32` of all operators in FP32 that there were."""
    choice = choice_of(BETWEEN, a=1e6, b=1e5)
    assert floats(choice)["t"] == "casts"
    assert choice.reasons["t"].text.startswith("Casts to half ")
    assert re.search(r"m \(a .* 1e\+06; 65504 / 2 .*\), b \(b .* 1e\+05; 65504 / 2 .*\)$", choice.reasons["t"].text)
    ends = choice_of(ENDS, u=1e6)
    assert {key for key, rule in floats(ends).items() if rule == "casts"} == {"s", "a", "b"}
    (text,) = {one.text for one in ends.reasons.values() if one.rule == "casts"}
    assert re.match("Casts to half .*: the output a, the output b$", text)


HEADS = """g (float[1,8,4,4] x) => (float[1,2,8] y) <float[2,8,1,1] w, float s = {0.1}, int8 z = {0}, float k = {1e6}, int64[3] to = {1,2,8}> {
 q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z)
 c = Conv<strides=[1,2]>(d, wd) t = Transpose<perm=[0,1,3,2]>(c) r = Reshape(t, to) y = Mul(r, k) }"""


def test_an_int8_layer_is_no_cause_of_fp32_beside_it_as_a_cast_there_costs_nothing() -> None:
    """`it saves Casts beside what is FP32: 317 (an INT8 layer)` was said of a Transpose between it and a Softmax."""
    model = model_of(HEADS)
    graph = float_graph(Model(model), TensorProto.FLOAT16, {})
    required = {"c": FloatReason("int8", "inside"), "y": FloatReason("range", "y is large")}
    (text,) = {one.text for one in reasons_beside(graph, {"t", "r"}, required).values()}
    assert re.match(r"Casts to half .*: y \(y is large\)$", text)


def test_a_recorded_choice_says_why_where_the_record_does() -> None:
    choice = choice_of(ATTENTION, a=1e6)
    again = recorded_choice(Model(model_of(ATTENTION)), choice.assignment)
    assert {key: one.text for key, one in again.reasons.items()} == {
        key: one.text for key, one in choice.reasons.items()
    }
    silent = dataclasses.replace(choice.assignment, reasons={})
    told = {one.text for one in recorded_choice(Model(model_of(ATTENTION)), silent).reasons.values()}
    assert len(told) == 1 and "chosen before" in told.pop()


def test_operators_on_sizes_have_no_choice() -> None:
    text = "g (float[N,4] x) => (float[N,4] y, int64[2] s) { s = Shape(x) y = Relu(x) }"
    assert set(choice_of(text).operators) == {"y"}


def test_a_choice_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice_of(SMALL_NET).casts = 0  # type: ignore[misc]


@pytest.mark.slow
def test_work_grows_with_the_nodes() -> None:
    def make(size: int) -> Callable[[], TypeChoice]:
        nodes = [f"a{at} = Exp(a{at - 1}) b{at} = Log(a{at}) c{at} = Add(a{at}, b{at})" for at in range(1, size + 1)]
        nodes = [one.replace(f"a{at} = Exp(a{at - 1})", f"a{at} = Exp(c{at - 1})") for at, one in enumerate(nodes, 1)]
        text = f"g (float[4] c0) => (float[4] y) {{ {' '.join(nodes)} y = Relu(c{size}) }}"
        model = model_of(text)
        options = TypeOptions(keep_fp32=(r"^b\d*5$",)) if size >= 5 else None
        return lambda: choose_types(Model(model), assumed_ranges(2.0), options)

    assert_linear(make, 40)


@pytest.mark.parametrize(("scale", "both"), [("float s2 = {0.1}", True), ("float[4] s2 = {0.1, 0.1, 0.1, 0.1}", False)])
def test_int8_products_of_one_tensor_have_one_type_where_a_weight_has_one_scale(scale: str, both: bool) -> None:
    zero, axis = ("int8 z2 = {0}", "") if both else ("int8[4] z2 = {0, 0, 0, 0}", "<axis=1>")
    model = model_of(
        f"""net (float[2,4] x) => (float[2,4] y, float[2,4] w) <float[4,4] a, float[4,4] b, {scale}, {zero}, float s = {{0.1}}, int8 z = {{0}}> {{
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        e = QuantizeLinear{axis}(a, s2, z2) f = DequantizeLinear{axis}(e, s2, z2)
        g = QuantizeLinear{axis}(b, s2, z2) h = DequantizeLinear{axis}(g, s2, z2)
        c = MatMul(d, f) y = Softmax(c) p = MatMul(d, h) w = Softmax(p) }}"""
    )
    chosen = choose_types(Model(model), assumed_ranges(8.0), TypeOptions(keep_fp32=("^c$",)))
    told = chosen.reasons["p"].text if "p" in chosen.reasons else ""
    assert told.startswith("c, an INT8 product ") is both


PAIRS = """g (float[1,4,8,8] x) => (float[1,4,4,4] y) <float s = {0.1}, int8 z = {0}, float[4,4,1,1] w, float[4] sw = {0.1, 0.1, 0.1, 0.1}, int8[4] zw = {0, 0, 0, 0}>
{
 xq = QuantizeLinear(x, s, z)
 xd = DequantizeLinear(xq, s, z)
 wq = QuantizeLinear<axis = 0>(w, sw, zw)
 wd = DequantizeLinear<axis = 0>(wq, sw, zw)
 a = Conv(xd, wd)
 r = Relu(a)
 rq = QuantizeLinear(r, s, z)
 rd = DequantizeLinear(rq, s, z)
 p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(rd)
 pq = QuantizeLinear(p, s, z)
 pd = DequantizeLinear(pq, s, z)
 y = Sigmoid(pd)
}"""


@pytest.mark.parametrize(("for_dla", "wide"), [(False, {"a", "r", "p", "y"}), (True, set())])
def test_a_dla_has_no_fp32_between_pairs(for_dla: bool, wide: set[str]) -> None:
    model = model_of(PAIRS)
    choice = choose_types(Model(model), assumed_ranges(10.0), TypeOptions(for_dla=for_dla))
    assert choice.assignment.float32 == wide and choice.assignment.for_dla is for_dla
    types = infer_types(with_types(model, choice.assignment)).types
    assert {key for key in "arpy" if types.get(f"{key}_fp16", types[key]) == TensorProto.FLOAT} == wide
    assert infer_types(with_types(model, choice.assignment)).conflicts == ()


def test_values_keep_an_operator_in_fp32_for_a_dla_too_and_nothing_beside_it() -> None:
    choice = choice_of(PAIRS, TypeOptions(for_dla=True), r=1e6)
    assert floats(choice) == {"r": "range"}
    assert choice.with_float32({"p": FloatReason("loss", "why")}).assignment.float32 == {"r", "p"}
