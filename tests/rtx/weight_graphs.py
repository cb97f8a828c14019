# SPDX-License-Identifier: Apache-2.0
"""Minimal graphs of INT4 weights and of NVFP4 for TensorRT for RTX: which DequantizeLinear is built into the product.

Where it is not, a kernel of its own dequantizes the weight at every inference: a layer more. NVFP4 is for SM120 alone.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _linear(kind: str) -> str:
    return f"g ({kind}[1,64,256] x) => ({kind}[1,64,256] y) {{ y = MatMul(x, w) }}"


def _transposed(kind: str, order: str = "0, 2, 1", given: str = "1, 256, 64", made: str = "1, 64, 256") -> str:
    body = f"t = Transpose<perm = [{order}]>(x) y = MatMul(t, w)"
    return f"g ({kind}[{given}] x) => ({kind}[{made}] y) {{ {body} }}"


def _behind_attention(kind: str, *, axes: int = 3) -> str:
    """The output projection, of three axes or of two."""
    shape = "1, 64, 256" if axes == 3 else "64, 256"
    heads = ", ".join(f"{kind}[1,4,64,64] {name}" for name in "qkv")
    return f"""g ({heads}) => ({kind}[{shape}] y) <int64[{axes}] joined = {{{shape}}}>
{{
    c = MatMul(q, k)
    e = Softmax<axis = -1>(c)
    f = MatMul(e, v)
    h = Transpose<perm = [0, 2, 1, 3]>(f)
    r = Reshape(h, joined)
    y = MatMul(r, w)
}}"""


def _model(text: str, kind: str = "float16", block: int = 128, scale: str = "") -> onnx.ModelProto:
    """A graph whose weight `w` [256, 256] is dequantized; by scales of another type it is cast downstream of that."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    draws = np.random.default_rng(0)
    codes = draws.integers(-8, 8, (256, 256)).astype(ml_dtypes.int4)
    scales = draws.uniform(0.001, 0.01, (256 // block, 256)).astype(_TYPES[scale or kind])
    model.graph.initializer.extend([numpy_helper.from_array(codes, "w_Q"), numpy_helper.from_array(scales, "w_scale")])
    made = "w_cast" if scale else "w"
    nodes = [helper.make_node("DequantizeLinear", ["w_Q", "w_scale"], [made], axis=0, block_size=block)]
    if scale:
        nodes.append(helper.make_node("Cast", [made], ["w"], to=getattr(TensorProto, kind.upper())))
    nodes += model.graph.node
    for node in nodes:
        node.name = node.name or node.output[0]
    graph = helper.make_graph(nodes, "g", model.graph.input, model.graph.output, model.graph.initializer)
    model.graph.CopyFrom(graph)
    return model


_ATTENTION = """t = Transpose<perm = [0, 1, 3, 2]>(h1)
    c = MatMul(h0, t)
    e = Softmax<axis = -1>(c)
    y = MatMul(e, h2)
"""


def _nvfp4(
    kind: str,
    body: str,
    names: tuple[str, ...] = ("w",),
    columns: int = 256,
    *,
    gives: str = "",
    maker: str = "Identity",
) -> onnx.ModelProto:
    """A graph of products of `a`, which is `r` in blocks of 16, and of weights [256, columns] in such blocks."""
    cast = f"Cast<to = {getattr(TensorProto, kind.upper())}>"
    weights = "".join(
        f"""
    {name}_scale = DequantizeLinear({name}_steps, s)
    {name}_DQ = DequantizeLinear<axis = 0, block_size = 16>({name}_Q, {name}_scale)
    {name} = {cast}({name}_DQ)"""
        for name in names
    )
    text = f"""<ir_version: 11, opset_import: ["" : 23, "trt" : 1]>
g ({kind}[1,64,256] x) => ({kind}[{gives or f"1,64,{columns}"}] y)
<float s = {{0.01}}, int64[5] heads = {{1, 64, 3, 4, 64}}, int64[4] head = {{1, 64, 4, 64}},
 int64 at0 = {{0}}, int64 at1 = {{1}}, int64 at2 = {{2}}>
{{
    r = {maker}(x){weights}
    a_Q, a_steps = trt.TRT_FP4DynamicQuantize<axis = -1, block_size = 16, scale_type = 17>(r, s)
    a_scale = DequantizeLinear(a_steps, s)
    a_DQ = DequantizeLinear<axis = -1, block_size = 16>(a_Q, a_scale)
    a = {cast}(a_DQ)
    {body}
}}"""
    model = onnx.parser.parse_model(text)
    draws = np.random.default_rng(0)
    for name in names:
        codes = draws.uniform(-6, 6, (256, columns)).astype(ml_dtypes.float4_e2m1fn)
        steps = draws.uniform(1, 448, (16, columns)).astype(ml_dtypes.float8_e4m3fn)
        held = {f"{name}_Q": codes, f"{name}_steps": steps}
        model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in held.items())
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return model


def _operand(number: int) -> str:
    return f"""m{number} = MatMul(a, w{number})
    r{number} = Reshape(m{number}, head)
    h{number} = Transpose<perm = [0, 2, 1, 3]>(r{number})
    """


_PACKED = """m = MatMul(a, w)
    cut = Reshape(m, heads)
    turned = Transpose<perm = [2, 0, 3, 1, 4]>(cut)
    h0 = Gather(turned, at0)
    h1 = Gather(turned, at1)
    h2 = Gather(turned, at2)
    """
BLOCKS = {
    "nvfp4/fp16": _nvfp4("float16", "y = MatMul(a, w)"),
    "nvfp4/bf16": _nvfp4("bfloat16", "y = MatMul(a, w)"),
    "nvfp4/fp32": _nvfp4("float", "y = MatMul(a, w)"),
    "nvfp4/widened": _nvfp4("float16", "y = MatMul(a, w)", maker="Cast<to = 1>"),
    "nvfp4/packed": _nvfp4("float16", _PACKED + _ATTENTION, columns=768, gives="1,4,64,64"),
    "nvfp4/operands": _nvfp4(
        "float16", "".join(map(_operand, range(3))) + _ATTENTION, ("w0", "w1", "w2"), gives="1,4,64,64"
    ),
}
WEIGHTS = {
    "weights/int4-fp16": _model(_linear("float16")),
    "weights/int4-bf16": _model(_linear("bfloat16"), "bfloat16"),
    "weights/int4-fp32": _model(_linear("float"), "float"),
    "weights/int4-block-16": _model(_linear("float16"), block=16),
    "weights/int4-one-block": _model(_linear("float16"), block=256),
    "weights/int4-cast-scales": _model(_linear("float16"), scale="float"),
    "weights/int4-transposed": _model(_transposed("float16")),
    "weights/int4-transposed-rows": _model(_transposed("float16", "1, 0, 2", "64, 1, 256")),
    "weights/int4-transposed-one-row": _model(_transposed("float", "1, 0, 2", "1, 64, 256", "64, 1, 256"), "float"),
    "weights/int4-transposed-two-axes": _model(_transposed("float16", "1, 0", "256, 64", "64, 256")),
    "weights/int4-transposed-four-axes": _model(_transposed("float16", "0, 2, 3, 1", "1, 256, 8, 8", "1, 8, 8, 256")),
    "weights/int4-transposed-fp32": _model(_transposed("float"), "float"),
    "weights/int4-attention": _model(_behind_attention("float16")),
    "weights/int4-attention-two-axes": _model(_behind_attention("float16", axes=2)),
    "weights/int4-attention-fp32": _model(_behind_attention("float"), "float"),
}
