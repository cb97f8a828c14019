# SPDX-License-Identifier: Apache-2.0
"""A copy of a model in which operators have a twin that reads fake-quantized tensors. The model itself stays in float.

Errors do not travel from one operator to the next: each twin reads float activations. What is tried, and what is summed
up of the difference, others say (`measuring/shadow_losses.py`, `conditioning/losses.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.order import needed, reads_of, wrapped
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import Node
from qdqtool.runtime.array_file import ArrayFile
from qdqtool.runtime.session import copy_without, stand_in

Array = npt.NDArray[Any]

# onnxruntime's own domain: its QuantizeLinear takes every opset of a model, ONNX's only those from 10 on.
_DOMAIN = "com.microsoft"
# From these opsets on the axes of an operator are an input and no attribute.
_AXES_FROM = {"Unsqueeze": 13, "ReduceSum": 13}
_OTHERS_FROM = 18


class ShadowCopy:
    """The copy, which grows. Whatever is added has a free name that ends in `_shadow`.

    Attributes:
        model: the copy.
        weights: arrays that its initializers stand for, where the weights of the model were given as arrays.
        opset: its opset of ONNX's operators; below 7 they do not broadcast.
    """

    def __init__(self, proto: onnx.ModelProto, weights: Mapping[str, Array] | None = None) -> None:
        """Copy a model."""
        self._lends, self._file = weights is not None, ArrayFile()
        self.weights: dict[str, Array] = dict(weights or {})
        self.model = copy_without(proto, self.weights)
        if not any(item.domain == _DOMAIN for item in self.model.opset_import):
            self.model.opset_import.add(domain=_DOMAIN, version=1)
        self.opset = opset_of(proto) or 1
        self._builder = GraphBuilder(self.model)
        self._quantized: dict[tuple[str, bytes, str], str] = {}
        self._on_new_axis: dict[str, str] = {}
        self._reshaped: dict[tuple[str, tuple[int, ...]], str] = {}
        self._thinned: dict[tuple[str, tuple[int, ...], tuple[int, ...]], str] = {}
        self._gathered: dict[tuple[str, tuple[int, ...], int], str] = {}

    def quantized(self, tensor: str, scale: np.float32, number_format: NumberFormat = INT8) -> str:
        """A tensor rounded to a format and back, with one scale; the same one for the same tensor, scale and format."""
        key = tensor, scale.tobytes(), number_format.name
        if key not in self._quantized:
            step, zero = self.constant("scale", np.asarray(scale)), self.constant("zero", number_format.zero_point())
            domain = _DOMAIN if number_format == INT8 else ""  # others need an opset that has them
            levels = self.append("QuantizeLinear", [tensor, step, zero], domain=domain)
            self._quantized[key] = self.append("DequantizeLinear", [levels, step, zero], domain=domain)
        return self._quantized[key]

    def quantized_beside(self, tensor: str, scales: tuple[np.float32, ...]) -> str:
        """A tensor whose first axis has one index, rounded with each scale, beside each other along that axis.

        The same one for the same tensor and scales.
        """
        key = tensor, np.array(scales).tobytes(), INT8.name
        if key not in self._quantized:
            zero = self.constant("zero", INT8.zero_point())
            steps = [self.constant("scale", np.asarray(scale)) for scale in scales]
            rows = [self.append("QuantizeLinear", [tensor, step, zero], domain=_DOMAIN) for step in steps]
            levels = self.append("Concat", rows, axis=0)
            every = self.constant("scale", np.array(scales)), self.constant("zero", INT8.zero_point(len(scales)))
            self._quantized[key] = self.append("DequantizeLinear", [levels, *every], axis=0, domain=_DOMAIN)
        return self._quantized[key]

    def on_new_axis(self, name: str) -> str:
        """A tensor with an axis of one index in front; the same one for the same tensor."""
        if name not in self._on_new_axis:
            self._on_new_axis[name] = self.with_axes("Unsqueeze", name, [0])
        return self._on_new_axis[name]

    def twin(self, node: Node, inputs: Mapping[int, str], **attributes: Any) -> str:
        """A second node like one that is there, which reads other tensors at some places; the name of its output."""
        made = self.model.graph.node.add()
        made.CopyFrom(node.proto)
        for index, name in inputs.items():
            made.input[index] = name
        for name, value in attributes.items():
            kept = [one for one in made.attribute if one.name != name]
            del made.attribute[:]
            made.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        del made.output[1:]
        made.output[0] = made.name = self._builder.unique(f"{node.outputs[0]}_shadow")
        return str(made.name)

    def append(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node at the end of the list; the name of its output."""
        return self._builder.append(op, inputs, f"{inputs[0]}_{op}_shadow", **attributes)

    def weight(self, name: str, value: npt.NDArray[np.float32]) -> str:
        """An initializer in place of the weight `name`."""
        if not self._lends:
            return self._builder.initializer(f"{name}_shadow", value)
        made = self._builder.unique(f"{name}_shadow")
        self.weights[made] = array = self._file.add(np.ascontiguousarray(value))
        self.model.graph.initializer.append(stand_in(made, onnx.TensorProto.FLOAT, value.shape, array))
        return made

    def keep_needed(self, names: Sequence[str]) -> None:
        """Leave out the nodes and weights that some tensors do not need; nodes may be other objects after it."""
        graph = self.model.graph
        nodes, _ = needed(wrapped(graph.node), names)
        read = {name for node in nodes for name in reads_of(node.proto)}
        gone = {tensor.name for tensor in graph.initializer if tensor.name not in read}
        if len(nodes) < len(graph.node) or gone:
            kept = onnx.GraphProto(node=[node.proto for node in nodes])
            kept.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
            kept.input.extend(value for value in graph.input if value.name not in gone)  # older files list them, too
            for field in ("node", "initializer", "input"):
                del getattr(graph, field)[:]
                getattr(graph, field).extend(getattr(kept, field))
        self.weights = {name: array for name, array in self.weights.items() if name in read}

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """A small constant; equal ones of one name are one."""
        return self._builder.constant(f"{name}_shadow", value)

    def with_axes(self, op: str, name: str, axes: Sequence[int], **attributes: int) -> str:
        """A reduction or an Unsqueeze along some axes, as the model's opset writes them."""
        if self.opset >= _AXES_FROM.get(op, _OTHERS_FROM):
            return self.append(op, [name, self.constant("axes", np.array(axes, np.int64))], **attributes)
        return self.append(op, [name], axes=list(axes), **attributes)

    def every(self, name: str, steps: Sequence[int], axes: Sequence[int]) -> str:
        """Each n-th position of a tensor along some axes; needs opset 10. The same one for the same request."""
        if max(steps) == 1:
            return name
        key = name, tuple(steps), tuple(axes)
        if key not in self._thinned:
            ends = [np.iinfo(np.int64).max] * len(axes)
            parts = [("starts", [0] * len(axes)), ("ends", ends), ("axes", axes), ("steps", list(steps))]
            bounds = [self.constant(what, np.array(values, np.int64)) for what, values in parts]
            self._thinned[key] = self.append("Slice", [name, *bounds])
        return self._thinned[key]

    def gathered(self, name: str, places: Sequence[int], axis: int) -> str:
        """Some places of a tensor along an axis. The same one for the same request."""
        key = name, tuple(places), axis
        if key not in self._gathered:
            where = self.constant("places", np.array(places, np.int64))
            self._gathered[key] = self.append("Gather", [name, where], axis=axis)
        return self._gathered[key]

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A tensor under another shape; 0 and -1 as Reshape has them. The same one for the same request."""
        key = name, tuple(shape)
        if key not in self._reshaped:
            self._reshaped[key] = self.append("Reshape", [name, self.constant("shape", np.array(shape, np.int64))])
        return self._reshaped[key]

    def size(self, name: str) -> str:
        """The number of elements of a tensor, as float32."""
        return self.append("Cast", [self.append("Size", [name])], to=int(onnx.TensorProto.FLOAT))
