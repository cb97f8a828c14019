# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which operators run in layers that read and give INT8 alone, and that they get no Cast."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.precision.casts import count_casts
from qdqtool.precision.choose import TypeOptions, choose_types
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.float_graph import float_graph
from qdqtool.precision.int8_paths import int8_layers
from qdqtool.precision.islands import float32_islands
from qdqtool.precision.value_ranges import assumed_ranges
from tests.graphs import model_of
from tests.precision.typed_graphs import widened, with_types

INPUT = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
WEIGHT = "v = QuantizeLinear<axis = 0>(w, t, o) e = DequantizeLinear<axis = 0>(v, t, o)"
OUTPUT = "f = QuantizeLinear(r, s, z) g = DequantizeLinear(f, s, z) y = MatMul(g, k)"
CASES = {
    "a convolution and its ReLU": (f"{INPUT} {WEIGHT} c = Conv(d, e, b) r = Relu(c) {OUTPUT}", "c r"),
    "a convolution alone": (f"{INPUT} {WEIGHT} r = Conv(d, e) {OUTPUT}", "r"),
    "BatchNormalization": (f"{INPUT} {WEIGHT} c = Conv(d, e) n = BatchNormalization(c, b, b, b, u) r = Relu(n) {OUTPUT}", "c n r"),
    "SiLU": (f"{INPUT} {WEIGHT} c = Conv(d, e) h = Sigmoid(c) r = Mul(c, h) {OUTPUT}", "c h r"),
    "a residual from a pair": (f"{INPUT} {WEIGHT} c = Conv(d, e) a = Add(c, d) r = Relu(a) {OUTPUT}", "a c r"),
    "a residual in float": (f"{INPUT} {WEIGHT} i = Exp(x) c = Conv(d, e) a = Add(c, i) r = Relu(a) {OUTPUT}", "c"),
    "another operator reads it": (f"{INPUT} {WEIGHT} c = Conv(d, e) r = Relu(c) f = QuantizeLinear(r, s, z) g = DequantizeLinear(f, s, z) y = Add(g, r)", ""),
    "another layer reads it": (f"{INPUT} {WEIGHT} k1 = Conv(d, e) k2 = QuantizeLinear(k1, s, z) c = Conv(d, e, b) a = Add(c, k1) r = Relu(a) {OUTPUT}", "a c k1 r"),
    "it is an output": (f"{INPUT} {WEIGHT} c = Conv(d, e) y = Relu(c) f = QuantizeLinear(y, s, z)", "c y"),
    "what does not fuse behind it": (f"{INPUT} {WEIGHT} c = Conv(d, e) r = Softmax(c) {OUTPUT}", "c"),
    "an activation without a pair": (f"{WEIGHT} c = Conv(x, e) r = Relu(c) {OUTPUT}", ""),
    "what moves a pair": (f"{INPUT} {WEIGHT} p = MaxPool<kernel_shape = [1, 1]>(d) j = Concat<axis = 1>(p, d) c = Conv(j, e) r = Relu(c) {OUTPUT}", "c j p r"),
    "a shape is no value": (f"{INPUT} {WEIGHT} p = Transpose<perm = [0, 1, 3, 2]>(d) i = Shape(p) c = Conv(p, e) r = Relu(c) {OUTPUT}", "c p r"),
    "it moves pairs of two scales": (f"{INPUT} {WEIGHT} k0 = QuantizeLinear(x, s2, z) k1 = DequantizeLinear(k0, s2, z) p = Concat<axis = 1>(k1, d) c = Conv(p, e) r = Relu(c) {OUTPUT}", ""),
    "another operator reads what moves": (f"{INPUT} {WEIGHT} p = Transpose<perm = [0, 1, 3, 2]>(d) i = Exp(p) c = Conv(p, e) r = Relu(c) {OUTPUT}", ""),
    "two read what moves, and one is in float": (f"{INPUT} {WEIGHT} p = Transpose<perm = [0, 1, 3, 2]>(d) c = Conv(p, e) r = Relu(c) c2 = Conv(p, e) i = Exp(c2) {OUTPUT}", "c c2 p r"),
    "another operator reads what moves before": (f"{INPUT} {WEIGHT} p = Transpose<perm = [0, 1, 3, 2]>(d) i = Exp(p) j = Transpose<perm = [0, 1, 3, 2]>(p) c = Conv(j, e) r = Relu(c) {OUTPUT}", ""),
    "something computes in front of it": (f"{INPUT} {WEIGHT} p = AveragePool<kernel_shape = [1, 1]>(d) c = Conv(p, e) r = Relu(c) {OUTPUT}", ""),
    "a residual from another layer": (f"{INPUT} {WEIGHT} k1 = Conv(d, e) c = Conv(d, e, b) a = Add(c, k1) r = Relu(a) {OUTPUT}", "a c k1 r"),
    "a residual from a layer that is read elsewhere": (f"{INPUT} {WEIGHT} k1 = Conv(d, e) i = Exp(k1) c = Conv(d, e, b) a = Add(c, k1) r = Relu(a) {OUTPUT}", "c k1"),
    "a weight without a pair": (f"{INPUT} c = Conv(d, w) r = Relu(c) {OUTPUT}", ""),
    "behind a product in half": (f"c = Conv(x, w) n = BatchNormalization(c, b, b, b, u) r = Relu(n) {OUTPUT}", "n r"),
    "what selects in front is half": (f"c = Conv(x, w) h = Relu(c) r = Mul(h, s) {OUTPUT}", ""),
    "SiLU behind a product in half": (f"c = Conv(x, w) h = Sigmoid(c) r = Mul(c, h) {OUTPUT}", "h r"),
    "a product in half that another operator reads": (f"c = Conv(x, w) n = BatchNormalization(c, b, b, b, u) r = Relu(n) i = Exp(r) {OUTPUT}", ""),
    "a pair added to a product in half": (f"{INPUT} c = Conv(x, w) a = Add(c, d) r = Relu(a) {OUTPUT}", "a r"),
    "a half tensor added to a product in half": (f"i = Exp(x) c = Conv(x, w) a = Add(c, i) r = Relu(a) {OUTPUT}", ""),
    "one scale for the weight": (f"{INPUT} v = QuantizeLinear(w, s, z) e = DequantizeLinear(v, s, z) c = Conv(d, e) r = Relu(c) {OUTPUT}", ""),
    "BatchNormalization behind one scale for the weight": (f"{INPUT} v = QuantizeLinear(w, s, z) e = DequantizeLinear(v, s, z) c = Conv(d, e) r = BatchNormalization(c, b, b, b, u) {OUTPUT}", "r"),
    "a transposed convolution": (f"{INPUT} v = QuantizeLinear<axis = 1>(w, t, o) e = DequantizeLinear<axis = 1>(v, t, o) c = ConvTranspose(d, e) r = Relu(c) {OUTPUT}", ""),
}  # fmt: skip
HEAD = "net (float[1,2,4,4] x) => (float[] y) <float[2,2,1,1] w, float[2] b = {0.5, 0.25}, float[2] u = {1, 2}, float[4,4] k, float s = {0.1}, float s2 = {0.2}, int8 z = {0}, float[2] t = {0.1, 0.2}, int8[2] o = {0, 0}>"


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_operators_of_layers_that_read_and_give_int8(body: str, expected: str) -> None:
    model = model_of(f"{HEAD} {{ {body} }}", 17)
    assert " ".join(sorted(int8_layers(GraphView(model.graph)))) == expected


@pytest.mark.parametrize("body", [body for body, _ in CASES.values()], ids=CASES)
@pytest.mark.parametrize("rest", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["fp16", "bf16"])
def test_they_take_no_more_casts_than_half_operators(body: str, rest: int) -> None:
    model = model_of(f"{HEAD} {{ {body} }}", 17)
    view = GraphView(model.graph)
    graph = float_graph(Model(model), rest, {})
    assert graph.casts(int8_layers(view)) <= graph.casts(())


OPEN = "a layer that something half reads"
TYPED = {
    OPEN: (f"{INPUT} {WEIGHT} c = Conv(d, e, b) r = Relu(c) y = MatMul(r, k)", "r y_fp16", "c r"),
    "behind a product in half": (CASES["behind a product in half"][0], "c g x y_fp16", "n r"),
}


@pytest.mark.parametrize(("body", "cast", "wide"), TYPED.values(), ids=TYPED)
def test_where_the_casts_stand(body: str, cast: str, wide: str) -> None:
    choice = choose_types(Model(model_of(f"{HEAD} {{ {body} }}", 17)), assumed_ranges(8.0))
    assert {key: one.rule for key, one in choice.reasons.items()} == dict.fromkeys(wide.split(), "int8")
    typed = with_types(model_of(f"{HEAD} {{ {body} }}", 17), choice.assignment)
    assert {node.input[0] for node in typed.graph.node if node.op_type == "Cast"} == set(cast.split())
    types = infer_types(typed)
    assert not types.conflicts
    assert {types.types[name] for name in wide.split()} == {TensorProto.FLOAT}
    assert float32_islands(GraphView(typed.graph), types, base=GraphView(widened(typed).graph)) == []


def test_they_are_in_fp32_in_the_file_and_no_cast_stands_in_front_of_them_or_behind() -> None:
    model = model_of(f"{HEAD} {{ {CASES['a residual from a pair'][0]} }}", 17)
    choice = choose_types(Model(model), assumed_ranges(8.0))
    assert {key: one.rule for key, one in choice.reasons.items()} == dict.fromkeys("car", "int8")
    assert choice.headline() == "1 operator in FP16, 0 in FP32, 3 in quantized layers, 2 Casts"
    typed = with_types(model, choice.assignment)
    casts = [(node.input[0], node.output[0]) for node in typed.graph.node if node.op_type == "Cast"]
    assert casts[0][0] == "g" and casts[1][1] == "y" and len(casts) == count_casts(typed) == 2
    types = infer_types(typed)
    assert not types.conflicts and {types.types[name] for name in "cardexg"} == {TensorProto.FLOAT}


def test_what_must_be_in_fp32_says_why() -> None:
    model = model_of(f"{HEAD} {{ {CASES['a convolution and its ReLU'][0]} }}", 17)
    choice = choose_types(Model(model), assumed_ranges(8.0), TypeOptions(keep_fp32=("^r$",)))
    assert {key: one.rule for key, one in choice.reasons.items()} == {"c": "int8", "r": "kept"}
