# SPDX-License-Identifier: Apache-2.0
"""What follows from sizes and constants alone: one walk, and what its callers ask of it."""

from __future__ import annotations

import pytest
from onnx import parser

from qdqtool.graph.view import GraphView
from qdqtool.match.sizes import gives_sizes, made_of_sizes

HEAD = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,4,8,8] x, float[4] s) => (float y)
    <int64[1] k = {2}, int64[1] axis = {0}, float c = {0.5}, int8 z = {0}> """


def view_of(body: str) -> GraphView:
    return GraphView(parser.parse_model(HEAD + "{" + body + "}").graph)


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("y = Relu(x)", ""),
        ("a = Shape(x) y = Cast<to=1>(a)", "a y"),
        ("a = Size(x) b = Mul(a, k) y = Reshape(x, b)", "a b"),
        ("a = Shape(x) b = Gather(a, k) d = Concat<axis=0>(b, k) y = Reshape(x, d)", "a b d"),
        ("a = Shape(x) b = Cast<to=1>(a) y = Mul(b, s)", "a b"),  # s is data
        ("a = Shape(x) b = Shape(s) y = Div(a, b)", "a b y"),
        ("a = Shape(x) b = Slice(a, axis, k, , k) y = Relu(b)", "a b y"),  # an input that is left out
        ("a = Neg(k) y = Reshape(x, a)", ""),  # constants alone are no sizes
        ("y = Cast<to=1>(b) b = Mul(a, k) a = Shape(x)", "a b y"),  # in any order
        (
            "a = Shape(x) b = Cast<to=1>(a) q = QuantizeLinear(b, c, z) d = DequantizeLinear(q, c, z) y = Neg(d)",
            "a b y",  # the pair is seen through
        ),
    ],
)
def test_what_is_made_of_sizes(body: str, made: str) -> None:
    assert made_of_sizes(view_of(body)) == set(made.split())


def test_the_caller_says_where_sizes_begin() -> None:
    view = view_of("i = NonZero(x) a = Cast<to=1>(i) b = Shape(x) y = Reshape(a, b)")
    assert made_of_sizes(view) == {"b"}
    assert made_of_sizes(view, lambda node: node.op == "NonZero") == {"i", "a"}
    assert made_of_sizes(view, lambda node: gives_sizes(node) or node.op == "NonZero") == {"i", "a", "b", "y"}
    assert made_of_sizes(view, lambda node: False) == set()


def test_the_caller_says_what_sizes_pass() -> None:
    view = view_of("a = Shape(x) b = Mul(a, k) d = Gather(k, b) y = Reshape(x, d)")
    assert made_of_sizes(view) == {"a", "b", "d"}
    assert made_of_sizes(view, follows=lambda node, known: node.op == "Mul") == {"a", "b"}
    assert made_of_sizes(view, follows=lambda node, known: node.inputs[0] in known) == {"a", "b"}


def test_constants_alone_where_they_are_asked_for() -> None:
    view = view_of("a = Neg(k) r = RandomNormal<shape=[1]>() b = Shape(x) d = Concat<axis=0>(a, b) y = Reshape(r, d)")
    assert made_of_sizes(view) == {"b"}
    assert made_of_sizes(view, constants=True) == {"a", "b", "d"}  # RandomNormal reads nothing: it is not a constant


def test_nodes_of_pairs_are_looked_at_where_all_are() -> None:
    view = view_of("a = Shape(x) b = Cast<to=1>(a) q = QuantizeLinear(b, c, z) y = DequantizeLinear(q, c, z)")
    assert made_of_sizes(view, nodes=view.every) == {"a", "b", "q", "y"}
