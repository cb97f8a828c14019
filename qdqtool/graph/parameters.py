# SPDX-License-Identifier: Apache-2.0
"""How many parameters a model has, counted alike by every verb: values of its constants, scales left out."""

from __future__ import annotations

import math

from onnx import TensorProto

from qdqtool.graph.nodes import constant_tensor
from qdqtool.graph.view import GraphView

_COUNTED = frozenset(
    [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT8]
)
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def count_parameters(view: GraphView) -> int:
    """Values of initializers and Constant nodes in float or INT8, trained or not; scales and zero points left out."""
    scales = {name for node in view.every if node.op in _PAIR for name in node.inputs[1:]}
    held = [tensor for name, tensor in view.initializers.items() if name not in scales]
    made = (node for node in view.every if node.op == "Constant" and node.outputs[0] not in scales)
    held += [tensor for tensor in map(constant_tensor, made) if tensor is not None]
    return sum(math.prod(tensor.dims) for tensor in held if tensor.data_type in _COUNTED)
