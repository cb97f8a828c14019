# SPDX-License-Identifier: Apache-2.0
"""An index over one graph of a ModelProto: who makes a tensor, who reads it, what is constant.

Q/DQ pairs are seen through: a node that reads the DequantizeLinear of `x` is a reader of `x`, and the pair itself is
kept apart, with the Identity, Cast and Clip that some exporters write between its Q and its DQ.
So a plain model and the same model with Q/DQ show the same nodes. Nothing is edited here (`edit.py` does, and keeps
the index true).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.tensors import array_of, constant_value

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
UNKNOWN = -1
_DEFAULT_DOMAINS = ("", "ai.onnx")
# onnxruntime's own domain has the same two operators, with the same meaning.
_PAIR_DOMAINS = (*_DEFAULT_DOMAINS, "com.microsoft")
# What may stand between a Q and its DQ and keeps the integers, or cuts them to fewer levels.
_BETWEEN = frozenset({"Identity", "Cast", "Clip"})
_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# Operators that keep a constant constant: what TensorRT folds on import.
_FOLDING = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "Flatten", "ConstantOfShape"})


class Node:
    """One node, its names read from the proto once.

    Attributes:
        op: the operator; with "domain::" before it outside the default domain, save for onnxruntime's Q/DQ.
        inputs, outputs: tensor names as the proto has them.
        index: place in the node list when it was read.
        weight: which input is the constant weight of a weighted operator; UNKNOWN until `weighted.py` has looked.
        level: longest way from the graph's inputs, the same for every order of the node list.
    """

    __slots__ = ("index", "inputs", "level", "op", "outputs", "proto", "weight")

    def __init__(self, proto: onnx.NodeProto, index: int) -> None:
        self.proto = proto
        domain, op = proto.domain, proto.op_type
        known = domain in (_PAIR_DOMAINS if op in (QUANTIZE, DEQUANTIZE) else _DEFAULT_DOMAINS)
        self.op = op if known else f"{domain}::{op}"
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.index = index
        self.level = 0
        self.weight: int | None = UNKNOWN

    @property
    def key(self) -> str:
        """The first named output: unique in a graph, where names of nodes need not be."""
        first = self.outputs[0] if self.outputs else ""
        return first or next((name for name in self.outputs if name), "")

    @property
    def name(self) -> str:
        """What to call the node in a message: its name, or its first output."""
        return self.proto.name or self.key

    def __repr__(self) -> str:
        return f"<{self.op} {self.name}>"


@dataclass(frozen=True, slots=True)
class Use:
    """A place where a tensor is read: input number `index` of `node`."""

    node: Node
    index: int


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and one DequantizeLinear behind it; `quantize` is None where an integer constant is read.

    `between` are the nodes that the integers pass on their way, in that order.
    """

    tensor: str
    quantize: Node | None
    dequantize: Node
    between: tuple[Node, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node of the pair, in the order of the data."""
        return (*((self.quantize,) if self.quantize else ()), *self.between, self.dequantize)


class GraphView:
    """The index of one graph.

    Attributes:
        nodes: every node but those of Q/DQ pairs, in file order.
        pairs: tensor name -> the pairs that stand on it.
        initializers: name -> TensorProto.
        inputs: names of the graph's inputs that are not initialisers.
        outputs: names of the graph's outputs.
        captured: names that bodies of control flow read from this graph.
        scope: "" for the main graph, else the way to this body, such as "If_3/then_branch".
    """

    def __init__(self, graph: onnx.GraphProto, folder: Path | None = None, scope: str = "") -> None:
        self.graph = graph
        self.folder = folder
        self.scope = scope
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        sparse = {tensor.values.name for tensor in graph.sparse_initializer}
        self.inputs = [value.name for value in graph.input if value.name not in self.initializers]
        self.outputs = [value.name for value in graph.output]
        self._given_out = frozenset(self.outputs)
        self.every = [Node(proto, index) for index, proto in enumerate(graph.node)]
        self.producer: dict[str, Node] = {name: node for node in self.every for name in node.outputs if name}
        self.captured = {name for node in self.every if may_have_bodies(node) for name in captured_names(node)}
        self._constants: set[str] = {*self.initializers, *sparse}
        order = self._topological()
        self._find_constants(order)
        self._find_pairs(order)
        self._index_readers()
        self._set_levels(order)

    # ------------------------------------------------------------------ reading

    def root(self, name: str) -> str:
        """The tensor whose values `name` carries: the input of the QuantizeLinear behind a pair, else itself."""
        return self._root.get(name, name)

    def readers(self, name: str) -> list[Use]:
        """Every place that reads the tensor, directly or through a Q/DQ pair; those nodes of the pairs are left out."""
        return self._readers.get(name, [])

    def is_constant(self, name: str) -> bool:
        """Whether the tensor has one value for ever: initialisers, Constant nodes, what only moves or casts them."""
        return name in self._constants

    def is_output(self, name: str) -> bool:
        """Whether the graph gives this tensor out."""
        return name in self._given_out

    def maker(self, name: str) -> Node | None:
        """The node that makes the values of a tensor, Q/DQ pairs seen through; None for inputs and initialisers."""
        return self.producer.get(self._root.get(name, name))

    def level_of(self, name: str) -> int:
        """Longest way from the graph's inputs to the node that makes the tensor; 0 for inputs."""
        node = self.maker(name)
        return 0 if node is None else node.level

    def array(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of a constant, or None where it is not one that can be had without running the graph."""
        name = self.root(name)
        if name in self.initializers:
            return array_of(self.initializers[name], self.folder)
        node = self.producer.get(name)
        if node is None or name not in self._constants:
            return None
        if node.op == "Constant":
            return constant_value(node.proto, self.folder)
        return self._dequantised(node) if node.op == DEQUANTIZE else self._folded(node)

    def constant_tensor(self, name: str) -> onnx.TensorProto | None:
        """The TensorProto that holds a constant, Identity seen through; None where it is computed or not a tensor."""
        while True:
            name = self.root(name)
            if name in self.initializers:
                return self.initializers[name]
            node = self.producer.get(name)
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
                    body = GraphView(graph, self.folder, f"{view.scope}{'/' if view.scope else ''}{node.name}/{label}")
                    yield body
                    stack.append(body)

    # ------------------------------------------------------------------ building

    def _topological(self) -> list[Node]:
        """Nodes so that each comes after those it reads from, in file order where that allows it."""
        made: set[str] = set()
        if all(self._ready(node, made) for node in self.every):
            return self.every
        waiting: dict[str, list[Node]] = {}
        missing: dict[int, int] = {}
        ready: list[Node] = []
        for node in self.every:
            needs = {name for name in (*node.inputs, *captured_names(node)) if name in self.producer}
            missing[id(node)] = len(needs)
            for name in needs:
                waiting.setdefault(name, []).append(node)
            if not needs:
                ready.append(node)
        order: list[Node] = []
        while ready:
            node = ready.pop()
            order.append(node)
            for name in node.outputs:
                for reader in waiting.get(name, []):
                    missing[id(reader)] -= 1
                    if not missing[id(reader)]:
                        ready.append(reader)
        if len(order) != len(self.every):
            stuck = next(node for node in self.every if missing[id(node)])
            raise QdqError(stuck.name, "the graph has a cycle through this node", "export the model again")
        return order

    def _ready(self, node: Node, made: set[str]) -> bool:
        for name in node.inputs:
            if name in self.producer and name not in made:
                return False
        if may_have_bodies(node) and any(n in self.producer and n not in made for n in captured_names(node)):
            return False
        made.update(node.outputs)
        return True

    def _find_constants(self, order: list[Node]) -> None:
        constants = self._constants
        for node in order:
            if node.op == DEQUANTIZE and node.inputs:
                name, quantize, _ = self._behind(node)
                constant = (name if quantize is None else quantize.inputs[0]) in constants
            else:
                constant = node.op in _FOLDING and all(not name or name in constants for name in node.inputs)
            if constant or node.op == "Constant":
                constants.update(node.outputs)

    def _behind(self, dequantize: Node) -> tuple[str, Node | None, tuple[Node, ...]]:
        """Where the integers of a DequantizeLinear come from: a tensor, its Q if it has one, and what lies between."""
        between: list[Node] = []
        name = dequantize.inputs[0]
        while (node := self.producer.get(name)) is not None and node.op in _BETWEEN and not self.is_output(name):
            between.append(node)
            name = node.inputs[0]
        quantize = node if node is not None and node.op == QUANTIZE else None
        return name, quantize, tuple(reversed(between))

    def _find_pairs(self, order: list[Node]) -> None:
        self._root: dict[str, str] = {}
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
        readers: dict[str, list[Use]] = {}
        root = self._root
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                if name:
                    readers.setdefault(root.get(name, name) if root else name, []).append(Use(node, index))
        self._readers = readers

    def _set_levels(self, order: list[Node]) -> None:
        made: dict[str, int] = {}
        for node in order:
            deepest = 0
            for name in node.inputs:
                level = made.get(name, 0)
                deepest = max(deepest, level)
            node.level = deepest if node.op in (QUANTIZE, DEQUANTIZE) or id(node) in self._hidden else deepest + 1
            for name in node.outputs:
                made[name] = node.level

    def _dequantised(self, node: Node) -> npt.NDArray[np.generic] | None:
        """Scale * (q - zero point) of an integer constant, in the type of the scale; None for scales in blocks."""
        stored, scale = self.integers(node.inputs[0]), self.array(node.inputs[1])
        zero = self.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.int8)
        if stored is None or scale is None or zero is None or scale.ndim > 1 or attribute(node, "block_size", 0):
            return None
        shape = [1] * stored.ndim
        if scale.size > 1:
            axis = next((int(item.i) for item in node.proto.attribute if item.name == "axis"), 1)
            shape[axis] = -1
        levels = stored.astype(np.float32) - zero.astype(np.float32).reshape(shape if zero.size > 1 else ())
        value: npt.NDArray[np.float32] = levels * scale.astype(np.float32).reshape(shape if scale.size > 1 else ())
        return value.astype(scale.dtype, copy=False)

    def integers(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of an integer constant that a DequantizeLinear reads, Clip and Cast on its way carried out."""
        node = self.producer.get(name)
        if node is None or node.op not in ("Clip", "Cast"):
            return self.array(name)
        value = self.integers(node.inputs[0])
        if value is None or node.op == "Clip":
            low, high = self.bounds(node)
            value = value if value is None or low is None else np.maximum(value, low)
            return value if value is None or high is None else np.minimum(value, high)
        kind = onnx.helper.tensor_dtype_to_np_dtype(int(attribute(node, "to", 0)))  # type: ignore[call-overload]
        return value.astype(kind)

    def bounds(self, clip: Node) -> tuple[npt.NDArray[np.generic] | None, npt.NDArray[np.generic] | None]:
        """Between which values a Clip of integers cuts; None for a side without a constant bound."""
        low, high = (
            self.array(clip.inputs[index]) if len(clip.inputs) > index and clip.inputs[index] else None
            for index in (1, 2)
        )
        return low, high

    def _folded(self, node: Node) -> npt.NDArray[np.generic] | None:
        """The value of a constant that passed through operators which move or cast it."""
        from onnx.reference import ReferenceEvaluator

        feeds = {name: value for name in node.inputs if name and (value := self.array(name)) is not None}
        if len(feeds) < len({name for name in node.inputs if name}):
            return None
        kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feeds.items()}
        inputs = [onnx.helper.make_tensor_value_info(name, kinds[name], feeds[name].shape) for name in feeds]
        graph = onnx.helper.make_graph([node.proto], "fold", inputs, [onnx.ValueInfoProto(name=node.outputs[0])])
        opset = 11 if any(item.name == "axes" for item in node.proto.attribute) else 13
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        folded: npt.NDArray[np.generic] = ReferenceEvaluator(model).run(None, feeds)[0]  # type: ignore[index]
        return folded


def may_have_bodies(node: Node) -> bool:
    """Whether a node can carry graphs as attributes: control flow, and anything outside the default domain."""
    return node.op in _WITH_BODIES or "::" in node.op


def node_bodies(node: Node) -> list[tuple[str, onnx.GraphProto]]:
    """The graphs that a node carries as attributes, with the attribute's name."""
    if not may_have_bodies(node):
        return []
    bodies: list[tuple[str, onnx.GraphProto]] = []
    for attribute in node.proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            bodies.append((attribute.name, attribute.g))
        bodies.extend((f"{attribute.name}[{i}]", graph) for i, graph in enumerate(attribute.graphs))
    return bodies


def captured_names(node: Node) -> set[str]:
    """Names that the bodies of a node read from outside of them, at any depth."""
    captured: set[str] = set()
    stack = [(graph, frozenset[str]()) for _, graph in node_bodies(node)]
    while stack:
        graph, outer = stack.pop()
        local = outer.union(
            (v.name for v in graph.input),
            (t.name for t in graph.initializer),
            (n for p in graph.node for n in p.output),
        )
        captured.update(value.name for value in graph.output if value.name not in local)
        for proto in graph.node:
            captured.update(name for name in proto.input if name and name not in local)
            stack.extend((body, local) for _, body in node_bodies(Node(proto, 0)))
    return captured


def attribute(node: Node, name: str, default: object = None) -> object:
    """The value of an attribute, bytes decoded; `default` where the node lacks it."""
    for item in node.proto.attribute:
        if item.name == name:
            value = onnx.helper.get_attribute_value(item)
            return value.decode(errors="replace") if isinstance(value, bytes) else value
    return default


def constant_tensor(node: Node) -> onnx.TensorProto | None:
    """The TensorProto of a Constant node; None for other nodes, and where it holds numbers, text or a sparse tensor."""
    for item in node.proto.attribute:
        if node.op == "Constant" and item.name == "value":
            tensor: onnx.TensorProto = item.t
            return tensor
    return None
