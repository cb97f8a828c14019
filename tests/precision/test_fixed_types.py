# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which operators stay FP32 by what they are, and the reason that is given."""

from __future__ import annotations

import pytest

from qdqtool.graph.model import Model
from qdqtool.precision.fixed_types import (
    BODIES,
    FOREIGN,
    INT8_PATH,
    NOT_TENSORRT,
    ONLY_FP32,
    SIZES,
    UNKNOWN,
    WEIGHTS,
    fixed_float32,
    makers_of_unknown,
)
from tests.graphs import SMALL_NET, model_of, view_of
from tests.precision.typed import BF16, FP16, FP32, QDQ_CONV

HEAD = "g (float[N,4] x, bool k) => (float[N,4] y) <float s = {0.1}, int8 z = {0}, float[3,4] w>"


def fixed(body: str, rest: int = FP16, opset: int = 17) -> dict[str, str]:
    return fixed_float32(Model(model_of(f"{HEAD} {{ {body} }}", opset)), rest)


@pytest.mark.parametrize("text", [SMALL_NET, QDQ_CONV])
@pytest.mark.parametrize("rest", [FP16, BF16])
def test_what_networks_are_made_of_can_have_16_bits(text: str, rest: int) -> None:
    assert fixed_float32(Model(model_of(text)), rest) == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Relu(x)", {}),
        ("y = If (k) <then_branch = t () => (float[2] o) { o = Neg(x) }, else_branch = e () => (float[2] p) { p = Abs(x) }>", {"y": BODIES}),
        ("y = trt.Plugin(x)", {"y": FOREIGN}),
        ("a = trt.Plugin(x) b = Relu(a) y = Identity(x)", {"a": FOREIGN, "b": UNKNOWN}),
        ("a = NoSuchOperator(x) y = Relu(x)", {"a": FOREIGN}),
        ("y = Celu(x)", {"y": ONLY_FP32}),
        ("a = RandomNormal<shape=[4]>() y = Add(x, a)", {"a": ONLY_FP32}),
        ("b = NonMaxSuppression(x, x) y = Relu(x)", {"b": ONLY_FP32}),
        ("n = Shape(x) f = Cast<to=1>(n) h = Mul(f, f) i = Cast<to=7>(h) y = Reshape(x, i)", {"f": SIZES, "h": SIZES}),
        ("n = Shape(x) y = Reshape(x, n)", {}),
        ("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d)", {}),
        ("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) t = Transpose<perm=[0,1]>(d) q2 = QuantizeLinear(t, s, z) y = DequantizeLinear(q2, s, z)", {"t": INT8_PATH}),
        ("t = Transpose(w) u = Identity(t) q = QuantizeLinear(u, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d)", {"t": WEIGHTS, "u": WEIGHTS}),
        ("c = Constant<value = float[1] {2}>() y = Mul(x, c)", {}),
    ],
)  # fmt: skip
def test_reasons(body: str, found: dict[str, str]) -> None:
    assert fixed(body) == found


def test_an_operator_newer_than_the_opset_can_be_half_and_so_can_what_stands_behind() -> None:
    assert fixed("n = LayerNormalization(x, w) y = Relu(n)", opset=13) == {}


def test_the_operator_at_which_types_end_is_named() -> None:
    view = view_of(f"{HEAD} {{ a = trt.Plugin(x) b = Relu(a) c = Neg(b) d = Add(c, x) y = Identity(x) }}")
    nodes = [node for node in view.every if node.key in "bcd"]
    found = makers_of_unknown(view, nodes, {"x": FP32, "y": FP32})
    assert {key: maker.key for key, maker in found.items()} == {"a": "a", "b": "a", "c": "a", "d": "a"}


def test_the_opset_decides_for_fp16_and_the_newest_one_for_bf16() -> None:
    body = "y = Conv(x, w)"
    assert fixed(body, FP16, 11) == fixed(body, BF16, 11) == {}  # bfloat16 came to Conv with opset 22
    assert fixed("y = IsInf(x)", FP16, 17) == {"y": ONLY_FP32}
    assert fixed("y = IsInf(x)", FP16, 20) == {}


def test_what_is_filled_by_a_shape_is_no_size() -> None:
    body = "i = Constant<value_ints = [0]>() n = Constant<value_ints = [4]>() q = Shape(x) f = ConstantOfShape(q) a = Slice(f, i, n, i) c = Cast<to = 1>(q) m = Mul(c, c) y = Add(x, a)"
    found = fixed(body)
    assert {"f", "a", "y"}.isdisjoint(found) and found["m"] == SIZES


@pytest.mark.parametrize(
    ("body", "bf16"),
    [
        ("y = Mish(x)", {"y": NOT_TENSORRT}),
        ("a = Unsqueeze(x, k1) w2, h = GRU<hidden_size = 4>(a, r, r) y = Squeeze(h, k1)", {"w2": NOT_TENSORRT}),
        ("y = Relu(x)", {}),
        ("b = Cast<to = 9>(x) c = Not(b) y = Cast<to = 1>(c)", {}),  # what takes no float at all
    ],
)
def test_what_tensorrt_does_not_take_in_bf16_stays_fp32_in_bf16_alone(body: str, bf16: dict[str, str]) -> None:
    text = f"{HEAD} {{ {body} }}".replace("int8 z = {0}", "int8 z = {0}, int64[1] k1 = {0}, float[1,12,4] r")
    assert fixed_float32(Model(model_of(text, 18)), BF16) == bf16
    assert fixed_float32(Model(model_of(text, 18)), FP16) == {}


def test_a_gru_with_lengths_is_fp32_in_tensorrt() -> None:
    body = "a = Unsqueeze(x, k1) n = Cast<to = 6>(k1) u, h = GRU<hidden_size = 4>(a, r, r, , n) y = Squeeze(h, k1)"
    text = f"{HEAD} {{ {body} }}".replace("int8 z = {0}", "int8 z = {0}, int64[1] k1 = {0}, float[1,12,4] r")
    assert fixed_float32(Model(model_of(text)), FP16) == {"u": NOT_TENSORRT}


def test_a_mask_that_nobody_reads_needs_no_type() -> None:
    assert fixed("d, mask = Dropout(x) y = Relu(d)", opset=7) == {}
    assert fixed("y, mask = trt.Split(x)") == {"y": FOREIGN}
