# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which operators between pairs are in FP32, so that they give the codes of an FP32 network, and what that may cost."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.precision.amp_rules import amp_rules
from qdqtool.precision.between_pairs import between_pairs, cheap_between_pairs
from qdqtool.precision.casts import count_casts
from qdqtool.precision.choose import choose_types
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.float_graph import float_graph
from qdqtool.precision.int8_paths import int8_layers
from qdqtool.precision.islands import float32_islands
from qdqtool.precision.value_ranges import assumed_ranges
from tests.graphs import model_of
from tests.laws.int8_codes import compare_codes
from tests.precision.typed_graphs import widened, with_types

IN = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
OUT = "f = QuantizeLinear(r, s2, z) g = DequantizeLinear(f, s2, z) y = MatMul(g, k)"
LAYER = "v = QuantizeLinear<axis = 0>(w, t, o) e = DequantizeLinear<axis = 0>(v, t, o) c = Conv(d, e)"
CASES = {
    "a sum": (f"{IN} r = Add(d, d) {OUT}", "r"),
    "a sum with a constant": (f"{IN} r = Add(d, s) {OUT}", "r"),
    "two together": (f"{IN} i = Sigmoid(d) r = Mul(d, i) {OUT}", "i r"),
    "resizing": (f"{IN} r = Resize(d, , u) {OUT}", "r"),
    "pooling": (f"{IN} r = GlobalAveragePool(d) {OUT}", "r"),
    "a product is none": (f"{IN} r = MatMul(d, k) {OUT}", ""),
    "something float is read": (f"{IN} i = Exp(x) r = Add(d, i) {OUT}", ""),
    "something half reads it": (f"{IN} r = Add(d, d) y2 = MatMul(r, k) {OUT}", ""),
    "it is an output": (f"{IN} y = Add(d, d) f = QuantizeLinear(y, s2, z) g = DequantizeLinear(f, s2, z)", ""),
    "nothing reads it": (f"{IN} r = Add(d, d) i = Exp(d) {OUT}", "r"),
    "what is behind it goes, too": (f"{IN} i = Exp(x) j = Add(d, i) r = Relu(j) {OUT}", ""),
    "what is in front of it goes, too": (f"{IN} j = Relu(d) r = Add(j, d) h = Exp(r) {OUT}", ""),
    "what moves values behind a layer": (f"{IN} {LAYER} r = MaxPool<kernel_shape = [2, 2]>(c) {OUT}", "r"),
    "what computes behind a layer": (f"{IN} {LAYER} r = Softmax(c) {OUT}", ""),
    "sizes are no values": (f"{IN} j = Relu(d) i = Shape(d) r = Reshape(j, i) {OUT}", "j r"),
    "a Cast is none": (f"{IN} r = Cast<to = 1>(d) {OUT}", ""),
}  # fmt: skip
HEAD = "net (float[1,2,4,4] x) => (float[] y) <float[2,2,1,1] w, float[4,4] k, float s = {0.1}, float s2 = {0.23}, int8 z = {0}, float[4] u = {1, 1, 1, 1}, float[2] t = {0.1, 0.2}, int8[2] o = {0, 0}>"


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_operators_that_read_and_give_int8_without_a_product(body: str, expected: str) -> None:
    view = GraphView(model_of(f"{HEAD} {{ {body} }}", 17).graph)
    assert " ".join(sorted(between_pairs(view, int8_layers(view)))) == expected


SMALL, LARGE = "a sum of a small tensor", "a sum of a large one"
COSTS = {
    SMALL: ("float[1,2,4,4] x, float[256,256] x2", "r"),
    LARGE: ("float[1,64,64,64] x, float[4,4] x2", ""),
}


@pytest.mark.parametrize(("inputs", "expected"), COSTS.values(), ids=COSTS)
def test_no_more_is_spent_than_a_share_of_what_the_model_moves(inputs: str, expected: str) -> None:
    head = HEAD.replace("float[1,2,4,4] x", inputs)
    body = (
        f"{IN} r = Add(d, d) f = QuantizeLinear(r, s2, z) g = DequantizeLinear(f, s2, z) y = MatMul(g, k) y2 = Exp(x2)"
    )
    model = model_of(f"{head} {{ {body} }}", 17)
    view = GraphView(model.graph)
    graph = float_graph(Model(model), TensorProto.FLOAT16, {})
    assert " ".join(cheap_between_pairs(graph, int8_layers(view), amp_rules())) == expected


def test_what_reads_pairs_that_a_product_reads_costs_nothing() -> None:
    head = HEAD.replace("float[1,2,4,4] x", "float[1,64,64,64] x").replace("float[4,4] k", "float[64,64] k")
    model = model_of(f"{head} {{ {IN} m = MatMul(d, k) r = Add(d, d) f = QuantizeLinear(r, s2, z) g = DequantizeLinear(f, s2, z) y = MatMul(g, k) }}", 17)  # fmt: skip
    view = GraphView(model.graph)
    graph = float_graph(Model(model), TensorProto.FLOAT16, {})
    assert cheap_between_pairs(graph, int8_layers(view), amp_rules()) == {"r"}


def test_codes_are_those_of_the_fp32_network_and_nothing_is_said_of_them() -> None:
    head = HEAD.replace("float[4,4] k", "float[4,4] k, float[256,256] k2").replace("x)", "x, float[256,256] x2)")
    body = f"{IN} i = Sigmoid(d) r = Mul(d, i) {OUT} y2 = MatMul(x2, k2)"
    model = model_of(f"{head} {{ {body} }}", 17)
    choice = choose_types(Model(model), assumed_ranges(8.0))
    assert {key: one.rule for key, one in choice.reasons.items()} == {"i": "int8", "r": "int8"}
    typed = with_types(model, choice.assignment)
    assert count_casts(typed) == choice.casts
    types = infer_types(typed)
    assert not types.conflicts
    assert float32_islands(GraphView(typed.graph), types, base=GraphView(widened(typed).graph)) == []
    values = np.random.default_rng(0)
    feed = {"x": values.normal(0, 4, (1, 2, 4, 4)).astype(np.float32), "x2": np.zeros((256, 256), np.float32)}
    assert compare_codes(model, typed, feed).different == 0
