# SPDX-License-Identifier: Apache-2.0
"""Minimal graphs of INT4 weights in blocks for TensorRT for RTX: which DequantizeLinear is built into the product.

Where it is not, a kernel of its own dequantizes the weight at every inference: a layer more.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _linear(kind: str) -> str:
    return f"g ({kind}[1,64,256] x) => ({kind}[1,64,256] y) {{ y = MatMul(x, w) }}"


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


WEIGHTS = {
    "weights/int4-fp16": _model(_linear("float16")),
    "weights/int4-bf16": _model(_linear("bfloat16"), "bfloat16"),
    "weights/int4-fp32": _model(_linear("float"), "float"),
    "weights/int4-block-16": _model(_linear("float16"), block=16),
    "weights/int4-one-block": _model(_linear("float16"), block=256),
    "weights/int4-cast-scales": _model(_linear("float16"), scale="float"),
    "weights/int4-attention": _model(_behind_attention("float16")),
    "weights/int4-attention-two-axes": _model(_behind_attention("float16", axes=2)),
    "weights/int4-attention-fp32": _model(_behind_attention("float"), "float"),
}
