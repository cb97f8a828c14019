# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What is trained: weights and biases of weighted operators, scale and bias of BatchNormalization."""

from __future__ import annotations

import pytest

from qdqtool.match.plan import Read
from qdqtool.training.trainable import by_accident, find_roles
from tests.graphs import view_of


def roles_of(text: str) -> dict[str, tuple[str, Read]]:
    return {role.initializer: (role.kind, role.read) for role in find_roles(view_of(text))}


def test_weights_biases_and_norms() -> None:
    found = roles_of(
        """net (float[2,3,4,4] x) => (y) <float[3,3,1,1] w, float[3] b, float[3] g, float[3] h, float[3] m, float[3] v, float[48,5] f>
        { c = Conv(x, w, b) n = BatchNormalization(c, g, h, m, v) r = Flatten(n) y = Gemm(r, f) }"""
    )
    assert {name: kind for name, (kind, _) in found.items()} == {
        "w": "weight",
        "b": "bias",
        "g": "norm",
        "h": "norm",
        "f": "weight",
    }
    assert found["g"][1] == Read("n", 1)


def test_a_bias_that_is_an_add() -> None:
    found = roles_of(
        "net (float[2,4] x) => (y) <float[4,3] w, float[3] b, float[3] k> { a = MatMul(x, w) s = Add(b, a) r = Relu(s) y = Add(r, k) }"
    )
    assert found == {"w": ("weight", Read("a", 1)), "b": ("bias", Read("s", 0))}


def test_a_number_that_is_added_is_no_bias() -> None:
    assert set(roles_of("net (float[2,4] x) => (y) <float[4,3] w, float b> { a = MatMul(x, w) y = Add(a, b) }")) == {
        "w"
    }


def test_pairs_and_moves_are_seen_through() -> None:
    found = roles_of(
        """net (float[2,4] x) => (y) <float[3,4] w, float s = {0.1}, int8 z = {0}>
        { q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) t = Transpose(d) y = MatMul(x, t) }"""
    )
    assert found == {"w": ("weight", Read("q", 0))}


@pytest.mark.parametrize(
    "text",
    [
        "net (float[2,4] x) => (y) <float[4] w> { y = Mul(x, w) }",
        "net (float[2,4] x) => (y) <double[4,1] w = {1.0, 2.0, 3.0, 4.0}> { a = Cast<to=11>(x) y = MatMul(a, w) }",
        "net (float[2,4] x) => (y) <int64[2] s = {4, 3}> { w = ConstantOfShape(s) y = MatMul(x, w) }",
        "net (float[1,8,2,2] x) => (y) <float[1,8,1,1] w = {0,1,2,3,4,5,6,7}> { y = Conv(x, w) }",
    ],
)
def test_what_is_not_trained(text: str) -> None:
    assert not roles_of(text)


def test_one_value_throughout_is_an_accident() -> None:
    view = view_of(
        "net (float[2,2] x) => (y) <float[2] a = {3, 3}, float[2] b = {3, 4}> { c = Add(x, a) y = Add(c, b) }"
    )
    assert by_accident(view, "a") and not by_accident(view, "b")
