# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which operators compute in FP32, and which hang together."""

from __future__ import annotations

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.islands import float32_islands
from tests.graphs import model_of

PAIRS = "float s = {0.1}, int8 z = {0}"
CHANNELS = "float[8] u, float s = {0.1}, int8 z = {0}, float[8,8] w, float[8] t = {1,1,1,1,1,1,1,1}, int8[8] o = {0,0,0,0,0,0,0,0}"
LAYER = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = QuantizeLinear<axis=1>(w, t, o) e = DequantizeLinear<axis=1>(v, t, o) m = MatMul(d, e)"
CASES = {
    "one chain": ("float[1,8] x", "a = Relu(x) y = Sqrt(a)", "float u", [("a y", "", True)]),
    "two inputs that meet": ("float[1,8] x", "a = Relu(x) b = Sqrt(x) y = Add(a, b)", "float u", [("a b y", "", True)]),
    "cut by FP16": ("float[1,8] x", "a = Relu(x) b = Cast<to=10>(a) c = Sqrt(b) d = Cast<to=1>(c) y = Relu(d)", "float u", [("a", "", True), ("y", "", True)]),
    "all in FP16": ("float16[1,8] x", "a = Relu(x) y = Sqrt(a)", "float u", []),
    "a product": ("float[1,8] x", "m = MatMul(x, w) y = Relu(m)", "float[8,8] w", [("m y", "m", True)]),
    "a product of integers": ("float[1,8] x", "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = QuantizeLinear(w, s, z) e = DequantizeLinear(v, s, z) m = MatMul(d, e) y = Relu(m)", f"float[8,8] w, {PAIRS}", [("y", "", True)]),
    "two computed tensors from pairs": ("float[8,8] x", "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = MatMul(d, d) y = Relu(m)", PAIRS, [("y", "", True)]),
    "two computed tensors from pairs, one of them moved": ("float[8,8] x", "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) t = Transpose(d) m = MatMul(d, t) y = Relu(m)", PAIRS, [("t", "", True), ("y", "", True)]),
    "a weight alone in integers": ("float[1,2] x", "a = Sqrt(x) e = DequantizeLinear(w, s) m = MatMul(a, e) y = Sqrt(m)", "int4[2,2] w = {1,2,3,4}, float s = {0.1}", [("a m y", "m", True)]),
    "behind a product of integers, up to a pair": ("float[1,8] x", f"{LAYER} r = Relu(m) f = QuantizeLinear(r, s, z) y = DequantizeLinear(f, s, z)", CHANNELS, []),
    "behind a product of integers, up to a Cast": ("float[1,8] x", f"{LAYER} r = Relu(m) y = Cast<to=10>(r)", CHANNELS, []),
    "behind a product of integers, up to FP32": ("float[1,8] x", f"{LAYER} a = Add(m, u) r = Relu(a) y = Sqrt(r)", CHANNELS, [("a r y", "", True)]),
    "FP32 alone": ("float[1,8] x", "a = Celu(x) y = MeanVarianceNormalization(a)", "float u", [("a y", "", False)]),
    "arithmetic on sizes": ("float[1,8] x", "h = Shape(x) f = Cast<to=1>(h) g = Mul(f, two) i = Cast<to=7>(g) y = Reshape(x, i)", "float two = {2}", [("y", "", True)]),
    "constants": ("float[1,8] x", "t = Transpose(w) y = Add(x, t)", "float[8,1] w", [("y", "", True)]),
    "what moves values": ("float[1,8] x", "a = Transpose(x) y = Reshape(a, r)", "int64[2] r = {2,4}", [("a y", "", True)]),
    "comparisons give no FP32": ("float[1,8] x", "a = Greater(x, x) y = Where(a, x, x)", "float u", [("y", "", True)]),
}  # fmt: skip


@pytest.mark.parametrize(("given", "body", "constants", "expected"), CASES.values(), ids=CASES)
def test_operators_in_fp32(given: str, body: str, constants: str, expected: list[tuple[str, str, bool]]) -> None:
    model = model_of(f"net ({given}) => (float[] y) <{constants}> {{ {body} }}", 21, 10)
    found = float32_islands(GraphView(model.graph), infer_types(model))
    told = [(" ".join(n.key for n in one.nodes), " ".join(n.key for n in one.products), one.able) for one in found]
    assert told == expected
