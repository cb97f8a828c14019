# SPDX-License-Identifier: Apache-2.0
"""A copy of a model in which operators have a twin that reads fake-quantized tensors. The model itself stays in float.

Errors do not travel from one operator to the next: each twin reads float activations. What is tried, and what is summed
up of the difference, others say (`selection/candidate_losses.py`, `conditioning/losses.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import Node

# onnxruntime's own domain: its QuantizeLinear takes every opset of a model, ONNX's only those from 10 on.
_DOMAIN = "com.microsoft"
# From these opsets on the axes of an operator are an input and no attribute.
_AXES_FROM = {"Unsqueeze": 13, "ReduceSum": 13}
_OTHERS_FROM = 18


class ShadowCopy:
    """The copy, which grows. Whatever is added has a free name that ends in `_shadow`.

    Attributes:
        model: the copy.
        opset: its opset of ONNX's operators; below 7 they do not broadcast.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(proto)
        if not any(item.domain == _DOMAIN for item in self.model.opset_import):
            self.model.opset_import.add(domain=_DOMAIN, version=1)
        self.opset = opset_of(proto) or 1
        self._builder = GraphBuilder(self.model)
        self._quantized: dict[tuple[str, bytes], str] = {}

    def quantized(self, tensor: str, scale: np.float32) -> str:
        """A tensor rounded to int8 and back, with one scale; the same one for the same tensor and scale."""
        key = tensor, scale.tobytes()
        if key not in self._quantized:
            step, zero = self.constant("scale", np.asarray(scale)), self.constant("zero", np.zeros((), np.int8))
            levels = self.append("QuantizeLinear", [tensor, step, zero], domain=_DOMAIN)
            self._quantized[key] = self.append("DequantizeLinear", [levels, step, zero], domain=_DOMAIN)
        return self._quantized[key]

    def twin(self, node: Node, inputs: Mapping[int, str]) -> str:
        """A second node like one that is there, which reads other tensors at some places; the name of its output."""
        made = self.model.graph.node.add()
        made.CopyFrom(node.proto)
        for index, name in inputs.items():
            made.input[index] = name
        del made.output[1:]
        made.output[0] = made.name = self._builder.unique(f"{node.outputs[0]}_shadow")
        return str(made.name)

    def append(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node at the end of the list; the name of its output."""
        return self._builder.append(op, inputs, f"{inputs[0]}_{op}_shadow", **attributes)

    def weight(self, name: str, value: npt.NDArray[np.float32]) -> str:
        """An initializer in place of the weight `name`."""
        return self._builder.initializer(f"{name}_shadow", value)

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """A small constant; equal ones of one name are one."""
        return self._builder.constant(f"{name}_shadow", value)

    def with_axes(self, op: str, name: str, axes: Sequence[int], **attributes: int) -> str:
        """A reduction or an Unsqueeze along some axes, as the model's opset writes them."""
        if self.opset >= _AXES_FROM.get(op, _OTHERS_FROM):
            return self.append(op, [name, self.constant("axes", np.array(axes, np.int64))], **attributes)
        return self.append(op, [name], axes=list(axes), **attributes)

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A tensor under another shape; 0 and -1 as Reshape has them."""
        return self.append("Reshape", [name, self.constant("shape", np.array(shape, np.int64))])

    def size(self, name: str) -> str:
        """The number of elements of a tensor, as float32."""
        return self.append("Cast", [self.append("Size", [name])], to=int(onnx.TensorProto.FLOAT))
