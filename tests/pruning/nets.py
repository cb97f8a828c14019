# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Graphs that join channels in every way that is followed, and short ways to what becomes of them. No tests here."""

from __future__ import annotations

import numpy as np
import onnx

from qdqtool.graph.model import Model
from qdqtool.pruning.channel_groups import ChannelMap, find_groups
from qdqtool.pruning.choice import parse_criterion
from qdqtool.pruning.probe import ProbeRun, look, seeded_input
from qdqtool.pruning.run import Pruned, prune_model
from tests.graphs import model_of

CHAIN = (
    "g (float[N,1,1,1] x) => (float[N,1,1,1] y) <float[2,1,1,1] w, float[1,2,1,1] u> { a = Conv(x, w)  y = Conv(a, u) }"
)
# a[0] = x, a[1] = 2 x; y sums 3 a[0] + 1 a[1].
WEIGHTS = {"w": np.array([1, 2]).reshape(2, 1, 1, 1), "u": np.array([3, 1]).reshape(1, 2, 1, 1)}
IN = "float[1,4,8,8] x"
_W = "float[8,4,1,1] w, float[8,4,1,1] v, float[6,8,1,1] u, float[8,8,1,1] s"

# name -> (outputs, constants, nodes, opset, kept shape of each named initializer at ratio 0.5)
CASES: dict[str, tuple[str, str, str, int, dict[str, tuple[int, ...]]]] = {
    "chain with bias": ("float[1,6,8,8] y", f"{_W}, float[8] b", "a = Conv(x, w, b)  r = Relu(a)  y = Conv(r, u)", 17, {"w": (4, 4, 1, 1), "b": (4,), "u": (6, 4, 1, 1)}),
    "batch normalization": ("float[1,6,8,8] y", f"{_W}, float[8] g, float[8] b, float[8] m, float[8] q = {{1,1,2,1,1,1,2,1}}", "a = Conv(x, w)  n = BatchNormalization(a, g, b, m, q)  y = Conv(n, u)", 17, {"g": (4,), "q": (4,), "u": (6, 4, 1, 1)}),
    "group normalization as exporters write it": ("float[1,6,8,8] y", f"{_W}, float[4] g = {{1,2,1,2}}, float[4] b = {{0,1,0,1}}, int64[3] apart = {{0,4,-1}}, int64[4] back = {{0,8,8,8}}, float[8,1,1] p", "a = Conv(x, w)  r = Reshape(a, apart)  n = InstanceNormalization(r, g, b)  t = Reshape(n, back)  m = Mul(t, p)  y = Conv(m, u)", 17, {"w": (4, 4, 1, 1), "g": (2,), "p": (4, 1, 1), "u": (6, 4, 1, 1)}),
    "residual add": ("float[1,6,8,8] y", _W, "a = Conv(x, w)  b = Conv(a, s)  c = Add(a, b)  y = Conv(c, u)", 17, {"w": (4, 4, 1, 1), "s": (4, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "concat": ("float[1,5,8,8] y", f"{_W}, float[5,16,1,1] k", "a = Conv(x, w)  b = Conv(x, v)  c = Concat<axis=1>(a, b)  y = Conv(c, k)", 17, {"w": (4, 4, 1, 1), "v": (4, 4, 1, 1), "k": (5, 8, 1, 1)}),
    "split with sizes": ("float[1,5,8,8] y", "float[8,4,1,1] w, float[5,3,1,1] k, float[5,5,1,1] l, int64[2] sizes = {3,5}", "a = Conv(x, w)  b, c = Split<axis=1>(a, sizes)  d = Conv(b, k)  e = Conv(c, l)  y = Add(d, e)", 17, {"w": (5, 4, 1, 1), "k": (5, 2, 1, 1), "l": (5, 3, 1, 1), "sizes": (2,)}),
    "equal split that becomes unequal": ("float[1,5,8,8] y", "float[6,4,1,1] w, float[5,3,1,1] k, float[5,3,1,1] l, float[3] o = {1,1,1}, float[3,1,1] z", "a = Conv(x, w)  b, c = Split<axis=1>(a)  d = Conv(b, k)  c2 = Mul(c, z)  e = Conv(c2, l)  y = Add(d, e)", 13, {"k": (5, 2, 1, 1), "l": (5, 2, 1, 1), "z": (2, 1, 1)}),
    "split attribute of opset 11": ("float[1,5,8,8] y", "float[8,4,1,1] w, float[5,3,1,1] k, float[5,5,1,1] l", "a = Conv(x, w)  b, c = Split<axis=1, split=[3,5]>(a)  d = Conv(b, k)  e = Conv(c, l)  y = Add(d, e)", 11, {"k": (5, 2, 1, 1), "l": (5, 3, 1, 1)}),
    "slice": ("float[1,5,8,8] y", "float[8,4,1,1] w, float[5,6,1,1] k, int64[1] i = {2}, int64[1] j = {9223372036854775807}, int64[1] ax = {1}", "a = Conv(x, w)  b = Slice(a, i, j, ax)  y = Conv(b, k)", 17, {"k": (5, 3, 1, 1)}),
    "gather": ("float[1,5,8,8] y", "float[8,4,1,1] w, float[5,8,1,1] k, int64[8] i = {7,6,5,4,-5,2,1,0}", "a = Conv(x, w)  b = Gather<axis=1>(a, i)  y = Conv(b, k)", 17, {"k": (5, 4, 1, 1), "i": (4,)}),
    "channel shuffle": ("float[1,6,8,8] y", f"{_W}, int64[5] apart = {{1,2,4,8,8}}, int64[4] back = {{1,8,8,8}}", "a = Conv(x, w)  r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(r)  b = Reshape(t, back)  y = Conv(b, u)", 17, {"w": (4, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "depthwise": ("float[1,6,8,8] y", f"{_W}, float[8,1,3,3] d", "a = Conv(x, w)  b = Conv<group=8, pads=[1,1,1,1]>(a, d)  y = Conv(b, u)", 17, {"w": (4, 4, 1, 1), "d": (4, 1, 3, 3), "u": (6, 4, 1, 1)}),
    "depthwise with a multiplier": ("float[1,6,8,8] y", "float[8,4,1,1] w, float[16,1,3,3] d, float[6,16,1,1] k", "a = Conv(x, w)  b = Conv<group=8, pads=[1,1,1,1]>(a, d)  y = Conv(b, k)", 17, {"w": (4, 4, 1, 1), "d": (8, 1, 3, 3), "k": (6, 8, 1, 1)}),
    "grouped": ("float[1,6,8,8] y", f"{_W}, float[8,4,1,1] g", "a = Conv(x, w)  b = Conv<group=2>(a, g)  y = Conv(b, u)", 17, {"w": (4, 4, 1, 1), "g": (4, 2, 1, 1), "u": (6, 4, 1, 1)}),
    "squeeze and excite": ("float[1,6,8,8] y", f"{_W}, float[4,8,1,1] down, float[8,4,1,1] up", "a = Conv(x, w)  p = GlobalAveragePool(a)  q = Conv(p, down)  r = Relu(q)  t = Conv(r, up)  g = Sigmoid(t)  m = Mul(a, g)  y = Conv(m, u)", 17, {"w": (4, 4, 1, 1), "down": (2, 4, 1, 1), "up": (4, 2, 1, 1), "u": (6, 4, 1, 1)}),
    "transposed convolution": ("float[1,6,16,16] y", f"{_W}, float[8,8,2,2] t, float[8] b", "a = Conv(x, w)  c = ConvTranspose<strides=[2,2]>(a, t, b)  y = Conv(c, u)", 17, {"w": (4, 4, 1, 1), "t": (4, 4, 2, 2), "b": (4,), "u": (6, 4, 1, 1)}),
    "flatten to gemm": ("float[1,3] y", "float[8,4,1,1] w, float[3,512] k, float[3] c", "a = Conv(x, w)  f = Flatten(a)  y = Gemm<transB=1>(f, k, c)", 17, {"w": (4, 4, 1, 1), "k": (3, 256)}),
    "reshape to a product": ("float[1,3] y", "float[8,4,1,1] w, float[512,6] k, float[6] c, float[6,3] l, int64[2] flat = {1,512}", "a = Conv(x, w)  f = Reshape(a, flat)  h = MatMul(f, k)  i = Add(h, c)  y = MatMul(i, l)", 17, {"k": (256, 3), "c": (3,), "l": (3, 3), "flat": (2,)}),
    "computed reshape": ("float[1,3] y", "float[8,4,1,1] w, float[512,3] k, int64 zero = {0}, int64[1] whole = {512}, int64[1] none = {0}", "a = Conv(x, w)  sh = Shape(a)  n = Gather(sh, zero)  m = Unsqueeze(n, none)  t = Concat<axis=0>(m, whole)  f = Reshape(a, t)  y = MatMul(f, k)", 17, {"k": (256, 3)}),
    "padded channels": ("float[1,6,8,8] y", f"{_W}, int64[8] pads = {{0,2,0,0,0,2,0,0}}", "a = Conv(x, w)  h = Slice(a, one, five, one)  p = Pad(h, pads)  b = Conv(x, v)  c = Add(p, b)  y = Conv(c, u)", 17, {"v": (4, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "depth to space": ("float[1,3,16,16] y", "float[8,4,1,1] w, float[3,2,1,1] k", "a = Conv(x, w)  d = DepthToSpace<blocksize=2>(a)  y = Conv(d, k)", 17, {"w": (4, 4, 1, 1), "k": (3, 1, 1, 1)}),
    "space to depth": ("float[1,3,4,4] y", "float[8,4,1,1] w, float[3,32,1,1] k", "a = Conv(x, w)  d = SpaceToDepth<blocksize=2>(a)  y = Conv(d, k)", 17, {"w": (4, 4, 1, 1), "k": (3, 16, 1, 1)}),
    "resize to sizes": ("float[1,6,16,16] y", f"{_W}, int64[4] sizes = {{1,8,16,16}}", 'a = Conv(x, w)  b = Resize<mode="nearest">(a, , , sizes)  y = Conv(b, u)', 17, {"u": (6, 4, 1, 1), "sizes": (4,)}),
    "prelu and scale": ("float[1,6,8,8] y", f"{_W}, float[8,1,1] p, float[1,8,1,1] m", "a = Conv(x, w)  b = PRelu(a, p)  c = Mul(b, m)  y = Conv(c, u)", 17, {"p": (4, 1, 1), "m": (1, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "one weight of two convolutions": ("float[1,6,8,8] y", _W, "a = Conv(x, w)  b = Conv(x, w)  c = Conv(a, u)  d = Conv(b, u)  y = Add(c, d)", 17, {"w": (4, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "one constant of two groups": ("float[1,6,8,8] y", f"{_W}, float[8,1,1] m", "a = Conv(x, w)  b = Mul(a, m)  c = Conv(b, s)  d = Mul(c, m)  y = Conv(d, u)", 17, {"w": (4, 4, 1, 1), "u": (6, 4, 1, 1)}),
    "transposed weight": ("float[1,3] y", "float[8,4,1,1] w, float[3,512] k", "a = Conv(x, w)  f = Flatten(a)  t = Transpose(k)  y = MatMul(f, t)", 17, {"k": (3, 256)}),
    "weight after a reshape": ("float[1,3] y", "float[8,4,1,1] w, float[8,8,8,3] k, int64[2] to = {512,3}", "a = Conv(x, w)  f = Flatten(a)  t = Reshape(k, to)  y = MatMul(f, t)", 17, {"k": (4, 8, 8, 3), "to": (2,)}),
    "weight that is no rectangle after its reshape": ("float[1,3] y", "float[8,4,1,1] w, float[3,8] k, int64[2] to = {8,3}, int64[2] flat = {1,8}", "a = Conv(x, w)  p = GlobalAveragePool(a)  f = Reshape(p, flat)  t = Reshape(k, to)  y = MatMul(f, t)", 17, {"w": (4, 4, 1, 1)}),
    "weight of one value": ("float[1,6,8,8] y", f"{_W}, int64[4] ws = {{8,8,1,1}}", "a0 = Conv(x, w)  c = ConstantOfShape(ws)  a = Conv(a0, c)  b = Conv(x, v)  d = Add(a, b)  y = Conv(d, u)", 17, {"w": (4, 4, 1, 1), "ws": (4,), "u": (6, 4, 1, 1)}),
    "quantized": ("float[1,6,8,8] y", f"{_W}, float e = {{0.1}}, int8 z = {{0}}, float[8] ws = {{0.01,0.02,0.01,0.02,0.01,0.02,0.01,0.02}}, int8[8] wz = {{0,0,0,0,0,0,0,0}}", "wq = QuantizeLinear<axis=0>(w, ws, wz)  wd = DequantizeLinear<axis=0>(wq, ws, wz)  a = Conv(x, wd)  q = QuantizeLinear(a, e, z)  d = DequantizeLinear(q, e, z)  y = Conv(d, u)", 17, {"w": (4, 4, 1, 1), "ws": (4,), "wz": (4,), "u": (6, 4, 1, 1)}),
    "split of rows": ("float[1,6,8,8] y", f"{_W}, int64[2] rows = {{3,5}}", "a = Conv(x, w)  b, c = Split<axis=2>(a, rows)  d = Concat<axis=2>(c, b)  y = Conv(d, u)", 17, {"w": (4, 4, 1, 1), "rows": (2,), "u": (6, 4, 1, 1)}),
    "slice of channels and rows": ("float[1,5,4,8] y", "float[8,4,1,1] w, float[5,6,1,1] k, int64[2] i = {2,1}, int64[2] j = {8,5}, int64[2] ax = {1,2}", "a = Conv(x, w)  b = Slice(a, i, j, ax)  y = Conv(b, k)", 17, {"k": (5, 3, 1, 1), "i": (2,)}),
    "gather of rows": ("float[1,6,3,8] y", f"{_W}, int64[3] i = {{0,2,7}}", "a = Conv(x, w)  b = Gather<axis=2>(a, i)  y = Conv(b, u)", 17, {"w": (4, 4, 1, 1), "i": (3,), "u": (6, 4, 1, 1)}),
    "padded rows": ("float[1,6,11,8] y", f"{_W}, int64[8] pads = {{0,0,1,0,0,0,2,0}}", "a = Conv(x, w)  b = Pad(a, pads)  y = Conv(b, u)", 17, {"w": (4, 4, 1, 1), "pads": (8,), "u": (6, 4, 1, 1)}),
    "pads that are named by axis": ("float[1,6,11,8] y", f"{_W}, int64[2] pads = {{1,2}}, int64[1] ax = {{2}}", "a = Conv(x, w)  b = Pad(a, pads, , ax)  y = Conv(b, u)", 18, {"w": (4, 4, 1, 1), "pads": (2,), "u": (6, 4, 1, 1)}),
    "weight after a cast": ("float[1,6,8,8] y", "float[8,4,1,1] w, float16[6,8,1,1] h", "a = Conv(x, w)  u = Cast<to=1>(h)  y = Conv(a, u)", 17, {"w": (4, 4, 1, 1), "h": (6, 4, 1, 1)}),
}  # fmt: skip

# Self-attention with two heads of four, and an MLP, both after a normalization over the last axis.
ATTENTION = """g (float[B,5,8] x) => (float[B,5,8] y) <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float[8,16] up, float[16] ub, float[16,8] down, float[8] g1, float[8] b1, float[8] bq, int64[4] heads = {0,5,2,4}, int64[3] back = {0,5,8}, float d = {0.5}>
{ n = LayerNormalization(x, g1, b1)
  q0 = MatMul(n, wq)  q1 = Add(q0, bq)  q2 = Reshape(q1, heads)  q = Transpose<perm=[0,2,1,3]>(q2)
  k0 = MatMul(n, wk)  k2 = Reshape(k0, heads)  k = Transpose<perm=[0,2,3,1]>(k2)
  v0 = MatMul(n, wv)  v2 = Reshape(v0, heads)  v = Transpose<perm=[0,2,1,3]>(v2)
  s0 = MatMul(q, k)  s1 = Mul(s0, d)  p = Softmax<axis=-1>(s1)  c0 = MatMul(p, v)
  c1 = Transpose<perm=[0,2,1,3]>(c0)  c = Reshape(c1, back)  o = MatMul(c, wo)  r = Add(x, o)
  m = LayerNormalization(r, g1, b1)  h0 = MatMul(m, up)  h1 = Add(h0, ub)  h = Relu(h1)  f = MatMul(h, down)  y = Add(r, f) }"""


def case(name: str) -> onnx.ModelProto:
    """The model of a case."""
    outputs, constants, nodes, opset, _ = CASES[name]
    extra = ", int64[1] one = {1}, int64[1] five = {5}" if "five" in nodes else ""
    return model_of(f"g ({IN}) => ({outputs}) <{constants}{extra}> {{ {nodes} }}", opset)


def channels_of(model: onnx.ModelProto, *exclude: str) -> ChannelMap:
    """Its channel map."""
    found = Model(model)
    return find_groups(found.view, look(ProbeRun(found, [seeded_input(model.graph)])), exclude)


def halved(model: onnx.ModelProto, *exclude: str) -> Pruned:
    """Pruned at ratio 0.5."""
    return prune_model(ProbeRun(Model(model), []), parse_criterion(ratio=0.5), exclude)


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Initializer -> shape."""
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def value(model: onnx.ModelProto, name: str) -> np.ndarray:
    """The value of an initializer."""
    found: np.ndarray = onnx.numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == name))
    return found


def with_values(model: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """The model with other values of some initializers, in float32; changed in place."""
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(onnx.numpy_helper.from_array(arrays[tensor.name].astype(np.float32), tensor.name))
    return model
