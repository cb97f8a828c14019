# SPDX-License-Identifier: Apache-2.0
"""A training copy that is being rewritten: fresh names, constants, node order. What is rewritten, others say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.view import Node, captured_names, may_have_bodies


class GraphDraft:
    """One graph and the names that are taken in it. The proto is ours to change.

    Attributes:
        proto: the model.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        graph = proto.graph
        self._names = {value.name for value in (*graph.input, *graph.output)}
        self._names.update(tensor.name for tensor in graph.initializer)
        self._names.update(name for node in graph.node for name in (*node.input, *node.output, node.name))
        self._constants: dict[tuple[str, str, tuple[int, ...], bytes], str] = {}

    def unique(self, base: str) -> str:
        """`base`, or `base` with the first free number behind it; taken from now on."""
        name, number = base, 1
        while name in self._names:
            name, number = f"{base}_{number}", number + 1
        self._names.add(name)
        return name

    def initializer(self, base: str, value: npt.NDArray[Any]) -> str:
        """A new initializer; its name."""
        name = self.unique(base)
        self.proto.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )
        return name

    def constant(self, base: str, value: npt.NDArray[Any]) -> str:
        """An initializer that is never trained; equal ones of one base are one."""
        key = (base, value.dtype.name, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(base, value)
        return self._constants[key]

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
        """A node of the default domain that is named after its output; the caller puts it into the list."""
        return helper.make_node(op, list(inputs), [output], name=output, **attributes)

    def set_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Another node list, put into topological order where it is not."""
        copies = ordered(list(nodes))
        fresh = onnx.GraphProto(node=copies)
        self.proto.graph.ClearField("node")
        self.proto.graph.node.extend(fresh.node)

    def rename_reads(self, names: dict[str, str]) -> None:
        """Let every node read other tensors: old name -> new name; chains are followed."""
        if not names:
            return
        for node in self.proto.graph.node:
            for index, name in enumerate(node.input):
                while name in names:
                    name = names[name]
                    node.input[index] = name


def ordered(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Each node behind those that it reads from; in the order given where that is one already."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in reads_of(node) if name in maker} for node in nodes]
    if all(source < index for index, sources in enumerate(needs) for source in sources):
        return nodes
    readers: dict[int, list[int]] = {}
    for index, sources in enumerate(needs):
        for source in sorted(sources):
            readers.setdefault(source, []).append(index)
    missing = [len(sources) for sources in needs]
    ready = deque(index for index, count in enumerate(missing) if not count)
    order: list[onnx.NodeProto] = []
    while ready:
        index = ready.popleft()
        order.append(nodes[index])
        for reader in readers.get(index, ()):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return order


def reads_of(node: onnx.NodeProto) -> list[str]:
    """Every tensor that a node reads, what its bodies read from outside behind its own inputs."""
    wrapped = Node(node, 0)
    captured = sorted(captured_names(wrapped)) if may_have_bodies(wrapped) else []
    return [name for name in (*node.input, *captured) if name]


def prune(proto: onnx.ModelProto) -> None:
    """Take away nodes that lead to no output, and initializers and inputs that nobody reads; the order stays."""
    graph = proto.graph
    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    stack = [value.name for value in graph.output]
    used: set[str] = set()
    kept: set[int] = set()
    while stack:
        name = stack.pop()
        if name in used:
            continue
        used.add(name)
        if name in maker and maker[name] not in kept:
            kept.add(maker[name])
            stack.extend(reads_of(graph.node[maker[name]]))
    for place in range(len(graph.node) - 1, -1, -1):
        if place not in kept:
            del graph.node[place]
    for field in (graph.initializer, graph.input):
        for place in range(len(field) - 1, -1, -1):
            if field[place].name not in used:
                del field[place]
