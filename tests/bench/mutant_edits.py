# SPDX-License-Identifier: Apache-2.0
"""Edits of Q/DQ graphs that mutants are made by: one fault or oddity each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from tests.bench.mutant_nets import FLOAT

Change = Callable[[onnx.ModelProto], None]


def _nodes_of(
    model: onnx.ModelProto, tensor: str, ops: tuple[str, ...] = (QUANTIZE, DEQUANTIZE)
) -> list[onnx.NodeProto]:
    names = {f"{tensor}_q", f"{tensor}_dq"}
    return [node for node in model.graph.node if node.op_type in ops and node.output[0] in names]


def _array(model: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


def put(model: onnx.ModelProto, name: str, array: np.ndarray, zero: str = "") -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))
    if zero:
        put(model, zero, np.zeros(array.shape, _array(model, zero).dtype))


def fill(model: onnx.ModelProto, name: str, value: float) -> None:
    old = _array(model, name)
    put(model, name, np.full(old.shape, value).astype(old.dtype))


def set_axis(
    model: onnx.ModelProto,
    tensor: str,
    axis: int | None,
    ops: tuple[str, ...] = (QUANTIZE, DEQUANTIZE),
    *,
    resize: bool = False,
) -> None:
    for node in _nodes_of(model, tensor, ops):
        kept = [item for item in node.attribute if item.name != "axis"]
        del node.attribute[:]
        node.attribute.extend(kept)
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
    if resize:
        sides = list(_array(model, "w").shape) if tensor == "w" else [_dim(d) for d in _shape_of(model)]
        along = 1 if axis is None else axis
        length = sides[along] if -len(sides) <= along < len(sides) else 8
        put(model, f"{tensor}_s", np.full(length, 0.02, np.float32), zero=f"{tensor}_z")


def _shape_of(model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(model.graph.input[0].type.tensor_type.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int:
    return int(dim.dim_value) or 1


def set_type(model: onnx.ModelProto, tensor: str, kind: int) -> None:
    set_kind(model, tensor, kind, 0)
    opset(17)(model)
    if kind not in (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32):
        opset(21)(model)


def set_kind(model: onnx.ModelProto, tensor: str, kind: int, value: int) -> None:
    name = f"{tensor}_z"
    shape = _array(model, name).shape
    stored = next(one for one in model.graph.initializer if one.name == name)
    stored.CopyFrom(helper.make_tensor(name, kind, shape, [value] * int(np.prod(shape, dtype=int))))
    opset(21)(model)


def set_blocks(model: onnx.ModelProto, kind: int, size: int, count: int | None = None) -> None:
    """Scales of `w` [16, 32] in blocks along axis 0."""
    blocks = count or -(-16 // size)
    put(model, "w_s", np.full((blocks, 32), 0.02, np.float32), zero="w_z")
    set_kind(model, "w", kind, 0)
    set_axis(model, "w", 0)
    for node in _nodes_of(model, "w"):
        node.attribute.append(helper.make_attribute("block_size", size))


def cast_scale(model: onnx.ModelProto, tensor: str, kind: type) -> None:
    put(model, f"{tensor}_s", _array(model, f"{tensor}_s").astype(kind))
    opset(19)(model)


def drop_zero_point(model: onnx.ModelProto, tensor: str, ops: tuple[str, ...]) -> None:
    for node in _nodes_of(model, tensor, ops):
        del node.input[2]


def full_rank_scale(model: onnx.ModelProto) -> None:
    sides = [1] * _array(model, "w").ndim
    sides[0] = _array(model, "w").shape[0]
    put(model, "w_s", np.full(sides, 0.02, np.float32), zero="w_z")


def behind(model: onnx.ModelProto, name: str, op: str) -> None:
    model.graph.node.insert(0, helper.make_node(op, [name], ["moved"], "moved"))
    for node in model.graph.node[1:]:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = "moved"


def computed(model: onnx.ModelProto, name: str) -> None:
    behind(model, name, "Identity")
    node = model.graph.node[0]
    node.op_type, node.input[0] = "ReduceMax", "x"
    node.attribute.append(helper.make_attribute("keepdims", 0))


def scale_input(model: onnx.ModelProto) -> None:
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "x_s"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(helper.make_tensor_value_info("x_s", FLOAT, []))


def two_scales(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.04)), "x_t"))
    _nodes_of(model, "x", (DEQUANTIZE,))[0].input[1] = "x_t"


def set_shape(model: onnx.ModelProto, shape: tuple[int | str, ...]) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, shape))


def reshape_weight(model: onnx.ModelProto, by: int) -> None:
    sides = list(_array(model, "w").shape)
    sides = [*sides, 1] if by > 0 else [*sides[:-2], sides[-2] * sides[-1]]
    put(model, "w", _array(model, "w").reshape(sides))


def opset(number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = number
        model.ir_version = max(model.ir_version, 10 if number >= 21 else 8)

    return change


def contrib(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in _nodes_of(model, "x"):
        node.domain = "com.microsoft"


def output(model: onnx.ModelProto, name: str, kind: int) -> None:
    model.graph.output.append(helper.make_tensor_value_info(name, kind, None))


def drop(model: onnx.ModelProto, output: str, instead: str) -> None:
    kept = [node for node in model.graph.node if node.output[0] != output]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    for node in model.graph.node:
        for place, read in enumerate(node.input):
            if read == output:
                node.input[place] = instead


def integer_input(model: onnx.ModelProto) -> None:
    drop(model, "x_q", "x")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8


def second_pair(model: onnx.ModelProto) -> None:
    last = next(place for place, node in enumerate(model.graph.node) if node.output[0] == "x_dq")
    model.graph.node[last].output[0] = "first"
    model.graph.node[last].name = "first"
    constants = ["x_s", "x_z"]
    model.graph.node.insert(last + 1, helper.make_node(QUANTIZE, ["first", *constants], ["second"], "second"))
    model.graph.node.insert(last + 2, helper.make_node(DEQUANTIZE, ["second", *constants], ["x_dq"], "x_dq"))


def store(model: onnx.ModelProto, kind: type) -> None:
    weight = np.clip(np.rint(_array(model, "w") / 0.02), -127, 127)
    put(model, "w", np.abs(weight).astype(kind) if kind is np.uint8 else weight.astype(kind))
    put(model, "w_z", np.zeros(_array(model, "w_z").shape, kind))
    drop(model, "w_q", "w")


def between(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    place = next(place for place, one in enumerate(model.graph.node) if one.output[0] == "x_dq")
    model.graph.node[place].input[0] = "m"
    model.graph.node.insert(place, node)


def one_name(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "same"


def stored_bias(model: onnx.ModelProto, kind: np.dtype) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8).astype(kind), "stored"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.01)), "b_s"))
    _bias(model, helper.make_node(DEQUANTIZE, ["stored", "b_s"], ["b_dq"], "b_dq"))


def pair_on_bias(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.01)), "b_s"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.int8(0)), "b_z"))
    model.graph.node.insert(0, helper.make_node(QUANTIZE, ["b", "b_s", "b_z"], ["b_q"], "b_q"))
    _bias(model, helper.make_node(DEQUANTIZE, ["b_q", "b_s", "b_z"], ["b_dq"], "b_dq"), place=1)


def _bias(model: onnx.ModelProto, node: onnx.NodeProto, place: int = 0) -> None:
    model.graph.node.insert(place, node)
    reader = next(one for one in model.graph.node if one.op_type == "Conv")
    reader.input[2] = "b_dq"


def integer_operator(model: onnx.ModelProto, op: str) -> None:
    """One more operator beside the rest, with outputs of its own."""
    if op == "DynamicQuantizeLinear":
        node, kinds = (
            helper.make_node(op, ["x"], ["i", "i_s", "i_z"], "i"),
            (TensorProto.UINT8, FLOAT, TensorProto.UINT8),
        )
    elif op == "ConvInteger":
        model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 1, 1), np.int8), "iw"))
        node, kinds = helper.make_node(op, ["x_q", "iw"], ["i"], "i"), (TensorProto.INT32,)
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 1, 1), np.int8), "iw"))
        inputs = ["x_q", "x_s", "x_z", "iw", "x_s", "x_z", "x_s", "x_z"]
        node, kinds = helper.make_node(op, inputs, ["i"], "i"), (TensorProto.INT8,)
    model.graph.node.append(node)
    for name, kind in zip(node.output, kinds, strict=True):
        output(model, name, kind)
