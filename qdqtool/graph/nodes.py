# SPDX-License-Identifier: Apache-2.0
"""One node of a graph, its names read once, and what can be asked of it alone. Not the index over all of them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
UNKNOWN = -1
_DEFAULT_DOMAINS = ("", "ai.onnx")
DYNAMIC_FP4 = "trt::TRT_FP4DynamicQuantize"
"""TensorRT's operator that computes the scales of NVFP4 blocks at run time: codes, and scales that are codes, too."""
# onnxruntime's own domain has the same two operators, with the same meaning.
PAIR_DOMAINS = (*_DEFAULT_DOMAINS, "com.microsoft")
WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class Node:
    """One node, its names read from the proto once.

    Attributes:
        op: the operator; with "domain::" before it outside the default domain, save for onnxruntime's Q/DQ.
        inputs, outputs: tensor names as the proto has them.
        index: place in the node list when it was read.
        weight: which input is the constant weight of a weighted operator; UNKNOWN until `weighted.py` has looked.
        level: longest way from the graph's inputs, the same for every order of the node list.
        shares_name: whether another node of the graph has its name, which then tells nothing.
    """

    __slots__ = ("index", "inputs", "level", "op", "outputs", "proto", "shares_name", "weight")

    def __init__(self, proto: onnx.NodeProto, index: int) -> None:
        self.proto = proto
        domain, op = proto.domain, proto.op_type
        known = domain in (PAIR_DOMAINS if op in (QUANTIZE, DEQUANTIZE) else _DEFAULT_DOMAINS)
        self.op = op if known else f"{domain}::{op}"
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.index = index
        self.level = 0
        self.weight: int | None = UNKNOWN
        self.shares_name = False

    @property
    def key(self) -> str:
        """The first named output: unique in a graph, where names of nodes need not be."""
        first = self.outputs[0] if self.outputs else ""
        return first or next((name for name in self.outputs if name), "")

    @property
    def name(self) -> str:
        """What to call the node in a message: its name, or its first output where it has none of its own."""
        return self.key if self.shares_name else self.proto.name or self.key

    def __repr__(self) -> str:
        return f"<{self.op} {self.name}>"


@dataclass(frozen=True, slots=True)
class Use:
    """A place where a tensor is read: input number `index` of `node`."""

    node: Node
    index: int


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and one DequantizeLinear after it; `quantize` is None where an integer constant is read.

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


def may_have_bodies(node: Node) -> bool:
    """Whether a node can carry graphs as attributes: control flow, and what is neither ONNX's nor NVFP4's operator."""
    return node.op in WITH_BODIES or ("::" in node.op and node.op != DYNAMIC_FP4)


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
        if item.name == name and not item.ref_attr_name:
            if item.type == onnx.AttributeProto.UNDEFINED:  # IR version 1
                return item.f if item.HasField("f") else item.i if item.HasField("i") else list(item.ints)
            value = onnx.helper.get_attribute_value(item)
            return value.decode(errors="replace") if isinstance(value, bytes) else value
    return default


def is_training(norm: Node) -> bool:
    """Whether a BatchNormalization normalizes by statistics of the batch: it says so, or gives them out."""
    return bool(attribute(norm, "training_mode", 0)) or any(norm.outputs[1:])


def constant_tensor(node: Node) -> onnx.TensorProto | None:
    """The TensorProto of a Constant node; None for other nodes, and where it holds numbers, text or a sparse tensor."""
    for item in node.proto.attribute:
        if node.op == "Constant" and item.name == "value":
            tensor: onnx.TensorProto = item.t
            return tensor
    return None
