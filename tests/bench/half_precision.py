# SPDX-License-Identifier: Apache-2.0
"""A float32 model in FP16, Q/DQ pairs left as they are: weights and activations are halves, scales stay float32.

For benches alone: what the compiler does with such a file, not how accurate it is. Values beyond FP16 become Inf.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

QDQ = ("QuantizeLinear", "DequantizeLinear")
_KEPT = {"Resize": (1, 2), "Upsample": (1,), "QuantizeLinear": (0, 1, 2), "DequantizeLinear": (0, 1, 2)}


def half_precision(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that computes in FP16 between inputs and outputs that stay FP32; a Cast stands on each side of a pair.

    Args:
        model: main graph only, no external data.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    kept, halved = _reads_of(graph)
    for one in graph.initializer:
        if one.data_type == TensorProto.FLOAT and one.name in halved:
            if one.name in kept:  # two kinds of readers: one more tensor
                graph.initializer.append(_renamed(one, one.name + "_fp32"))
            one.CopyFrom(_half(one))
    both = {one.name for one in graph.initializer if one.data_type == TensorProto.FLOAT16} & kept
    constants = {one.name for one in graph.initializer}
    floats = _float_tensors(model)
    inputs = {one.name: f"{one.name}_fp16" for one in graph.input if one.name in floats and one.name not in constants}
    outputs = {one.name: f"{one.name}_fp16" for one in graph.output if one.name in floats}
    nodes = [helper.make_node("Cast", [old], [new], to=TensorProto.FLOAT16) for old, new in inputs.items()]
    names = {**inputs, **outputs}
    for node in graph.node:
        nodes += _converted(node, names, floats - constants, both)
    nodes += [helper.make_node("Cast", [new], [old], to=TensorProto.FLOAT) for old, new in outputs.items()]
    plain = [one for one in graph.input if one.name not in constants]
    del graph.node[:], graph.value_info[:], graph.input[:]  # before IR 4 initializers are inputs, too, of their type
    graph.node.extend(nodes)
    graph.input.extend(plain)
    made.ir_version = max(made.ir_version, 4)
    return made


def _reads_of(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Names that are read in places that stay float32, and names that are read in others."""
    kept, halved = set(), set()
    for node in graph.node:
        for index, name in enumerate(node.input):
            (kept if index in _KEPT.get(node.op_type, ()) else halved).add(name)
    return kept, halved


def _float_tensors(model: onnx.ModelProto) -> set[str]:
    """Names of float32 tensors by onnx's inference."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    reported = (*graph.value_info, *graph.input, *graph.output)
    return {one.name for one in reported if one.type.tensor_type.elem_type == TensorProto.FLOAT}


def _converted(node: onnx.NodeProto, names: dict[str, str], floats: set[str], both: set[str]) -> list[onnx.NodeProto]:
    """The node in FP16, with the Casts that it needs."""
    made, behind = onnx.NodeProto(), []
    made.CopyFrom(node)
    before = []
    for index, name in enumerate(node.input):
        if index in _KEPT.get(node.op_type, ()):
            if name in both:
                made.input[index] = name + "_fp32"
            elif name in floats:
                made.input[index] = f"{node.output[0]}_in{index}_fp32"
                before.append(helper.make_node("Cast", [names.get(name, name)], [made.input[index]], to=1))
        else:
            made.input[index] = names.get(name, name)
    for index, name in enumerate(node.output):
        new = names.get(name, name)
        if node.op_type == "DequantizeLinear":
            made.output[index] = f"{name}_dequantized"
            behind.append(helper.make_node("Cast", [made.output[index]], [new], to=TensorProto.FLOAT16))
        else:
            made.output[index] = new
    for one in made.attribute:
        if one.name == "to" and one.i == TensorProto.FLOAT:
            one.i = TensorProto.FLOAT16
        elif one.name == "value" and one.t.data_type == TensorProto.FLOAT:
            one.t.CopyFrom(_half(one.t))
    return [*before, made, *behind]


def _half(tensor: onnx.TensorProto) -> onnx.TensorProto:
    with np.errstate(over="ignore"):
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)


def _renamed(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    made = onnx.TensorProto()
    made.CopyFrom(tensor)
    made.name = name
    return made
