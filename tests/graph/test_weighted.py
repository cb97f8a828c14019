# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What counts as a weighted operator, and which input its weight is."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import is_product, weight_index, weight_rank, weight_type
from tests.graphs import model_of, node_of, view_of

HEADER = "g (float[1,4,2,2] x, float[2,4] m, float[4,4,1,1] wx) => (float[N] y)"
KINDS = {
    "Conv": ("y = Conv(x, w)", 1),
    "ConvTranspose": ("y = ConvTranspose(x, w)", 1),
    "Gemm": ("y = Gemm(m, k)", 1),
    "MatMul, weight right": ("y = MatMul(m, k)", 1),
    "MatMul, weight left": ("y = MatMul(k, m)", 0),
    "Conv of a computed weight": ("y = Conv(x, wx)", None),
    "MatMul of two computed": ("y = MatMul(m, m)", None),
    "MatMul of two constants": ("y = MatMul(k, k)", None),
    "Gemm with the weight on the left": ("y = Gemm(k, m)", None),
    "not a product": ("y = Add(x, w)", None),
    "weight by Identity": ("i = Identity(w) y = Conv(x, i)", 1),
    "weight by Constant": ("i = Constant<value = float[1,4,1,1] {1,2,3,5}>() y = Conv(x, i)", 1),
    "weight transposed": ("i = Transpose<perm=[1,0]>(k) y = MatMul(m, i)", 1),
    "weight computed from constants": ("i = Exp(k) y = MatMul(m, i)", None),
    "decode by 0 1 2 3": ("y = Conv(x, count)", None),
    "decode by 0 1 2 3 in a MatMul": ("y = MatMul(m, counted)", None),
    "nearly 0 1 2 3": ("y = Conv(x, nearly)", 1),
    "from 1": ("y = Conv(x, ones)", 1),
    "two columns": ("y = MatMul(m, columns)", 1),
}
WEIGHTS = """<float[4,4,1,1] w, float[4,4] k, float[1,4,1,1] count = {0,1,2,3}, float[4,1] counted = {0,1,2,3}, float[1,4,1,1] nearly = {0,1,2,3.001},
 float[1,4,1,1] ones = {1,2,3,4}, float[4,2] columns = {0,1,2,3,4,5,6,7}>"""


@pytest.mark.parametrize(("body", "index"), KINDS.values(), ids=KINDS)
def test_where_the_weight_is(body: str, index: int | None) -> None:
    view = view_of(f"{HEADER} {WEIGHTS} {{ {body} }}")
    node = node_of(view, "y")
    assert weight_index(view, node) == index
    assert weight_index(view, node) == index, "looked up once, the same the second time"
    assert is_product(node) == (node.op != "Add")


def test_a_product_with_one_input_is_none() -> None:
    model = model_of(f"{HEADER} {WEIGHTS} {{ y = Conv(x, w) }}")
    del model.graph.node[0].input[1]
    view = GraphView(model.graph)
    assert weight_index(view, view.nodes[0]) is None


def test_rank_and_type_without_reading_the_weight() -> None:
    view = view_of("g (float[1,4] x) => (float[N] y) <float[4,2,3] w, double[2] d = {1,2}, int8[4] q = {1,2,3,4}, float s = {1}, int8 o = {0}> "
                   "{ t = Transpose<perm=[1,0,2]>(w) i = Identity(d) f = DequantizeLinear(q, s, o) y = MatMul(x, f) }")  # fmt: skip
    assert (weight_rank(view, "w"), weight_rank(view, "t"), weight_rank(view, "i"), weight_rank(view, "x")) == (
        3,
        3,
        1,
        None,
    )
    kinds = [weight_type(view, name) for name in ("w", "t", "i", "f", "x")]
    proto = onnx.TensorProto
    assert kinds == [proto.FLOAT, proto.FLOAT, proto.DOUBLE, proto.FLOAT, proto.UNDEFINED]


@pytest.mark.parametrize(
    ("matrix", "weighted"),
    [
        ("1, 0, 1, 0, 0, 1, 0, 1, -0.5, 0, 0.5, 0, 0, -0.5, 0, 0.5", False),
        ("1, 0, 1, 0, 0, 1, 0, 1, -0.4, 0, 0.5, 0, 0, -0.5, 0, 0.5", True),
        ("1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1", True),
    ],
)
def test_the_product_that_makes_corners_is_decode_arithmetic(matrix: str, weighted: bool) -> None:
    """As DeepStream-Yolo's exports have it: were it a layer, it would hide the box heads before it."""
    view = view_of(f"g (float[1,9,4] x) => (float[1,9,4] y) <float[4,4] w = {{{matrix}}}> {{ y = MatMul(x, w) }}")
    assert (weight_index(view, node_of(view, "y")) is not None) == weighted
