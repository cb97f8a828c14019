# SPDX-License-Identifier: Apache-2.0
"""A parameter is reached where a gradient can come to it, not where its value merely counts for something."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.training.losses.gradient_paths import reached_parameters
from tests.graphs import model_of

HEADER = "net (float[2,3] x) => (float loss, float other) <float[3,3] a, float[3,3] b, float[2,3] c>"


def reached(body: str, *parameters: str) -> tuple[str, ...]:
    return reached_parameters(model_of(f"{HEADER} {{ {body} }}"), "loss", parameters or ("a", "b", "c"))


def test_only_what_the_loss_depends_on_in_the_given_order() -> None:
    body = "p = MatMul(x, a) q = MatMul(x, b) loss = ReduceSum<keepdims=0>(p) other = ReduceSum<keepdims=0>(q)"
    assert reached(body) == ("a",)
    assert reached(body, "b", "a") == ("a",)
    assert reached(body.replace("(q)", "(p)").replace("Sum<keepdims=0>(p) other", "Sum<keepdims=0>(q) other")) == ("b",)


@pytest.mark.parametrize(
    ("way", "there"),
    [
        ("m = Mul(p, c)", True),
        ("k = Greater(c, x) m = Where(k, p, x)", False),
        ("k = Greater(x, p) m = Where(k, p, c)", True),
        ("k = Shape(c) m = Reshape(p, k)", False),
        ("k = Cast<to=7>(c) f = Cast<to=1>(k) m = Mul(p, f)", False),
        ("f = Cast<to=1>(c) m = Mul(p, f)", True),
        ("f = Round(c) m = Mul(p, f)", False),
        ("k = ArgMax(c) f = Cast<to=1>(k) m = Mul(p, f)", False),
    ],
)
def test_ways_that_carry_a_gradient_and_ways_that_do_not(way: str, there: bool) -> None:
    body = f"p = MatMul(x, a) {way} loss = ReduceSum<keepdims=0>(m) other = ReduceSum<keepdims=0>(x)"
    assert reached(body) == (("a", "c") if there else ("a",))


@pytest.mark.parametrize(("learned", "found"), [(False, ("a",)), (True, ("a", "s"))])
def test_a_scale_is_reached_where_it_is_learned(learned: bool, found: tuple[str, ...]) -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] loss) <float[3,3] a> { loss = MatMul(x, w) }")
    pair = PairFunction(None, learned)
    model.graph.node.insert(0, onnx.helper.make_node(pair.op_type, ["a", "s", "z"], ["w"], domain=PAIR_DOMAIN))
    assert reached_parameters(model, "loss", ("a", "s", "z")) == found


def test_an_unknown_operator_is_left_to_the_back_end_to_refuse() -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] loss) <float[3,3] a> { loss = trt.Odd(x, a) }")
    assert reached_parameters(model, "loss", ("a",)) == ("a",)
