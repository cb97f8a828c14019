# SPDX-License-Identifier: Apache-2.0
"""Numbers that follow from constants and known shapes: what exporters compute a Reshape's target by. No float data.

onnx's inference follows some of these operators; PyTorch's unflatten (Mod, Reshape), windows (Div, Cast, Floor) and
expand (Equal, Where) are others. What is not all known is left to it: it follows single axes by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto

from qdqtool.graph.view import GraphView, Node, attribute

Value = npt.NDArray[Any]
Shape = tuple[int | None, ...]  # None for a free axis
_MOST = 64  # numbers in one value: a shape, an index, not data
_KINDS = {onnx.TensorProto.INT64: np.int64, onnx.TensorProto.INT32: np.int32, onnx.TensorProto.FLOAT: np.float32}


class ShapeValues:
    """The small numbers of one graph; more of them become known as shapes do.

    Attributes:
        known: tensor -> its value, at most 64 numbers.
    """

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.known: dict[str, Value] = {}
        self._constants: dict[str, Value | None] = {}
        self._waiting = {node.key: node for node in view.every if node.op in _COMPUTED or node.op == "Shape"}

    def follow(self, name: str, shapes: Mapping[str, Shape]) -> bool:
        """Work out the first output of a node where that is possible by now; whether it is new."""
        node = self._waiting.get(name)
        value = None if node is None else self._value(node, shapes)
        if value is None:
            return False
        self.known[name] = value
        del self._waiting[name]
        return True

    def constant(self, node: NodeProto) -> NodeProto | None:
        """A Constant in place of a node whose value is known."""
        value = self.known.get(node.output[0]) if node.output else None
        if value is None:
            return None
        return onnx.helper.make_node("Constant", [], [node.output[0]], value=onnx.numpy_helper.from_array(value))

    def _value(self, node: Node, shapes: Mapping[str, Shape]) -> Value | None:
        if node.op == "Shape":
            shape = shapes.get(node.inputs[0], (None,))
            start, end = attribute(node, "start", 0), attribute(node, "end")
            return None if None in shape else np.array(shape, np.int64)[start:end]
        given = [value for name in node.inputs if (value := self.number(name)) is not None]
        if not given or len(given) < len(node.inputs):
            return None
        try:
            made = np.asarray(_COMPUTED[node.op](node, given))
        except (ArithmeticError, IndexError, LookupError, TypeError, ValueError):
            return None  # not well formed: inference says what it can
        return made if made.size <= _MOST else None

    def number(self, name: str) -> Value | None:
        """The value of a tensor, where it is known by now or a short constant."""
        if name in self.known:
            return self.known[name]
        if name not in self._constants:
            shape = self.view.shape(name) if name and self.view.is_constant(name) else None
            short = shape is not None and math.prod(shape) <= _MOST
            self._constants[name] = self.view.array(name) if short else None
        return self._constants[name]


def _axes(node: Node, given: list[Value]) -> list[int]:
    """The axes of a Squeeze or Unsqueeze, as an input or, before opset 13, as an attribute."""
    listed = given[1].reshape(-1).tolist() if len(given) > 1 else attribute(node, "axes", [])
    assert isinstance(listed, list)
    return listed


def _divided(node: Node, given: list[Value]) -> Value:
    first, second = given
    if first.dtype.kind == "f":
        return np.divide(first, second, dtype=first.dtype)
    if (first < 0).any() or (second <= 0).any():
        raise ValueError(node.name)
    return np.asarray(first // second)


def _remainder(node: Node, given: list[Value]) -> Value:
    if attribute(node, "fmod", 0) or (given[1] <= 0).any():
        raise ValueError(node.name)
    return np.asarray(np.mod(*given))


def _sliced(node: Node, given: list[Value]) -> Value:
    data, starts, ends, *others = given
    axes = others[0].tolist() if others else range(len(starts))
    steps = others[1].tolist() if len(others) > 1 else [1] * len(starts)
    where = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts.tolist(), ends.tolist(), steps, strict=True):
        where[axis] = slice(start, end, step)
    return data[tuple(where)]


def _filled(node: Node, given: list[Value]) -> Value:
    value = attribute(node, "value")
    filling = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.zeros(1, np.float32)
    shape = tuple(given[0].tolist())
    if math.prod(shape) > _MOST:
        raise ValueError(node.name)
    return np.full(shape, filling.reshape(()))


def _expanded(node: Node, given: list[Value]) -> Value:
    shape = np.broadcast_shapes(given[0].shape, tuple(given[1].tolist()))
    if math.prod(shape) > _MOST:
        raise ValueError(node.name)
    return np.broadcast_to(given[0], shape)


def _ranged(node: Node, given: list[Value]) -> Value:
    start, limit, delta = (value.item() for value in given)
    numbers = range(start, limit, delta)
    if len(numbers) > _MOST:
        raise ValueError(node.name)
    return np.array(numbers, given[0].dtype)


def _reshaped(node: Node, given: list[Value]) -> Value:
    target = given[1].tolist()
    if 0 in target:
        raise ValueError(node.name)  # "as before", or empty
    return given[0].reshape(target)


def _squeezed(node: Node, given: list[Value]) -> Value:
    axes = _axes(node, given)
    return given[0].squeeze(tuple(axes) if axes else None)


def _cast(node: Node, given: list[Value]) -> Value:
    return given[0].astype(_KINDS[attribute(node, "to")])  # type: ignore[index]


_COMPUTED: Mapping[str, Callable[[Node, list[Value]], Any]] = {
    "Add": lambda node, given: given[0] + given[1],
    "Sub": lambda node, given: given[0] - given[1],
    "Mul": lambda node, given: given[0] * given[1],
    "Div": _divided,
    "Mod": _remainder,
    "Floor": lambda node, given: np.floor(given[0]),
    "Ceil": lambda node, given: np.ceil(given[0]),
    "Cast": _cast,
    "Gather": lambda node, given: np.take(given[0], given[1], axis=attribute(node, "axis", 0)),  # type: ignore[call-overload]
    "Slice": _sliced,
    "Concat": lambda node, given: np.concatenate(given, attribute(node, "axis", 0)),  # type: ignore[call-overload]
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Transpose": lambda node, given: given[0].transpose(attribute(node, "perm")),  # type: ignore[call-overload]
    "ConstantOfShape": _filled,
    "Unsqueeze": lambda node, given: np.expand_dims(given[0], tuple(_axes(node, given))),
    "Identity": lambda node, given: given[0],
    "Equal": lambda node, given: given[0] == given[1],
    "Where": lambda node, given: np.where(*given),
    "Expand": _expanded,
    "Range": _ranged,
}
