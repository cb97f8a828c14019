# SPDX-License-Identifier: Apache-2.0
"""Small networks that hold what readers of models get wrong: joins, subgraphs, functions, external data, old opsets."""

from __future__ import annotations

import onnx
import onnx.parser

from tests.graphs import SMALL_NET, model_of

_RESIDUAL = """net (float[1,4,8,8] x) => (float[1,3] y, float[1,8,16,16] z)
 <float[4,4,3,3] w1, float[4] g, float[4] b, float[4] m, float[8,1,3,3] w2, float[4,8,2,2] w3, float[8,3] fc>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 v = Mul(m, m)
 n1 = BatchNormalization(c1, g, b, m, v)
 s1 = Sigmoid(n1)
 a1 = Mul(n1, s1)
 r1 = Add(a1, x)
 j = Concat<axis=1>(r1, x)
 c2 = Conv<group=8, pads=[1,1,1,1]>(j, w2)
 lo = Constant<value_float=0.0>()
 hi = Constant<value_float=6.0>()
 r6 = Clip(c2, lo, hi)
 p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r6)
 none = Constant<value_floats=[1.0]>()
 scales = Constant<value_floats=[1.0,1.0,4.0,4.0]>()
 z = Resize<mode="nearest">(p, , scales)
 gap = GlobalAveragePool(p)
 shape = Constant<value_ints=[1,-1]>()
 f = Reshape(gap, shape)
 y = Gemm(f, fc)
}"""
_SUBGRAPHS = """net (float[1,4,8,8] x, bool[1] k) => (float[1,4,8,8] y) <float[4,4,3,3] w1, float[4,4,1,1] w2>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 i = If(k) <then_branch = g1 () => (float[1,4,8,8] t) { t = Conv(c1, w2) },
            else_branch = g2 () => (float[1,4,8,8] e) { e = Relu(c1) }>
 y = Relu(i)
}"""
_TRANSFORMER = """net (float[1,6,8] x) => (float[1,6,8] y)
 <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8] s, float[8] o, float[8,8] w1>
{
 q = MatMul(x, wq)
 k = MatMul(x, wk)
 v = MatMul(x, wv)
 kt = Transpose<perm=[0,2,1]>(k)
 a = MatMul(q, kt)
 p = Softmax<axis=-1>(a)
 h = MatMul(p, v)
 r = Add(h, x)
 n = LayerNormalization<axis=-1>(r, s, o)
 f = MatMul(n, w1)
 g = Erf(f)
 y = Mul(f, g)
}"""
_WIDE = """net (float[1,32,64] x) => (float[1,32,64] y) <float[64,128] w1, float[128,64] w2>
{
 h = MatMul(x, w1)
 r = Relu(h)
 o = MatMul(r, w2)
 a = Add(x, o)
 y = Abs(a)
}"""
CODED = ("fp8", "int4", "nvfp4")  # formats that `_WIDE` has room for
_FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[1,4,8,8] x) => (float[1,4,8,8] y)
{
 a = own.act(x)
 w = ConstantOfShape<value = float[1] {0.25}>(d)
 c = Conv(a, w)
 y = own.outer(c)
}
<domain: "own", opset_import: ["" : 17]> act (u) => (v) { s = Sigmoid(u) v = Mul(u, s) }
<domain: "own", opset_import: ["" : 17, "own" : 1]> outer (u) => (v) { t = own.act(u) v = Relu(t) }"""


def wide_graph() -> onnx.ModelProto:
    """A product whose sums are long enough for blocks of every format."""
    return model_of(_WIDE, 17)


def small_graphs() -> list[tuple[str, onnx.ModelProto]]:
    """Each network under its name."""
    functions = onnx.parser.parse_model(_FUNCTIONS)
    functions.graph.initializer.append(onnx.helper.make_tensor("d", onnx.TensorProto.INT64, [4], [4, 4, 1, 1]))
    return [
        ("residual", model_of(_RESIDUAL, 17)),
        ("old", model_of(SMALL_NET, 9, ir=4)),
        ("subgraphs", model_of(_SUBGRAPHS, 16)),
        ("transformer", model_of(_TRANSFORMER, 21, ir=10)),
        ("functions", functions),
    ]
