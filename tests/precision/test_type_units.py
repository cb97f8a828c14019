# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Operators that are one operator written out: one type for all parts, and onnxruntime takes every choice as it optimizes."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types
from qdqtool.precision.reasons import TOGETHER, FloatReason
from qdqtool.precision.value_ranges import assumed_ranges
from tests.graphs import model_of
from tests.ort_session import OPTIMIZED, session_of
from tests.precision.choices import choice_of, floats
from tests.precision.typed_graphs import with_types

HEAD = (
    "g (float[1,6,8] x) => (float[1,6,8] y) <float[8,8] w, float[8,8] u, float[8] s, float[8] b, float[8] c, float e = {1e-5}, float two = {2},"
    " int64[1] last = {-1}, float root = {1.41421356}, float one = {1}, float half = {0.5}, float three = {3}, float k = {0.044715}, float t = {0.79788456}>"
)
MEAN = "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m)"
ROOT = "v = ReduceMean<axes=[-1]>(p) a = Add(v, e) q = Sqrt(a)"
SCALED = "g = Mul(n, s) z = Add(g, b)"
# What normalizes or activates h to z -> the parts that have one type, the body and what scales behind it apart.
FORMS = {
    "layer norm": (f"{MEAN} p = Pow(d, two) {ROOT} n = Div(d, q) {SCALED}", ["mdpvaqn", "gz"]),
    "layer norm by Mul": (f"{MEAN} p = Mul(d, d) {ROOT} n = Div(d, q) {SCALED}", ["mdpvaqn", "gz"]),
    "layer norm, two Subs": (f"{MEAN} o = Sub(h, m) p = Pow(o, two) {ROOT} n = Div(d, q) {SCALED}", ["mdopvaqn", "gz"]),
    "layer norm by Reciprocal": (f"{MEAN} p = Pow(d, two) {ROOT} r = Reciprocal(q) n = Mul(d, r) {SCALED}", ["mdpvaqrn", "gz"]),
    "layer norm without scale": (f"{MEAN} p = Pow(d, two) {ROOT} z = Div(d, q)", ["mdpvaqz"]),
    "RMS norm": (f"p = Pow(h, two) {ROOT} n = Div(h, q) z = Mul(n, s)", ["pvaqn"]),
    "RMS norm by Reciprocal": (f"p = Mul(h, h) {ROOT} r = Reciprocal(q) n = Mul(h, r) z = Mul(s, n)", ["pvaqrn"]),
    "softmax": ("m = ReduceMax<axes=[-1]>(h) d = Sub(h, m) p = Exp(d) v = ReduceSum(p, last) z = Div(p, v)", ["mdpvz"]),
    "GELU": ("d = Div(h, root) p = Erf(d) a = Add(p, one) m = Mul(h, a) z = Mul(m, half)", ["dpamz"]),
    "GELU by tanh": ("p = Pow(h, three) m = Mul(p, k) a = Add(h, m) d = Mul(a, t) q = Tanh(d) v = Add(q, one) n = Mul(h, half) z = Mul(n, v)", ["pmadqvnz"]),
    "SiLU": ("q = Sigmoid(h) z = Mul(h, q)", ["qz"]),
}  # fmt: skip
# Exporters write this to FP32, too; onnxruntime 1.32.0 refuses it in FP16 whatever the types around are.
WITH_CAST = {
    "layer norm with a Cast": (
        f"{MEAN} f = Cast<to=1>(d) p = Pow(f, two) {ROOT} n = Div(d, q) {SCALED}",
        ["mdpvaqn", "gz"],
    )
}
# What stands around: a product alone, sums that are normalized and go on (SkipLayerNormalization), the end of a graph.
PLACES = {
    "product": "h = MatMul(x, w) FORM y = MatMul(z, u)",
    "sum": "i = MatMul(x, w) j = Add(i, c) h = Add(j, x) FORM l = MatMul(z, u) y = Add(l, h)",
    "end": "i = MatMul(x, w) h = Add(i, x) FORM y = Identity(z)",
}


def net(form: str, place: str = "product") -> str:
    return f"{HEAD} {{ {PLACES[place].replace('FORM', (FORMS | WITH_CAST)[form][0])} }}"


def kinds(choice: TypeChoice, keys: str) -> set[bool]:
    return {key in choice.assignment.float32 for key in keys}


@pytest.mark.parametrize("form", FORMS | WITH_CAST)
def test_parts_have_one_type_whichever_of_them_must_be_fp32(form: str) -> None:
    model, units = model_of(net(form)), (FORMS | WITH_CAST)[form][1]
    base = choose_types(Model(model), assumed_ranges(1.0))
    assert [set(unit) for unit in base.units.units] == [set(unit) for unit in units]
    for unit in units:
        for key in unit:
            choice = base.with_float32({key: FloatReason("kept", "asked for")})
            assert kinds(choice, unit) == {True}
            assert floats(choice)[key] == "kept" and TOGETHER in {floats(choice)[one] for one in unit if one != key}


@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_takes_every_choice_as_it_optimizes_by_itself(form: str, place: str, half_io: bool) -> None:
    model = model_of(net(form, place))
    base = choose_types(Model(model), assumed_ranges(1.0), TypeOptions(half_io=half_io))
    wanted = [{}, *({key: FloatReason("kept", "asked for")} for key in base.operators)]
    for float32 in wanted:
        made = with_types(model, base.with_float32(float32).assignment)
        onnx.checker.check_model(made, full_check=True)
        session_of(made, OPTIMIZED)


def test_a_norm_whose_squares_overflow_is_fp32_between_half_operators() -> None:
    """What scales it has the type of what is normalized: onnxruntime drops the Casts between."""
    choice = choice_of(net("layer norm", "sum"), p=1e5)
    assert kinds(choice, "mdpvaqn") == {True} and kinds(choice, "hgz") == {False}
    assert {floats(choice)[key] for key in "mdaqn"} == {TOGETHER} and floats(choice)["p"] == "range"


def test_nothing_is_fp32_where_all_values_fit() -> None:
    for form in FORMS:
        assert not floats(choice_of(net(form, "product")))


def test_what_another_reads_in_the_middle_is_no_unit() -> None:
    text = f"{HEAD} {{ h = MatMul(x, w) q = Sigmoid(h) z = Mul(h, q) l = MatMul(z, u) y = Add(l, q) }}"
    assert choose_types(Model(model_of(text)), assumed_ranges(1.0)).units.units == ()
