# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What makes scores and coordinates behind the last products stays FP32, where that costs little."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from qdqtool.precision.amp_rules import amp_rules
from qdqtool.precision.choose import TypeOptions
from qdqtool.precision.output_tail import output_tail
from qdqtool.precision.reasons import Requirements
from tests.graphs import model_of
from tests.precision.choices import choice_of, floats, ranges_for, within
from tests.precision.typed_graphs import run, with_roundings, with_types

HEAD = "g (float[1,8,64,64] x) => ({out}) <float[8,8,3,3] w, float[2,8,1,1] h, float[4,8,1,1] k, float[2,2,1,1] v, float s = {{0.1}}, int8 z = {{0}}>"
BODY = "a = Conv<pads=[1,1,1,1]>(x, w) b = Sigmoid(a) c = Conv<pads=[1,1,1,1]>(b, w) d = Sigmoid(c) e = Conv<pads=[1,1,1,1]>(d, w) f = AveragePool<kernel_shape=[8,8], strides=[8,8]>(e)"
SCORES = "p = Conv(f, h) t = Transpose<perm=[0,2,3,1]>(p) y = Softmax(t)"


def text_of(tail: str, out: str = "float[1,8,8,2] y") -> str:
    return f"{HEAD.format(out=out)} {{ {BODY} {tail} }}"


@pytest.mark.parametrize(
    ("tail", "out", "found"),
    [
        pytest.param(SCORES, "float[1,8,8,2] y", "y", id="scores, and not what moves them before"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) y = Transpose<perm=[0,2,3,1]>(q)", "float[1,8,8,2] y", "qy", id="what moves them behind"),
        pytest.param("p = Conv(f, k) q = Exp(p) m = Mul(q, s) y = Concat<axis=1>(m, p)", "float[1,8,8,8] y", "mqy", id="boxes"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) r = Conv(f, k) y = Concat<axis=1>(q, r)", "float[1,6,8,8] y", "qy", id="scores beside boxes: two casts more"),
        pytest.param("r = Conv(f, k) i, j = Split<axis=1>(r) m = Sub(i, s) q = Add(j, s) t = Concat<axis=1>(m, q) y = Mul(t, s)", "float[1,4,8,8] y", "imqty", id="a Split that takes one cast and not two"),
        pytest.param("p = Conv(f, h) y = Sigmoid(p) r = Conv(f, k) u = Exp(r)", "float[1,2,8,8] y, float[1,4,8,8] u", "uy", id="two heads"),
        pytest.param("y = Conv(f, h)", "float[1,2,8,8] y", "", id="nothing behind the product"),
        pytest.param("p = Conv(f, h) y = Transpose<perm=[0,2,3,1]>(p)", "float[1,8,8,2] y", "", id="nothing that computes"),
        pytest.param("p = Conv(f, h) y = Add(p, s)", "float[1,2,8,8] y", "", id="a bias is a part of the product"),
        pytest.param("p = Conv(f, h) q = Transpose<perm=[0,2,3,1]>(p) y = Add(q, s)", "float[1,8,8,2] y", "y", id="an offset is none"),
        pytest.param("y = Sigmoid(e)", "float[1,8,64,64] y", "", id="too large"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) y = Conv(q, v)", "float[1,2,8,8] y", "", id="a product behind it"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) m = Identity(q) y = Conv(m, v)", "float[1,2,8,8] y", "", id="a product behind what moves it"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) i = QuantizeLinear(q, s, z) y = DequantizeLinear(i, s, z)", "float[1,2,8,8] y", "", id="a pair behind it"),
        pytest.param("p = Conv(f, h) q = Sigmoid(p) a1 = Conv(f, k) a2 = Conv(f, k) a3 = Conv(f, k) y = Concat<axis=1>(q, a1, a2, a3)", "float[1,14,8,8] y", "", id="too many casts"),
    ],
)  # fmt: skip
def test_what_is_taken(tail: str, out: str, found: str) -> None:
    held = floats(choice_of(text_of(tail, out)))
    assert set(held.values()) <= {"tail", "int8"}
    assert "".join(sorted(key for key, rule in held.items() if rule == "tail")) == found


@pytest.mark.parametrize(("highest", "found"), [(0.985, {}), (0.995, {"y": "tail"})])
def test_scores_count_where_they_come_close_to_one(highest: float, found: dict[str, str]) -> None:
    assert floats(choice_of(text_of(SCORES), y=within(0.0, highest))) == found


def test_coordinates_count_whatever_they_are() -> None:
    text = text_of("p = Conv(f, k) y = Mul(p, s)", "float[1,4,8,8] y")
    assert floats(choice_of(text, y=within(0.0, 0.1))) == {"y": "tail"}


def test_bf16_has_fewer_digits_still() -> None:
    assert floats(choice_of(text_of(SCORES), TypeOptions(TensorProto.BFLOAT16))) == {"y": "tail"}


def test_nothing_is_taken_where_outputs_are_half() -> None:
    assert not floats(choice_of(text_of(SCORES), TypeOptions(half_io=True)))


def test_what_is_fp32_already_costs_nothing_and_keeps_its_reason() -> None:
    model = model_of(text_of(SCORES))
    graph = choice_of(text_of(SCORES)).graph
    needs = Requirements(graph, ranges_for(model), amp_rules(), int(TensorProto.FLOAT16), {})
    assert output_tail(needs, {"y"}) == {} and output_tail(needs, ()).keys() == {"y"}
    assert floats(choice_of(text_of(SCORES), TypeOptions(keep_fp32=("^y$",)))) == {"y": "kept"}


def test_what_a_body_reads_is_left_alone() -> None:
    tail = "p = Conv(f, h) q = Sigmoid(p) y = If (c) <then_branch = t () => (float[1,2,8,8] o) { o = Neg(q) }, else_branch = u () => (float[1,2,8,8] o2) { o2 = Neg(q) }>"
    text = text_of(tail, "float[1,2,8,8] y").replace("x) =>", "x, bool c) =>", 1)
    assert "tail" not in floats(choice_of(text)).values()


def test_scores_near_one_stay_apart() -> None:
    model = model_of("g (float[1,2] x) => (float[1,2] y) { y = Softmax(x) }")
    choice = choice_of(text_of(SCORES))
    assert choice.reasons["y"].text.startswith("Softmax computes scores ")
    scores = []
    for float32 in ((), ("y",)):
        assignment = choice.assignment.__class__(int(TensorProto.FLOAT16), frozenset(float32))
        made = with_roundings(with_types(model, assignment))
        scores.append([float(run(made, x=np.array([[high, 0.0]], np.float32))[0][0, 0]) for high in (8.5, 8.75)])
    assert scores[0][0] == scores[0][1] and scores[1][0] < scores[1][1]
