# SPDX-License-Identifier: Apache-2.0
"""Which INT8 weights can have one scale for all channels, and which scale that is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.view import GraphView
from qdqtool.match.common_scale import ChannelScales, channel_scales
from qdqtool.rulebook import load_rules
from tests.graphs import model_of

PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
WEIGHT = "v = QuantizeLinear<axis=0>(w, t, o) e = DequantizeLinear<axis=0>(v, t, o)"
TURNED = "v = QuantizeLinear<axis=1>(k, t, o) e = DequantizeLinear<axis=1>(v, t, o)"
MATRIX = (
    "g1 = QuantizeLinear<axis=1>(m1, t, o) i = DequantizeLinear<axis=1>(g1, t, o) "
    "g2 = QuantizeLinear<axis=1>(m2, t, o) j = DequantizeLinear<axis=1>(g2, t, o)"
)
NEXT = "y = Conv(r, k)"  # a product downstream: `c` is no head
HEAD = (
    "net (float[1,3,4,4] x) => (float[] y) <float[2,3,1,1] w, float[5,2,1,1] k, float[2] b = {1, 2}, float s = {0.5}, "
    "float s2 = {0.25}, int8 z = {0}, float[2] t = {0.5, 0.25}, int8[2] o = {0, 0}, float[2,3] m, float[4,2] m1, "
    "float[4,2] m2, int8[2] o1 = {0, 1}, int8[2,3,1,1] w8, "
    "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float t1 = {1}>"
)
CASES = {
    "a convolution": (f"{PAIR} {WEIGHT} c = Conv(d, e) r = Relu(c) {NEXT}", "c"),
    "with a bias": (f"{PAIR} {WEIGHT} c = Conv(d, e, b) r = Relu(c) {NEXT}", "c"),
    "pairs that are moved": (
        f"{PAIR} {WEIGHT} p = MaxPool<kernel_shape=[1,1]>(d) c = Conv(p, e) r = Relu(c) {NEXT}",
        "c",
    ),
    "zeros around the input": (f"{PAIR} {WEIGHT} p = Pad(d, pads) c = Conv(p, e) r = Relu(c) {NEXT}", "c"),
    "ones around the input": (f"{PAIR} {WEIGHT} p = Pad(d, pads, t1) c = Conv(p, e) r = Relu(c) {NEXT}", ""),
    "a head": (f"{PAIR} {WEIGHT} y = Conv(d, e, b)", ""),
    "a float input": (f"{WEIGHT} c = Conv(x, e) r = Relu(c) {NEXT}", ""),
    "something computes in front": (f"{PAIR} {WEIGHT} p = Sigmoid(d) c = Conv(p, e) r = Relu(c) {NEXT}", ""),
    "matrix products of one tensor, one of them a head": (
        f"{PAIR} {MATRIX} c = MatMul(d, i) r = Relu(c) y = MatMul(r, m) h = MatMul(d, j)",
        "",
    ),
    "matrix products of one tensor": (
        f"{PAIR} {MATRIX} c = MatMul(d, i) h = MatMul(d, j) a = Add(c, h) r = Relu(a) y = MatMul(r, m)",
        "c h",
    ),
    "one scale already": (
        f"{PAIR} v = QuantizeLinear(w, s2, z) e = DequantizeLinear(v, s2, z) c = Conv(d, e) r = Relu(c) {NEXT}",
        "",
    ),
    "zero points that are not 0": (
        f"{PAIR} {WEIGHT} c = Conv(d, e) r = Relu(c) {NEXT}".replace("t, o)", "t, o1)"),
        "",
    ),
    "no zero point": (f"{PAIR} e = DequantizeLinear<axis=0>(w8, t) c = Conv(d, e) r = Relu(c) {NEXT}", ""),
    "a weight of two products": (
        f"{PAIR} {WEIGHT} c = Conv(d, e) c2 = Conv(d, e) a = Add(c, c2) r = Relu(a) {NEXT}",
        "",
    ),
    "a transposed convolution": (
        f"{PAIR} {TURNED} u = Concat<axis=1>(d, d) g = Slice(u, from, to, one) c = ConvTranspose(g, e) y = Conv(c, n)",
        "",
    ),
}


def found(body: str, target: str = "rtx", weights: Mapping[str, np.ndarray] | None = None) -> list[ChannelScales]:
    more = ", int64[1] from = {0}, int64[1] to = {5}, int64[1] one = {1}, float[2,2,1,1] n>"
    model: onnx.ModelProto = model_of(f"{HEAD[:-1]}{more} {{ {body} }}")
    for tensor in model.graph.initializer:
        if tensor.name in (weights or {}):
            tensor.CopyFrom(numpy_helper.from_array((weights or {})[tensor.name].astype(np.float32), tensor.name))
    return channel_scales(GraphView(model.graph), load_rules(target))


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_weights_that_can_have_one_scale(body: str, expected: str) -> None:
    assert " ".join(one.node.key for one in found(body)) == expected


def test_other_targets_keep_a_scale_for_each_channel() -> None:
    assert not found(CASES["a convolution"][0], "gpu")


@pytest.mark.parametrize("size", [1e-3, 1.0, 60.0])
def test_no_sum_of_int8_numbers_leaves_fp16_and_a_power_of_two_more_might(size: float) -> None:
    weight = size * np.array([[1.0, -1.0, 0.5], [0.25, 0.25, -0.25]]).reshape(2, 3, 1, 1)
    (one,) = found(CASES["a convolution"][0], weights={"w": weight})
    codes = np.clip(np.rint(weight / np.array([0.5, 0.25]).reshape(2, 1, 1, 1)), -128, 127)
    largest = np.abs(codes).sum(axis=(1, 2, 3)).max() * 128 * 0.5 * float(one.scale)
    assert largest <= 2**15
    assert float(one.scale) in (2.0**8, 2.0 ** np.floor(np.log2(float(one.scale))))
    assert (one.factors * one.scale).tolist() == [0.5, 0.25] and one.factors.dtype == np.float32


def test_matrix_products_of_one_tensor_have_the_lesser_of_their_scales() -> None:
    values = {"m1": np.ones((4, 2)), "m2": 9 * np.ones((4, 2))}
    first, second = found(CASES["matrix products of one tensor"][0], weights=values)
    assert first.scale == second.scale
    assert all((one.factors * one.scale).tolist() == [0.5, 0.25] for one in (first, second))
    (alone,) = found(CASES["a convolution"][0], weights={"w": np.ones((2, 3, 1, 1))})
    assert alone.scale > first.scale
