# SPDX-License-Identifier: Apache-2.0
"""An index over one graph of a ModelProto: who makes a tensor, who reads it, what is constant.

Q/DQ pairs are seen through: a node that reads the DequantizeLinear of `x` is a consumer of `x`, and the pair itself is
kept apart, with the Identity, Cast and Clip that some exporters write between its Q and its DQ.
So a plain model and the same model with Q/DQ show the same nodes. Nothing is edited here (`edit.py` does, and keeps
the index true).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.folding import (
    COMBINING,
    DIVIDING,
    FOLDING,
    MAX_STEPS,
    Extent,
    cast,
    combined_shape,
    combined_value,
    divided_shapes,
    divided_value,
    folded_shape,
    folded_value,
    kind_behind,
)
from qdqtool.graph.nodes import (
    DEQUANTIZE,
    QUANTIZE,
    UNKNOWN,
    Node,
    Pair,
    Use,
    attribute,
    captured_names,
    constant_tensor,
    may_have_bodies,
    node_bodies,
)
from qdqtool.graph.order import topological
from qdqtool.graph.tensors import array_of, constant_value
from qdqtool.graph.weight_store import WeightStore

__all__ = [
    "DEQUANTIZE",
    "QUANTIZE",
    "UNKNOWN",
    "GraphView",
    "Node",
    "Pair",
    "Use",
    "attribute",
    "captured_names",
    "constant_tensor",
    "may_have_bodies",
    "node_bodies",
]

# What may stand between a Q and its DQ and keeps the integers, or cuts them to fewer levels.
_BETWEEN = frozenset({"Identity", "Cast", "Clip"})


def _mark_shared_names(nodes: Sequence[Node]) -> None:
    times = Counter(node.proto.name for node in nodes)
    if len(times) < len(nodes):
        for node in nodes:
            node.shares_name = times[node.proto.name] > 1


class GraphView:
    """The index of one graph.

    Attributes:
        nodes: every node but those of Q/DQ pairs, in file order.
        pairs: tensor name -> the pairs that stand on it.
        initializers: name -> TensorProto.
        inputs: names of the graph's inputs that are not initializers.
        outputs: names of the graph's outputs.
        captured: names that bodies of control flow read from this graph.
        scope: "" for the main graph, else the way to this body, such as "If_3/then_branch".
        changed: is called when an edit of the graph is committed, after which this index no longer holds.
        store: where edits write large weights; None for the graph itself.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        folder: Path | None = None,
        scope: str = "",
        changed: Callable[[], None] = lambda: None,
        store: WeightStore | None = None,
    ) -> None:
        self.graph = graph
        self.folder = folder
        self.scope = scope
        self.changed = changed
        self.store = store
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        sparse = {tensor.values.name for tensor in graph.sparse_initializer}
        self.inputs = [value.name for value in graph.input if value.name not in self.initializers]
        self.outputs = [value.name for value in graph.output]
        self._given_out = frozenset(self.outputs)
        self.every = [Node(proto, index) for index, proto in enumerate(graph.node)]
        _mark_shared_names(self.every)
        self.producers: dict[str, Node] = {name: node for node in self.every for name in node.outputs if name}
        self.captured = {name for node in self.every if may_have_bodies(node) for name in captured_names(node)}
        self._constants: set[str] = {*self.initializers, *sparse}
        self._root: dict[str, str] = {}
        self._extents: dict[str, Extent] = {}
        # Of `shapes.known_shapes` and `shapes.known_numbers`, once asked for.
        self.known_shapes: dict[str, tuple[int | None, ...]] | None = None
        self.known_numbers: dict[str, npt.NDArray[Any]] = {}
        # Weight and axis -> `tensors.channel_amax`, once asked for.
        self.channel_amax: dict[tuple[str, int | None], npt.NDArray[np.float32]] = {}
        order = topological(self.every)
        self._find_constants(order)
        self._find_pairs(order)
        self._index_readers()
        self._set_levels(order)

    # ------------------------------------------------------------------ reading

    def root(self, name: str) -> str:
        """The tensor whose values `name` carries: the input of the QuantizeLinear after a pair, else itself."""
        return self._root.get(name, name)

    def consumers(self, name: str) -> list[Use]:
        """Every place that reads the tensor, directly or through a Q/DQ pair; those nodes of the pairs are left out."""
        return self._consumers.get(name, [])

    def is_constant(self, name: str) -> bool:
        """Whether the tensor has one value for ever: initializers, Constant nodes, what is made of them alone."""
        return name in self._constants

    def is_output(self, name: str) -> bool:
        """Whether the graph gives this tensor out."""
        return name in self._given_out

    def producer(self, name: str) -> Node | None:
        """The node that makes the values of a tensor, Q/DQ pairs seen through; None for inputs and initializers."""
        return self.producers.get(self._root.get(name, name))

    def level_of(self, name: str) -> int:
        """Longest way from the graph's inputs to the node that makes the tensor; 0 for inputs."""
        node = self.producer(name)
        return 0 if node is None else node.level

    def array(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of a constant, or None where it is not one that can be had without running the graph."""
        name = self.root(name)
        if name in self.initializers:
            return array_of(self.initializers[name], self.folder)
        node = self.producers.get(name)
        if node is None or name not in self._constants:
            return None
        if node.op == "Constant":
            return constant_value(node.proto, self.folder)
        return self._dequantized(node) if node.op == DEQUANTIZE else self._folded(node, name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a constant, which costs nothing; None where it is not known without its value."""
        extent = self._extent(self.root(name))
        return None if extent is None else extent.shape

    def constant_tensor(self, name: str) -> onnx.TensorProto | None:
        """The TensorProto that holds a constant, Identity seen through; None where it is computed or not a tensor."""
        while True:
            name = self.root(name)
            if name in self.initializers:
                return self.initializers[name]
            node = self.producers.get(name)
            if node is None or name not in self._constants:
                return None
            if node.op != "Identity":
                return constant_tensor(node)
            name = node.inputs[0]

    def bodies(self) -> Iterator[GraphView]:
        """Views of the bodies of control flow, at any depth, each with its scope."""
        stack = [self]
        while stack:
            view = stack.pop()
            for node in view.every:
                for label, graph in node_bodies(node):
                    scope = f"{view.scope}{'/' if view.scope else ''}{node.name}/{label}"
                    body = GraphView(graph, self.folder, scope, self.changed, self.store)
                    yield body
                    stack.append(body)

    # ------------------------------------------------------------------ building

    def _find_constants(self, order: Sequence[Node]) -> None:
        constants = self._constants
        for node in order:
            if node.op == DEQUANTIZE and node.inputs:
                name, quantize, between = self._behind(node)
                source = name if quantize is None else quantize.inputs[0] if quantize.inputs else ""
                constant = source in constants and self._measure_pair(node, source, len(between))
            else:
                constant = node.op in FOLDING | COMBINING | DIVIDING and bool(node.outputs) and self._measure(node)
            if constant or node.op == "Constant":
                constants.update(filter(None, node.outputs))

    def _measure(self, node: Node) -> bool:
        """Whether a node makes a constant of constants; its extent is remembered."""
        if not node.inputs or not all(name in self._constants for name in node.inputs if name):
            return False
        parts = [self._extent(name) for name in node.inputs if name]
        steps = 1 + sum(part.steps for part in parts if part is not None)
        first = self._extent(node.inputs[0])
        if first is None or None in parts or steps > MAX_STEPS:
            return False
        made = self._shapes_of(node, first, parts)
        for name, shape in zip(node.outputs, made, strict=False):
            self._extents[name] = Extent(shape, steps, kind_behind(node.proto, first.kind))
        return bool(made)

    def _shapes_of(self, node: Node, first: Extent, parts: Sequence[Extent | None]) -> Sequence[tuple[int, ...]]:
        """The shapes of the constants that an operator makes of constants; none where it makes none."""
        if node.op in COMBINING:
            shape = combined_shape(first, parts[1]) if len(parts) == 2 and parts[1] is not None else None
            return () if shape is None else (shape,)
        operand = self._operand(node)
        numbers = None if operand is None else self.array(operand)
        if node.op in DIVIDING:
            return divided_shapes(node.proto, first.shape, numbers) or ()
        shape = folded_shape(node.proto, first.shape, numbers)
        return () if shape is None else (shape,)

    def _measure_pair(self, dequantize: Node, source: str, between: int) -> bool:
        """Whether what a DequantizeLinear makes of a constant can be worked out; its extent is remembered."""
        names = [source, *(name for name in dequantize.inputs[1:] if name in self._constants)]
        parts = [self._extent(name) for name in names]
        steps = 1 + between + sum(part.steps for part in parts if part is not None)
        if parts[0] is not None:
            self._extents[dequantize.outputs[0]] = Extent(parts[0].shape, steps)
        return steps <= MAX_STEPS

    def _extent(self, name: str) -> Extent | None:
        """The size of a constant; None where it is not known without its value, or it is none."""
        if name in self.initializers:
            return _extent_of(self.initializers[name])
        node = self.producers.get(name)
        if node is None or node.op != "Constant":
            return self._extents.get(name)
        tensor = constant_tensor(node)
        value = None if tensor is not None else constant_value(node.proto, self.folder)
        return _extent_of(tensor) if tensor is not None else None if value is None else Extent(value.shape)

    @staticmethod
    def _operand(node: Node) -> str | None:
        """The input of a folding operator that holds a shape or axes."""
        index = 0 if node.op == "ConstantOfShape" else 1
        return node.inputs[index] if len(node.inputs) > index and node.inputs[index] else None

    def _behind(self, dequantize: Node) -> tuple[str, Node | None, tuple[Node, ...]]:
        """Where the integers of a DequantizeLinear come from: a tensor, its Q if it has one, and what lies between."""
        between: list[Node] = []
        name = dequantize.inputs[0]
        while (node := self.producers.get(name)) is not None and node.op in _BETWEEN and not self.is_output(name):
            if not node.inputs or len(between) == MAX_STEPS:
                return dequantize.inputs[0], None, ()
            between.append(node)
            name = node.inputs[0]
        quantize = node if node is not None and node.op == QUANTIZE else None
        return name, quantize, tuple(reversed(between))

    def _find_pairs(self, order: Sequence[Node]) -> None:
        self.pairs: dict[str, list[Pair]] = {}
        self._hidden = hidden = set[int]()
        for node in order:
            if node.op != DEQUANTIZE or not node.inputs:
                continue
            name, quantize, between = self._behind(node)
            if quantize is not None and not self.is_output(name):
                tensor = self._root.get(quantize.inputs[0], quantize.inputs[0])
                self._root[node.outputs[0]] = tensor
            elif name in self._constants:
                tensor = node.outputs[0]
            else:
                continue
            pair = Pair(tensor, quantize, node, between)
            self.pairs.setdefault(tensor, []).append(pair)
            hidden.update(id(part) for part in pair.nodes)
        self.nodes = [node for node in self.every if id(node) not in hidden] if hidden else self.every

    def _index_readers(self) -> None:
        consumers: dict[str, list[Use]] = {}
        root = self._root
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                if name:
                    consumers.setdefault(root.get(name, name) if root else name, []).append(Use(node, index))
        self._consumers = consumers

    def _set_levels(self, order: Sequence[Node]) -> None:
        made: dict[str, int] = {}
        for node in order:
            deepest = 0
            for name in node.inputs:
                level = made.get(name, 0)
                deepest = max(deepest, level)
            node.level = deepest if node.op in (QUANTIZE, DEQUANTIZE) or id(node) in self._hidden else deepest + 1
            for name in node.outputs:
                made[name] = node.level

    def _dequantized(self, node: Node) -> npt.NDArray[np.generic] | None:
        """Scale * (q - zero point) of an integer constant, in the type of the scale; None for scales in blocks."""
        stored, scale = self.integers(node.inputs[0]), self.array(node.inputs[1])
        zero = self.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.int8)
        if stored is None or scale is None or zero is None or scale.ndim > 1 or attribute(node, "block_size", 0):
            return None
        shape = _along(node, stored.shape, scale.size)
        if shape is None or zero.size not in (1, scale.size):
            return None
        if any(value.dtype.kind in "Oc" for value in (stored, scale, zero)):  # text, complex numbers
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # checks of scales and weights say what is not finite
            levels = stored.astype(np.float32) - zero.astype(np.float32).reshape(shape if zero.size > 1 else ())
            value: npt.NDArray[np.float32] = levels * scale.astype(np.float32).reshape(shape)
            return value.astype(scale.dtype, copy=False)

    def integers(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of an integer constant that a DequantizeLinear reads, Clip and Cast on its way carried out."""
        node = self.producers.get(name)
        if node is None or node.op not in ("Clip", "Cast"):
            return self.array(name)
        value = self.integers(node.inputs[0])
        if value is None or node.op == "Clip":
            low, high = self.bounds(node)
            value = value if value is None or low is None else np.maximum(value, low)
            return value if value is None or high is None else np.minimum(value, high)
        return cast(value, node.proto)

    def bounds(self, clip: Node) -> tuple[npt.NDArray[np.generic] | None, npt.NDArray[np.generic] | None]:
        """Between which values a Clip of integers cuts; None for a side without one number that is constant."""
        low, high = (
            self.array(clip.inputs[index]) if len(clip.inputs) > index and clip.inputs[index] else None
            for index in (1, 2)
        )
        return (
            None if low is None or low.size != 1 else low.reshape(()),
            None if high is None or high.size != 1 else high.reshape(()),
        )

    def _folded(self, node: Node, name: str) -> npt.NDArray[np.generic] | None:
        """A constant that a node makes by moving, casting, dividing or combining others."""
        if node.op in COMBINING:
            first, second = (self.array(one) for one in node.inputs)
            return None if first is None or second is None else combined_value(node.proto, first, second)
        value, operand = self.array(node.inputs[0]), self._operand(node)
        numbers = None if operand is None else self.array(operand)
        if value is None or (operand and numbers is None):
            return None
        if node.op in DIVIDING:
            return divided_value(node.proto, value, numbers, node.outputs.index(name))
        return folded_value(node.proto, value, numbers)


def _extent_of(tensor: onnx.TensorProto) -> Extent:
    return Extent(tuple(tensor.dims), kind=tensor.data_type)


def _along(node: Node, shape: tuple[int, ...], scales: int) -> tuple[int, ...] | None:
    """The shape in which so many scales go with a tensor's; None where they do not."""
    if scales == 1:
        return ()
    axis = next((int(item.i) for item in node.proto.attribute if item.name == "axis"), 1)
    if not -len(shape) <= axis < len(shape) or shape[axis] != scales:
        return None
    return tuple(scales if index == axis % len(shape) else 1 for index in range(len(shape)))
