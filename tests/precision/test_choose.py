# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The choice as a value: what it says of itself, how it grows, what record it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from onnx import TensorProto

from qdqtool.precision.casts import apply_types, count_casts
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types, recorded_choice
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.required import FloatReason
from qdqtool.precision.value_ranges import assumed_ranges
from tests.graphs import SMALL_NET, model_of
from tests.precision.choices import choice_of, floats
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
    typed = apply_types(model_of(ATTENTION), choice.assignment)
    assert not infer_types(typed).conflicts and count_casts(typed) == choice.casts


def test_a_recorded_choice_has_the_same_operators_and_casts() -> None:
    choice = choice_of(ATTENTION, a=1e6)
    again = recorded_choice(model_of(ATTENTION), choice.assignment)
    assert (again.casts, set(again.reasons), again.operators) == (choice.casts, set(choice.reasons), choice.operators)
    assert {one.rule for one in again.reasons.values()} == {"recorded"}


def test_operators_on_sizes_have_no_choice() -> None:
    text = "g (float[N,4] x) => (float[N,4] y, int64[2] s) { s = Shape(x) y = Relu(x) }"
    assert set(choice_of(text).operators) == {"y"}


def test_a_choice_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice_of(SMALL_NET).casts = 0  # type: ignore[misc]


def test_work_grows_with_the_nodes() -> None:
    def make(size: int) -> Callable[[], TypeChoice]:
        nodes = [f"a{at} = Exp(a{at - 1}) b{at} = Log(a{at}) c{at} = Add(a{at}, b{at})" for at in range(1, size + 1)]
        nodes = [one.replace(f"a{at} = Exp(a{at - 1})", f"a{at} = Exp(c{at - 1})") for at, one in enumerate(nodes, 1)]
        text = f"g (float[4] c0) => (float[4] y) {{ {' '.join(nodes)} y = Relu(c{size}) }}"
        model = model_of(text)
        options = TypeOptions(keep_fp32=(r"^b\d*5$",)) if size >= 5 else None
        return lambda: choose_types(model, assumed_ranges(2.0), options)

    assert_linear(make, 40)
