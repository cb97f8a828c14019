# SPDX-License-Identifier: Apache-2.0
"""Q/DQ graphs with one fault or oddity each: axis, type, zero point, scale, opset, rank, form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE

FLOAT = TensorProto.FLOAT
_BASES = ("conv", "depthwise", "transposed", "gemm", "matmul", "residual", "concat", "pool")


@dataclass(frozen=True)
class Mutant:
    """A model and what was done to it.

    Attributes:
        family: axis, type, zero-point, scale, opset, rank, form or block.
        name: of the mutant, with its base.
        model: the graph.
    """

    family: str
    name: str
    model: onnx.ModelProto


class _Net:
    """A graph under construction; pairs are `<tensor>_q`, `<tensor>_dq` with constants `<tensor>_s`, `<tensor>_z`."""

    def __init__(self, sides: tuple[int, ...]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.sides = sides
        self.values = np.random.default_rng(7)

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def weight(self, name: str, *shape: int) -> str:
        self.constants[name] = self.values.normal(0, 0.1, shape).astype(np.float32)
        return name

    def pair(self, name: str, channels: int = 0, axis: int = 0) -> str:
        """A pair on a tensor: one scale, or one for each of so many channels along an axis."""
        scale = np.full(channels, 0.02, np.float32) if channels else np.float32(0.02)
        self.constants[f"{name}_s"] = np.asarray(scale)
        self.constants[f"{name}_z"] = np.zeros(np.shape(scale), np.int8)
        along = {"axis": axis} if channels else {}
        self.node(QUANTIZE, [name, f"{name}_s", f"{name}_z"], f"{name}_q", **along)
        return self.node(DEQUANTIZE, [f"{name}_q", f"{name}_s", f"{name}_z"], f"{name}_dq", **along)

    def model(self, last: str, opset: int = 17) -> onnx.ModelProto:
        self.nodes[-1].output[0] = self.nodes[-1].name = "y"
        ends = [helper.make_tensor_value_info("x", FLOAT, self.sides), helper.make_tensor_value_info("y", FLOAT, None)]
        stored = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "mutant", ends[:1], ends[1:], stored)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def base(kind: str) -> onnx.ModelProto:
    """A sound Q/DQ graph: pairs on `x` and on the weight `w`."""
    if kind in ("gemm", "matmul"):
        net = _Net((4, 16))
        if kind == "gemm":
            net.node("Gemm", [net.pair("x"), net.pair(net.weight("w", 32, 16), 32)], "p", transB=1)
        else:
            net.node("MatMul", [net.pair("x"), net.pair(net.weight("w", 16, 32), 32, 1)], "p")
        net.node("Relu", ["p"], "r")
        return net.model("r")
    net = _Net((1, 8, 16, 16))
    pads = {"pads": [1, 1, 1, 1]}
    if kind == "transposed":
        net.node("ConvTranspose", [net.pair("x"), net.pair(net.weight("w", 8, 8, 3, 3))], "c", **pads)
    elif kind == "depthwise":
        net.node("Conv", [net.pair("x"), net.pair(net.weight("w", 8, 1, 3, 3), 8)], "c", group=8, **pads)
    else:
        net.node("Conv", [net.pair("x"), net.pair(net.weight("w", 8, 8, 3, 3), 8), net.weight("b", 8)], "c", **pads)
    net.node("Relu", ["c"], "r")
    if kind == "residual":
        net.node("Add", ["r", "x_dq"], "a")
    elif kind == "concat":
        net.node("Concat", [net.pair("r"), "x_dq"], "a", axis=1)
    elif kind == "pool":
        net.node("MaxPool", [net.pair("r")], "a", kernel_shape=[2, 2], strides=[2, 2])
    return net.model("r")


def mutants() -> Iterator[Mutant]:
    """Every mutation of every base that it can be done to."""
    for kind in _BASES:
        yield Mutant("form", f"{kind}: sound", base(kind))
        for family, name, change in _changes(kind):
            model = base(kind)
            change(model)
            yield Mutant(family, f"{kind}: {name}", model)


Change = Callable[[onnx.ModelProto], None]


def _changes(kind: str) -> Iterator[tuple[str, str, Change]]:
    yield from _axes(kind)
    yield from _types()
    yield from _zero_points(kind)
    yield from _scales()
    yield from (("opset", f"opset {number}", _opset(number)) for number in (9, 10, 11, 12, 13, 19, 20, 21, 22, 23, 24))
    yield from _ranks(kind)
    yield from _forms(kind)
    if kind == "matmul":
        yield from _blocks()


def _axes(kind: str) -> Iterator[tuple[str, str, Change]]:
    for axis in (0, 1, 2, -1, 7, None):
        yield "axis", f"w along axis {axis}", lambda model, axis=axis: _set_axis(model, "w", axis, resize=True)
        yield "axis", f"w along axis {axis}, scales as they were", lambda model, axis=axis: _set_axis(model, "w", axis)
    yield "axis", "axis of the Q alone", lambda model: _set_axis(model, "w", 1, ops=(QUANTIZE,))
    yield "axis", "x along axis 1", lambda model: _set_axis(model, "x", 1, resize=True)
    yield "axis", "x along axis 0", lambda model: _set_axis(model, "x", 0, resize=True)


def _types() -> Iterator[tuple[str, str, Change]]:
    kinds = {
        "uint8": TensorProto.UINT8,
        "int16": TensorProto.INT16,
        "uint16": TensorProto.UINT16,
        "int32": TensorProto.INT32,
        "int4": TensorProto.INT4,
        "uint4": TensorProto.UINT4,
        "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
        "float8e5m2": TensorProto.FLOAT8E5M2,
    }
    for name, kind in kinds.items():
        yield "type", f"{name} on x", lambda model, kind=kind: _set_type(model, "x", kind)
        yield "type", f"{name} on w", lambda model, kind=kind: _set_type(model, "w", kind)
        yield (
            "type",
            f"{name} on both",
            lambda model, kind=kind: (_set_type(model, "x", kind), _set_type(model, "w", kind)),
        )
    yield "type", "FP16 scale of x", lambda model: _cast_scale(model, "x", np.float16)
    yield "type", "FP16 scale of w", lambda model: _cast_scale(model, "w", np.float16)
    yield "type", "FP64 scale of x", lambda model: _cast_scale(model, "x", np.float64)


def _zero_points(kind: str) -> Iterator[tuple[str, str, Change]]:
    for value in (1, -3):
        yield "zero-point", f"{value} on x", lambda model, value=value: _fill(model, "x_z", value)
        yield "zero-point", f"{value} on w", lambda model, value=value: _fill(model, "w_z", value)
    for value in (5, 128):
        yield (
            "zero-point",
            f"uint8 {value} on x",
            lambda model, value=value: (_set_type(model, "x", TensorProto.UINT8), _fill(model, "x_z", value)),
        )
    yield "zero-point", "none on x", lambda model: _drop_zero_point(model, "x", (QUANTIZE, DEQUANTIZE))
    yield "zero-point", "none on the Q of x", lambda model: _drop_zero_point(model, "x", (QUANTIZE,))
    yield "zero-point", "none on w", lambda model: _drop_zero_point(model, "w", (QUANTIZE, DEQUANTIZE))
    yield "zero-point", "of shape [1] on x", lambda model: _put(model, "x_z", np.zeros(1, np.int8))
    yield "zero-point", "of another length on w", lambda model: _put(model, "w_z", np.zeros(3, np.int8))


def _scales() -> Iterator[tuple[str, str, Change]]:
    for value in (0.0, -0.5, np.nan, np.inf, 1e-41, 1e30):
        yield "scale", f"{value} of x", lambda model, value=value: _fill(model, "x_s", value)
        yield "scale", f"{value} of w", lambda model, value=value: _fill(model, "w_s", value)
    yield "scale", "of shape [1] of x", lambda model: _put(model, "x_s", np.full(1, 0.02, np.float32), zero="x_z")
    yield (
        "scale",
        "of shape [1,1] of x",
        lambda model: _put(model, "x_s", np.full((1, 1), 0.02, np.float32), zero="x_z"),
    )
    yield "scale", "of w with every axis", _full_rank_scale
    yield "scale", "of w too long", lambda model: _put(model, "w_s", np.full(33, 0.02, np.float32), zero="w_z")
    yield "scale", "of w empty", lambda model: _put(model, "w_s", np.zeros(0, np.float32), zero="w_z")
    yield "scale", "of x behind an Identity", lambda model: _behind(model, "x_s", "Identity")
    yield "scale", "of x computed", lambda model: _computed(model, "x_s")
    yield "scale", "of x an input of the graph", _scale_input
    yield "scale", "of Q and DQ differ", _two_scales


def _ranks(kind: str) -> Iterator[tuple[str, str, Change]]:
    if kind in ("gemm", "matmul"):
        shapes = ((16,), (1, 4, 16), (1, 1, 4, 16), ("N", 16))
    else:
        shapes = ((8, 16, 16), (1, 8, 16), (1, 8, 4, 16, 16), ("N", 8, "H", "W"), (1, 4, 16, 16))
    for shape in shapes:
        yield "rank", f"x is {'x'.join(map(str, shape))}", lambda model, shape=shape: _set_shape(model, shape)
    yield "rank", "w has an axis more", lambda model: _reshape_weight(model, 1)
    yield "rank", "w has an axis less", lambda model: _reshape_weight(model, -1)


def _blocks() -> Iterator[tuple[str, str, Change]]:
    """Scales in blocks along the inner side of a matrix product, 16 long, and formats of 4 and 8 bits."""
    kinds = {"int4": TensorProto.INT4, "int8": TensorProto.INT8, "float8e4m3fn": TensorProto.FLOAT8E4M3FN}
    for name, kind in kinds.items():
        for size in (5, 8, 16, 32):
            yield "block", f"{name} in blocks of {size}", lambda m, kind=kind, size=size: _set_blocks(m, kind, size)
    for name, kind in kinds.items():
        yield "block", f"{name} with the zero point 1", lambda m, kind=kind: _set_kind(m, "w", kind, 1)
    yield "block", "one block too few", lambda m: _set_blocks(m, TensorProto.INT8, 8, count=1)
    yield "block", "FP8 on x, INT8 on w", lambda m: _set_kind(m, "x", TensorProto.FLOAT8E4M3FN, 0)


def _forms(kind: str) -> Iterator[tuple[str, str, Change]]:
    yield "form", "com.microsoft", _contrib
    yield "form", "the Q of x is an output", lambda model: _output(model, "x_q", TensorProto.INT8)
    yield "form", "no DQ behind the Q of x", lambda model: _drop(model, "x_dq", "x_q")
    yield "form", "no Q before the DQ of x", _integer_input
    yield "form", "two pairs on x", _second_pair
    yield "form", "stored integers in w", lambda model: _store(model, np.int8)
    yield "form", "stored uint8 in w", lambda model: _store(model, np.uint8)
    yield "form", "stored int32 in w", lambda model: _store(model, np.int32)
    yield (
        "form",
        "Identity between Q and DQ",
        lambda model: _between(model, helper.make_node("Identity", ["x_q"], ["m"], "m")),
    )
    yield "form", "Relu between Q and DQ", lambda model: _between(model, helper.make_node("Relu", ["x_q"], ["m"], "m"))
    yield "form", "shared node names", _one_name
    if kind not in ("gemm", "matmul"):
        pool = helper.make_node("MaxPool", ["x_q"], ["m"], "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        yield "form", "MaxPool between Q and DQ", lambda model: _between(model, pool)
    if kind in ("conv", "residual", "concat", "pool"):
        for name in ("int32", "int8"):
            yield "form", f"{name} bias behind a DQ", lambda model, name=name: _stored_bias(model, np.dtype(name))
        yield "form", "bias behind a pair", _pair_on_bias
    for op in ("DynamicQuantizeLinear", "ConvInteger", "QLinearConv"):
        yield "form", op, lambda model, op=op: _integer_operator(model, op)


# What the changes are made of


def _nodes_of(
    model: onnx.ModelProto, tensor: str, ops: tuple[str, ...] = (QUANTIZE, DEQUANTIZE)
) -> list[onnx.NodeProto]:
    names = {f"{tensor}_q", f"{tensor}_dq"}
    return [node for node in model.graph.node if node.op_type in ops and node.output[0] in names]


def _array(model: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


def _put(model: onnx.ModelProto, name: str, array: np.ndarray, zero: str = "") -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))
    if zero:
        _put(model, zero, np.zeros(array.shape, _array(model, zero).dtype))


def _fill(model: onnx.ModelProto, name: str, value: float) -> None:
    old = _array(model, name)
    _put(model, name, np.full(old.shape, value).astype(old.dtype))


def _set_axis(
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
        _put(model, f"{tensor}_s", np.full(length, 0.02, np.float32), zero=f"{tensor}_z")


def _shape_of(model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(model.graph.input[0].type.tensor_type.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int:
    return int(dim.dim_value) or 1


def _set_type(model: onnx.ModelProto, tensor: str, kind: int) -> None:
    _set_kind(model, tensor, kind, 0)
    _opset(17)(model)
    if kind not in (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32):
        _opset(21)(model)


def _set_kind(model: onnx.ModelProto, tensor: str, kind: int, value: int) -> None:
    name = f"{tensor}_z"
    shape = _array(model, name).shape
    stored = next(one for one in model.graph.initializer if one.name == name)
    stored.CopyFrom(helper.make_tensor(name, kind, shape, [value] * int(np.prod(shape, dtype=int))))
    _opset(21)(model)


def _set_blocks(model: onnx.ModelProto, kind: int, size: int, count: int | None = None) -> None:
    """Scales of `w` [16, 32] in blocks along axis 0."""
    blocks = count or -(-16 // size)
    _put(model, "w_s", np.full((blocks, 32), 0.02, np.float32), zero="w_z")
    _set_kind(model, "w", kind, 0)
    _set_axis(model, "w", 0)
    for node in _nodes_of(model, "w"):
        node.attribute.append(helper.make_attribute("block_size", size))


def _cast_scale(model: onnx.ModelProto, tensor: str, kind: type) -> None:
    _put(model, f"{tensor}_s", _array(model, f"{tensor}_s").astype(kind))
    _opset(19)(model)


def _drop_zero_point(model: onnx.ModelProto, tensor: str, ops: tuple[str, ...]) -> None:
    for node in _nodes_of(model, tensor, ops):
        del node.input[2]


def _full_rank_scale(model: onnx.ModelProto) -> None:
    sides = [1] * _array(model, "w").ndim
    sides[0] = _array(model, "w").shape[0]
    _put(model, "w_s", np.full(sides, 0.02, np.float32), zero="w_z")


def _behind(model: onnx.ModelProto, name: str, op: str) -> None:
    model.graph.node.insert(0, helper.make_node(op, [name], ["moved"], "moved"))
    for node in model.graph.node[1:]:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = "moved"


def _computed(model: onnx.ModelProto, name: str) -> None:
    _behind(model, name, "Identity")
    node = model.graph.node[0]
    node.op_type, node.input[0] = "ReduceMax", "x"
    node.attribute.append(helper.make_attribute("keepdims", 0))


def _scale_input(model: onnx.ModelProto) -> None:
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "x_s"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(helper.make_tensor_value_info("x_s", FLOAT, []))


def _two_scales(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.04)), "x_t"))
    _nodes_of(model, "x", (DEQUANTIZE,))[0].input[1] = "x_t"


def _set_shape(model: onnx.ModelProto, shape: tuple[int | str, ...]) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, shape))


def _reshape_weight(model: onnx.ModelProto, by: int) -> None:
    sides = list(_array(model, "w").shape)
    sides = [*sides, 1] if by > 0 else [*sides[:-2], sides[-2] * sides[-1]]
    _put(model, "w", _array(model, "w").reshape(sides))


def _opset(number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = number
        model.ir_version = max(model.ir_version, 10 if number >= 21 else 8)

    return change


def _contrib(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in _nodes_of(model, "x"):
        node.domain = "com.microsoft"


def _output(model: onnx.ModelProto, name: str, kind: int) -> None:
    model.graph.output.append(helper.make_tensor_value_info(name, kind, None))


def _drop(model: onnx.ModelProto, output: str, instead: str) -> None:
    kept = [node for node in model.graph.node if node.output[0] != output]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    for node in model.graph.node:
        for place, read in enumerate(node.input):
            if read == output:
                node.input[place] = instead


def _integer_input(model: onnx.ModelProto) -> None:
    _drop(model, "x_q", "x")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8


def _second_pair(model: onnx.ModelProto) -> None:
    last = next(place for place, node in enumerate(model.graph.node) if node.output[0] == "x_dq")
    model.graph.node[last].output[0] = "first"
    model.graph.node[last].name = "first"
    constants = ["x_s", "x_z"]
    model.graph.node.insert(last + 1, helper.make_node(QUANTIZE, ["first", *constants], ["second"], "second"))
    model.graph.node.insert(last + 2, helper.make_node(DEQUANTIZE, ["second", *constants], ["x_dq"], "x_dq"))


def _store(model: onnx.ModelProto, kind: type) -> None:
    weight = np.clip(np.rint(_array(model, "w") / 0.02), -127, 127)
    _put(model, "w", np.abs(weight).astype(kind) if kind is np.uint8 else weight.astype(kind))
    _put(model, "w_z", np.zeros(_array(model, "w_z").shape, kind))
    _drop(model, "w_q", "w")


def _between(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    place = next(place for place, one in enumerate(model.graph.node) if one.output[0] == "x_dq")
    model.graph.node[place].input[0] = "m"
    model.graph.node.insert(place, node)


def _one_name(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "same"


def _stored_bias(model: onnx.ModelProto, kind: np.dtype) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8).astype(kind), "stored"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.01)), "b_s"))
    _bias(model, helper.make_node(DEQUANTIZE, ["stored", "b_s"], ["b_dq"], "b_dq"))


def _pair_on_bias(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.01)), "b_s"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.int8(0)), "b_z"))
    model.graph.node.insert(0, helper.make_node(QUANTIZE, ["b", "b_s", "b_z"], ["b_q"], "b_q"))
    _bias(model, helper.make_node(DEQUANTIZE, ["b_q", "b_s", "b_z"], ["b_dq"], "b_dq"), place=1)


def _bias(model: onnx.ModelProto, node: onnx.NodeProto, place: int = 0) -> None:
    model.graph.node.insert(place, node)
    reader = next(one for one in model.graph.node if one.op_type == "Conv")
    reader.input[2] = "b_dq"


def _integer_operator(model: onnx.ModelProto, op: str) -> None:
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
        _output(model, name, kind)
