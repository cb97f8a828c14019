# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501, ISC004 - a graph reads best on one line, a long one on two
"""Ten networks whose channels can be scaled apart without changing the float function. No tests here.

Weights that make a stream are named `..._m`, those that read it `..._r`, both `..._mr`; depthwise ones that go from one
stream's channel to another's are `..._d`. Scaling apart multiplies rows and divides columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from tests.graphs import model_of

CHANNELS, SIZE = 8, 10
Array = npt.NDArray[np.float64]

_X = "float[N,3,10,10] x"
_STEM = "c0 = Conv<pads=[1,1,1,1]>(x, w0_m, b0_m)  r0 = Relu(c0)"


def _block(k: int, before: str, act: str = "Relu") -> str:
    return (
        f"d{k} = Conv<pads=[1,1,1,1]>({before}, w{k}_r)  e{k} = Relu(d{k})  p{k} = Conv(e{k}, v{k}_m, u{k}_m)  "
        f"a{k} = Add(p{k}, {before})  r{k} = {act}(a{k})"
    )


# Name -> body, shape of the output.
NETS = {
    "residual": (f"{_STEM}  {_block(1, 'r0')}  {_block(2, 'r1')}  {_block(3, 'r2')}  y = Conv(r3, h_r)", "N,4,10,10"),
    "residual, pools and pads": (
        f"{_STEM}  {_block(1, 'r0')}  m1 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r1)  q = Pad(m1, border)  "
        f"{_block(2, 'q')}  g = AveragePool<kernel_shape=[2,2], strides=[1,1]>(r2)  y = Conv(g, h_r)", "N,4,6,6",
    ),
    "depthwise": (
        f"{_STEM}  d1 = Conv<pads=[1,1,1,1], group=8>(r0, w1_d)  e1 = Relu(d1)  d2 = Conv<pads=[1,1,1,1], group=8>(e1, w2_d)  "
        "e2 = Relu(d2)  a = Add(e2, r0)  y = Conv(a, h_r)", "N,4,10,10",
    ),
    "shuffle": (
        f"{_STEM}  l, k = Split<axis=1>(r0, halves)  k1 = Conv<pads=[1,1,1,1]>(k, half1)  k2 = Relu(k1)  j = Concat<axis=1>(l, k2)  "
        "s1 = Reshape(j, apart)  s2 = Transpose<perm=[0,2,1,3,4]>(s1)  s3 = Reshape(s2, back)  y = Conv(s3, hs)", "N,4,10,10",
    ),
    "pyramid": (
        f"{_STEM}  d = Conv<strides=[2,2], pads=[1,1,1,1]>(r0, w1_r)  e = Relu(d)  p = Conv(e, v1_m)  t = Resize<mode=\"nearest\">(p, , scales)  "
        "c = Add(t, r0)  f = Relu(c)  y0 = Conv(f, h_r)  z = Conv(p, h1_r)  z1 = Resize<mode=\"nearest\">(z, , scales)  y = Add(y0, z1)", "N,4,10,10",
    ),
    "concat": (
        f"{_STEM}  c1 = Conv(r0, w1_mr)  r1 = Relu(c1)  j = Concat<axis=1>(r0, r1)  m = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(j)  y = Conv(m, hc)", "N,4,10,10",
    ),
    "leaky, batch normalization": (
        "c0 = Conv<pads=[1,1,1,1]>(x, w0)  n0 = BatchNormalization(c0, s0_m, t0_m, mu0, var0)  r0 = LeakyRelu(n0)  "
        f"{_block(1, 'r0', 'LeakyRelu')}  {_block(2, 'r1', 'LeakyRelu')}  y = Conv(r2, h_r)", "N,4,10,10",
    ),
    "gates": (
        f"{_STEM}  {_block(1, 'r0')}  g1 = GlobalAveragePool(r1)  g2 = Conv<pads=[1,1,1,1]>(g1, w2_r)  g3 = Relu(g2)  g4 = Conv(g3, wg)  g5 = Sigmoid(g4)  "
        "m = Mul(r1, g5)  y = Conv(m, h_r)", "N,4,10,10",
    ),
    "layer norm": (
        "c0 = Conv<pads=[1,1,1,1]>(x, w0)  s = Reshape(c0, tokens)  t = Transpose<perm=[0,2,1]>(s)  l = LayerNormalization(t, s0_m, t0_m)  "
        "f1 = MatMul(l, p1_R)  f2 = Relu(f1)  f3 = MatMul(f2, mid)  l2 = LayerNormalization(f3, s1_m, t1_m)  y = MatMul(l2, p3_R)", "N,100,8",
    ),
    "rms norm, residual tokens": (
        "c0 = Conv<pads=[1,1,1,1]>(x, w0)  s = Reshape(c0, tokens)  t = Transpose<perm=[0,2,1]>(s)  q = Mul(t, t)  m = ReduceMean<axes=[-1]>(q)  e = Add(m, eps)  "
        "r = Sqrt(e)  n = Div(t, r)  l = Mul(n, s0_m)  f1 = MatMul(l, p1_R)  f2 = Relu(f1)  f3 = MatMul(f2, mid_M)  a = Add(l, f3)  y = MatMul(a, p3_R)", "N,100,8",
    ),
}  # fmt: skip
_SHAPES = {
    "w0_m": (8, 3, 3, 3), "b0_m": (8,), "w0": (8, 3, 3, 3), "w1_r": (8, 8, 3, 3), "w2_r": (8, 8, 3, 3), "w3_r": (8, 8, 3, 3), "h_r": (4, 8, 1, 1), "h1_r": (4, 8, 1, 1),
    "v1_m": (8, 8, 1, 1), "v2_m": (8, 8, 1, 1), "v3_m": (8, 8, 1, 1), "u1_m": (8,), "u2_m": (8,), "u3_m": (8,), "w1_d": (8, 1, 3, 3), "w2_d": (8, 1, 3, 3),
    "w1_mr": (8, 8, 1, 1), "hc": (4, 16, 1, 1), "hs": (4, 8, 1, 1), "half1": (4, 4, 3, 3), "s0_m": (8,), "t0_m": (8,), "s1_m": (8,), "t1_m": (8,), "mu0": (8,), "wg": (8, 8, 1, 1),
    "p1_R": (8, 8), "mid": (8, 8), "mid_M": (8, 8), "p3_R": (8, 8),
}  # fmt: skip
_OTHERS = (
    "float[8] var0 = {1,1,1,1,2,2,2,2}, int64[2] halves = {4,4}, int64[5] apart = {-1,2,4,10,10}, int64[4] back = {-1,8,10,10}, int64[3] tokens = {-1,8,100}, "
    "int64[8] border = {0,0,1,1,0,0,1,1}, float[4] scales = {1,1,2,2}, float eps = {0.00001}"
)


def spread_net(name: str, spread: float, opset: int = 17) -> onnx.ModelProto:
    """A network whose streams' channels lie up to `spread` times apart; 1 for the even one, the same in float."""
    body, shape = NETS[name]
    used = {weight: dims for weight, dims in _SHAPES.items() if f"{weight}," in body or f"{weight})" in body}
    rng = np.random.default_rng(5)
    apart = np.exp(np.random.default_rng(6).permutation(np.linspace(0, np.log(spread), CHANNELS)))
    declared = ", ".join(f"float[{','.join(map(str, dims))}] {weight}" for weight, dims in used.items())
    model = model_of(f"g ({_X}) => (float[{shape}] y) <{declared}, {_OTHERS}> {{ {body} }}", opset)
    for tensor in model.graph.initializer:
        if tensor.name in used:
            value = _scaled(tensor.name, _weight(rng, tensor.name, used[tensor.name]), apart)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32), tensor.name))
    return model


def _weight(rng: np.random.Generator, name: str, dims: tuple[int, ...]) -> Array:
    fan = float(np.prod(dims[1:])) if len(dims) > 2 else dims[0]
    value: Array = rng.normal(size=dims) * (0.1 if len(dims) == 1 else 1.2 / np.sqrt(fan))
    return 1 + value if name.startswith("s") else value


def _scaled(name: str, value: Array, apart: Array) -> Array:
    """Rows times, columns over; `apart` by channel of the stream."""
    kind = name.partition("_")[2]
    if kind in ("m", "mr"):
        value = value * apart.reshape(-1, *(1,) * (value.ndim - 1))
    if kind in ("r", "mr"):
        value = value / apart.reshape(1, -1, *(1,) * (value.ndim - 2))
    if kind == "R":
        value = value / apart[:, None]
    if kind == "M":
        value = value * apart[None, :]
    if name == "hc":
        value = value / np.tile(apart, 2)[None, :, None, None]
    if name == "half1":
        value = value * apart[4:, None, None, None] / apart[None, 4:, None, None]
    if name == "hs":  # channels of both halves in turns
        value = value / apart.reshape(2, 4).T.reshape(-1)[None, :, None, None]
    return value


def samples(count: int = 12, seed: int = 8) -> npt.NDArray[np.float32]:
    """[count, 3, 10, 10]."""
    return np.random.default_rng(seed).normal(size=(count, 3, SIZE, SIZE)).astype(np.float32)
