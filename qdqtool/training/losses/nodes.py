# SPDX-License-Identifier: Apache-2.0
"""Nodes of a loss, written after a forward graph: each is checked when it is made, for shapes and for a gradient.

Arithmetic on a `LossValue` writes nodes, so that a formula in `terms.py` or in a user's script reads as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.autodiff.activity import STOPS
from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.training.losses.options import nearest

# What both gradient back ends differentiate: the facts' probe of the training wheel, all of it rules of the built-in.
DIFFERENTIABLE = frozenset(
    {
        *("Abs", "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "Div", "Erf", "Exp", "Expand", "Flatten"),
        *("Gather", "Gemm", "GlobalAveragePool", "Identity", "LeakyRelu", "Log", "LogSoftmax", "MatMul", "Max"),
        *("MaxPool", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid"),
        *("Slice", "Softmax", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"),
    }
)
# What a term may ask of what is trained; through a step it would lose the gradient unawares.
_ANSWERS = STOPS - {"Ceil", "Floor", "Round"}
# Before opset 16 these are functions, into which shape inference of one node does not look.
_UNINFERRED = frozenset({"GreaterOrEqual", "LessOrEqual"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"})
# What makes probabilities, and what only moves them from there to an output, seen by its first input.
_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_MOVES = frozenset({"Concat", "Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
# Constants of so few elements may be axes or a shape, so shape inference must see their values.
_SMALL = 1024


@dataclass(frozen=True, eq=False)
class LossValue:
    """One tensor of a graph under construction.

    Attributes:
        name: in the graph.
        shape: its dimensions, all known.
        elem_type: ONNX element type.
        trained: whether a gradient is to run through it.
        nodes: where nodes that read it are written.
    """

    name: str
    shape: tuple[int, ...]
    elem_type: int
    trained: bool
    nodes: Nodes = field(repr=False)

    __array_ufunc__ = None  # so that an array on the left leaves the operation to this class

    @property
    def rank(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    def __add__(self, other: LossValue | npt.ArrayLike) -> LossValue:
        return self.nodes.op("Add", self, other)

    def __radd__(self, other: npt.ArrayLike) -> LossValue:
        return self.nodes.op("Add", other, self)

    def __sub__(self, other: LossValue | npt.ArrayLike) -> LossValue:
        return self.nodes.op("Sub", self, other)

    def __rsub__(self, other: npt.ArrayLike) -> LossValue:
        return self.nodes.op("Sub", other, self)

    def __mul__(self, other: LossValue | npt.ArrayLike) -> LossValue:
        return self.nodes.op("Mul", self, other)

    def __rmul__(self, other: npt.ArrayLike) -> LossValue:
        return self.nodes.op("Mul", other, self)

    def __truediv__(self, other: LossValue | npt.ArrayLike) -> LossValue:
        return self.nodes.op("Div", self, other)

    def __rtruediv__(self, other: npt.ArrayLike) -> LossValue:
        return self.nodes.op("Div", other, self)

    def __neg__(self) -> LossValue:
        return self.nodes.op("Neg", self)

    def sum(self) -> LossValue:
        """The sum of all elements, a scalar."""
        return self.nodes.op("ReduceSum", self, keepdims=0)

    def mean(self) -> LossValue:
        """The mean of all elements, a scalar."""
        return self.nodes.op("ReduceMean", self, keepdims=0)

    def sum_over(self, axis: int) -> LossValue:
        """The sum along one axis, which goes."""
        return self.nodes.op("ReduceSum", self, self.nodes.constant(np.array([axis], np.int64)), keepdims=0)

    def max_over(self, axis: int) -> LossValue:
        """The largest along one axis, which stays with size 1."""
        if self.nodes.opset < 18:
            return self.nodes.op("ReduceMax", self, axes=[axis], keepdims=1)
        return self.nodes.op("ReduceMax", self, self.nodes.constant(np.array([axis], np.int64)), keepdims=1)

    def unsqueeze(self, axis: int) -> LossValue:
        """With an axis of size 1 put in."""
        return self.nodes.op("Unsqueeze", self, self.nodes.constant(np.array([axis], np.int64)))

    def as_float(self) -> LossValue:
        """As float32."""
        return self.nodes.op("Cast", self, to=TensorProto.FLOAT)


class Nodes:
    """Adds nodes, constants and inputs to one graph, under names that are free.

    Attributes:
        graph: what grows.
        parameters: names of the initializers made by `parameter`, in order.
        opset: of the graph.
        names: those that are taken in it.
        notes: tensor that a term names -> what the user should know of it, a sentence.
    """

    def __init__(self, proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Start after a graph."""
        self.graph = proto.graph
        self.parameters: list[str] = []
        self.notes: dict[str, str] = {}
        self._shapes = shapes
        self.opset = next(one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
        self._ir = proto.ir_version
        self._fixed = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
        described = (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)
        self._types = {value.name: value.type.tensor_type.elem_type for value in described}
        self._given = {value.name for value in proto.graph.input}
        self._made = {name: node for node in proto.graph.node for name in node.output if name}
        self._builder = GraphBuilder(proto)
        self.names = self._builder.names
        self._small: dict[str, onnx.TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], LossValue] = {}

    # ------------------------------------------------------------------ what is there

    def tensor(self, name: str, where: object) -> LossValue:
        """A tensor of the forward graph.

        Raises:
            QdqError: there is none of that name; the nearest name is given.
        """
        if not self.has(name):
            guess = nearest(name, sorted(self._made.keys() | self._given))
            raise QdqError(where, f"the model has no tensor {name}{guess}", "qdqtool report MODEL lists the names")
        elem_type = self._fixed.get(name) or self._types.get(name) or TensorProto.FLOAT
        trained = name not in self._given and elem_type == TensorProto.FLOAT
        return LossValue(name, tuple(self._shapes[name]), elem_type, trained, self)

    def has(self, name: str) -> bool:
        """Whether the forward graph has a tensor of this name."""
        return name in self._shapes and (name in self._made or name in self._given or name in self._fixed)

    def logits(self, value: LossValue, activation: str, wanted_by: str, axis: int | None = None) -> LossValue:
        """The tensor before the Sigmoid or Softmax that made one, where a loss wants logits; noted. Else the tensor.

        Args:
            value: of the forward graph.
            activation: Sigmoid or Softmax: the one that the loss applies itself.
            wanted_by: the loss, for the note.
            axis: of the classes, not negative; for Softmax.
        """
        maker = self._maker(value.name)
        if maker is None or not is_activation(maker, activation, axis, value.rank) or not self.has(maker.input[0]):
            self.note_probabilities(value, wanted_by)
            return value
        before = self.tensor(maker.input[0], wanted_by)
        said = f"{value.name} is the output of a {activation} and {wanted_by} takes logits: {before.name} is used"
        self.notes.setdefault(value.name, said)
        return before

    def logits_of(self, name: str, activation: str) -> LossValue:
        """An output as it would be without the Sigmoids or Softmaxes of its scores, whatever only moved them since.

        The nodes that move are written once more around the logits; what has no such activation behind it, such as a
        box's offsets, is read as it is.

        Raises:
            QdqError: no such tensor, or its scores come from no such activation; "" asks for none.
        """
        value = self.tensor(name, "--labels")
        bare = self._bare(name, activation, {}) if activation else name
        if activation and bare == name:
            reason = f"{name} holds probabilities, and no {activation} that made them was found"
            raise QdqError("--labels", reason, "export the model with its logits, or give --loss")
        return LossValue(bare, value.shape, value.elem_type, True, self)

    def _bare(self, name: str, activation: str, done: dict[str, str]) -> str:
        """The name of a tensor without activations: its own where there is none."""
        node = self._made.get(name)
        if node is None or name in done:
            return done.get(name, name)
        done[name] = name
        if node.op_type == activation:
            done[name] = node.input[0]
        elif node.domain == PAIR_DOMAIN or node.op_type == "Identity":
            before = self._bare(node.input[0], activation, done)
            done[name] = name if before == node.input[0] else before
        elif node.op_type in _MOVES - {"Split"}:
            count = len(node.input) if node.op_type == "Concat" else 1
            inputs = [self._bare(one, activation, done) for one in node.input[:count]]
            if inputs != list(node.input[:count]):
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                copy.name = done[name] = self.names.unique(f"loss/{node.op_type}")
                copy.input[:count] = inputs
                copy.output[:] = [done[name]]
                self.graph.node.append(copy)
        return done[name]

    def note_probabilities(self, value: LossValue, wanted_by: str) -> None:
        """Note where a loss wants logits and takes what a Sigmoid or Softmax made."""
        maker = self._maker(value.name)
        while maker is not None and maker.op_type in _MOVES:
            maker = self._maker(maker.input[0])
        if maker is not None and maker.op_type in _PROBABILITIES:
            said = f"{value.name} holds what a {maker.op_type} made and {wanted_by} takes logits"
            self.notes.setdefault(value.name, f"{said}: name the tensor before it, {maker.input[0]}")

    def _maker(self, name: str) -> onnx.NodeProto | None:
        """The node of the forward graph that made a tensor; pairs and Identity are seen through."""
        node = self._made.get(name)
        while node is not None and (node.domain == PAIR_DOMAIN or node.op_type == "Identity"):
            node = self._made.get(node.input[0])
        return node

    # ------------------------------------------------------------------ what is new

    def constant(self, array: npt.NDArray[Any], base: str = "loss/constant") -> LossValue:
        """A constant; float64 becomes float32, and int of any width int64."""
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key in self._constants:
            return self._constants[key]
        name = self._builder.initializer(base, array)
        tensor = self.graph.initializer[-1]
        if array.size <= _SMALL:
            self._small[name] = tensor
        self._constants[key] = LossValue(name, array.shape, tensor.data_type, False, self)
        return self._constants[key]

    def parameter(self, array: npt.NDArray[np.float32], base: str) -> LossValue:
        """An initializer that is trained with the weights and not exported."""
        name = self._builder.initializer(base, np.asarray(array, np.float32))
        self.parameters.append(name)
        return LossValue(name, array.shape, TensorProto.FLOAT, True, self)

    def input(self, name: str, shape: Sequence[int], elem_type: int = TensorProto.FLOAT) -> LossValue:
        """A further input of the graph; `names` has it not yet, or gave it."""
        self.names.add(name)
        self.graph.input.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return LossValue(name, tuple(shape), elem_type, False, self)

    def op(self, op_type: str, *inputs: LossValue | npt.ArrayLike, **attributes: Any) -> LossValue:
        """One node of the default domain; arrays become constants, numbers such of the other inputs' type.

        Raises:
            QdqError: the operator does not exist, does not go with these inputs, or stands between the model and the
                loss though a back end has no gradient for it.
        """
        values = self._values(op_type, inputs)
        trained = any(value.trained for value in values)
        if trained and op_type not in DIFFERENTIABLE | _ANSWERS:
            guess = nearest(op_type, sorted(DIFFERENTIABLE))
            raise QdqError(op_type, f"has no gradient in both back ends{guess}", "write the loss with another operator")
        if op_type == "Conv" and "auto_pad" in attributes:
            raise QdqError(op_type, "has auto_pad, whose gradient is wrong in one back end", "state pads")
        if op_type in _ARITHMETIC | _UNINFERRED:
            _check_operands(op_type, values)
        output = self.names.unique(f"loss/{op_type}")
        node = self._builder.node(op_type, [value.name for value in values], output, **attributes)
        shape, elem_type = self._inferred(node, values)
        self.graph.node.append(node)
        passes = trained and op_type not in STOPS and elem_type == TensorProto.FLOAT
        return LossValue(output, shape, elem_type, passes, self)

    def named(self, value: LossValue, base: str) -> str:
        """The scalar under a name that tells what it is, as a graph output."""
        name = self._builder.append("Identity", [value.name], base)
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
        return name

    # ------------------------------------------------------------------ how

    def _values(self, op_type: str, inputs: Sequence[LossValue | npt.ArrayLike]) -> list[LossValue]:
        """The inputs, arrays and numbers as constants; numbers and terms of arithmetic take the others' type."""
        floats = all(one.elem_type == TensorProto.FLOAT for one in inputs if isinstance(one, LossValue))
        values = []
        for one in inputs:
            if not isinstance(one, LossValue):
                array = np.asarray(one)
                adapts = array.ndim == 0 or op_type in _ARITHMETIC
                one = self.constant(array.astype(np.float32 if floats else np.int64) if adapts else array)
            values.append(one)
        return values

    def _inferred(self, node: onnx.NodeProto, values: Sequence[LossValue]) -> tuple[tuple[int, ...], int]:
        """Shape and element type of a node's output, by ONNX's own shape inference."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            known = sorted({one.name for one in onnx.defs.get_all_schemas() if not one.domain})
            raise QdqError(
                node.op_type,
                f"is not an ONNX operator of opset {self.opset}{nearest(node.op_type, known)}",
                "see onnx.ai",
            ) from None
        types = {one.name: helper.make_tensor_type_proto(one.elem_type, one.shape) for one in values}
        data = {one.name: self._small[one.name] for one in values if one.name in self._small}
        opsets = [helper.make_opsetid("", self.opset)]
        listed = ", ".join(str(list(value.shape)) for value in values)
        try:
            found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, None, opsets, self._ir)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            line = str(error).splitlines()[0]
            raise QdqError(node.op_type, f"does not take inputs of shapes {listed} ({line})", "fix the loss") from None
        tensor = found[node.output[0]].tensor_type if found else None
        if node.op_type in _UNINFERRED:
            return np.broadcast_shapes(*(value.shape for value in values)), TensorProto.BOOL
        if tensor is None or not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
            reason = f"gives a shape that depends on values, from inputs of shapes {listed}"
            raise QdqError(node.op_type, reason, "give its shape or axes as constants")
        return tuple(dim.dim_value for dim in tensor.shape.dim), tensor.elem_type


def is_activation(node: onnx.NodeProto, op_type: str, axis: int | None, rank: int, opset: int = 13) -> bool:
    """Whether a node is a Sigmoid, or a Softmax along one axis of tensors of a rank. Up to opset 12 it flattens."""
    if node.op_type != op_type or node.domain not in ("", "ai.onnx"):
        return False
    if axis is None:
        return True
    own = next((item.i for item in node.attribute if item.name == "axis"), -1 if opset >= 13 else 1) % rank
    return own == axis and (opset >= 13 or own == rank - 1)


def _check_operands(op_type: str, values: Sequence[LossValue]) -> None:
    """Say in our words what goes wrong most often."""
    listed = " and ".join(f"{value.name} {list(value.shape)}" for value in values)
    if len({value.elem_type for value in values}) > 1:
        raise QdqError(op_type, f"{listed} are of different types", "bring them to floats with .as_float()")
    try:
        np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        raise QdqError(op_type, f"the shapes of {listed} do not match", "fix the loss") from None
