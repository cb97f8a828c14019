# SPDX-License-Identifier: Apache-2.0
"""Typed graphs for tests, and short ways to what stands in them."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from qdqtool.precision.assignment import TypeAssignment
from tests.graphs import model_of
from tests.precision.typed_graphs import with_types

FP16, BF16, FP32 = int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16), int(TensorProto.FLOAT)
QDQ_CONV = """net (float[1,4,8,8] x) => (float[1,4,8,8] y)
<float s = {0.1}, int8 z = {0}, float ws = {0.01}, float[4,4,3,3] w, float[4] b>
{
 q = QuantizeLinear(x, s, z)
 d = DequantizeLinear(q, s, z)
 wq = QuantizeLinear(w, ws, z)
 wd = DequantizeLinear(wq, ws, z)
 c = Conv<pads=[1,1,1,1]>(d, wd, b)
 y = Relu(c)
}"""


def typed(
    text: str | onnx.ModelProto, *float32: str, rest: int = FP16, opset: int = 17, **more: Any
) -> onnx.ModelProto:
    """A graph in text (or a model) with its types; `float32`: first outputs of the operators that stay FP32."""
    model = model_of(text, opset) if isinstance(text, str) else text
    made = with_types(model, TypeAssignment(rest, frozenset(float32), **more))
    onnx.checker.check_model(made)
    return made


def nodes_of(model: onnx.ModelProto) -> list[str]:
    """Each node in one line: `Op in in > out`; a Cast says the type that it makes."""
    lines = []
    for node in model.graph.node:
        to = next((f":{TensorProto.DataType.Name(item.i)}" for item in node.attribute if item.name == "to"), "")
        lines.append(f"{node.op_type}{to} {' '.join(node.input)} > {' '.join(node.output)}")
    return lines


def casts_of(model: onnx.ModelProto) -> list[str]:
    """`nodes_of`, Casts alone."""
    return [line for line in nodes_of(model) if line.startswith("Cast")]


def constants_of(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of each initializer."""
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}
