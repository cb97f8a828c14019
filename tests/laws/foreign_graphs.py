# SPDX-License-Identifier: Apache-2.0
"""Writes the pairs of a Q/DQ model as other tools do, with the same meaning. No laws here."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

PAIR = ("QuantizeLinear", "DequantizeLinear")
FORMS = (
    "Identity",
    "Cast",
    "Clip",
    "two DQ",
    "second pair",
    "com.microsoft",
    "operands after Identity",
    "uint8 + 128",
)


def as_others_write(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same pairs, each in a form that is drawn for it: one of FORMS, or as it is. Nothing else is changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    draw, nodes = random.Random(seed), []
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in copy.graph.node:
        for index, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, index))
    given = {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        nodes.append(node)
        if node.op_type == PAIR[0]:
            behind = next(reader for reader, _ in readers[node.output[0]])
            nodes += _written(draw.choice((*FORMS, "")), node, behind, readers, given, copy)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    copy.opset_import.add(domain="com.microsoft", version=1)
    read = {name for node in copy.graph.node for name in node.input}
    for tensor in list(copy.graph.initializer):
        if tensor.name.startswith("qdqtool_zero_point") and tensor.name not in read:  # uint8 has another
            copy.graph.initializer.remove(tensor)
    return copy


def _written(
    form: str,
    quantize: NodeProto,
    dequantize: NodeProto,
    readers: dict[str, list[tuple[NodeProto, int]]],
    given: set[str],
    model: onnx.ModelProto,
) -> list[NodeProto]:
    """Nodes to stand after the Q; both nodes of the pair are edited."""
    name, output = quantize.output[0], dequantize.output[0]
    if form in ("Identity", "Cast", "Clip"):
        moved, inputs, attributes = f"{name}_between", [name], {}
        if form == "Cast":
            attributes["to"] = onnx.TensorProto.INT8
        if form == "Clip":
            for end, value in (("low", -128), ("high", 127)):
                tensor = numpy_helper.from_array(np.asarray(value, np.int8), f"{moved}_{end}")
                model.graph.initializer.append(tensor)
                inputs.append(tensor.name)
        dequantize.input[0] = moved
        return [helper.make_node(form, inputs, [moved], **attributes)]
    if form == "com.microsoft":
        quantize.domain = dequantize.domain = form
    if form == "operands after Identity":
        added = []
        for index in (1, 2):
            moved = f"{name}_operand{index}"
            added.append(helper.make_node("Identity", [quantize.input[index]], [moved]))
            quantize.input[index] = dequantize.input[index] = moved
        return added
    if form == "uint8 + 128":
        zero = next(tensor for tensor in model.graph.initializer if tensor.name == quantize.input[2])
        shifted = numpy_helper.from_array(np.full(list(zero.dims), 128, np.uint8), f"{name}_zero")
        model.graph.initializer.append(shifted)
        quantize.input[2] = dequantize.input[2] = shifted.name
    uses = readers.get(output, [])
    if form in ("two DQ", "second pair") and len(uses) > 1 and output not in given:
        return _second(form, quantize, dequantize, uses)
    return []


def _second(
    form: str, quantize: NodeProto, dequantize: NodeProto, uses: list[tuple[NodeProto, int]]
) -> list[NodeProto]:
    """Another DQ, or another pair, for the last reader."""
    source, added = quantize.output[0], []
    if form == "second pair":
        twin = NodeProto.FromString(quantize.SerializeToString())
        twin.name = twin.output[0] = source = f"{source}_twin"
        added.append(twin)
    back = NodeProto.FromString(dequantize.SerializeToString())
    back.input[0] = source
    back.name = back.output[0] = f"{dequantize.output[0]}_twin"
    node, index = uses[-1]
    node.input[index] = back.output[0]
    return [*added, back]


def with_stored_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The pairs of initializers as integers with a DQ, as `--dq_only` exporters store them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    values = {tensor.name: tensor for tensor in copy.graph.initializer}
    gone = []
    for node in copy.graph.node:
        if node.op_type == PAIR[0] and node.input[0] in values:
            weight, scale = (numpy_helper.to_array(values[name]) for name in node.input[:2])
            axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
            shape = [1] * weight.ndim
            if scale.ndim:
                shape[axis] = -1
            levels = np.clip(np.rint(weight / scale.reshape(shape if scale.ndim else ())), -128, 127).astype(np.int8)
            copy.graph.initializer.append(numpy_helper.from_array(levels, node.output[0]))
            gone.append(node)
    for node in gone:
        copy.graph.node.remove(node)
    return copy
