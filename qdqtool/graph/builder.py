# SPDX-License-Identifier: Apache-2.0
"""Nodes and constants that are added to a graph under free names. What is added, and where it stands, others say.

For copies that run or train. `edit.py` edits files: it keeps an index true and adds nodes beside others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qdqtool.fresh_names import FreshNames
from qdqtool.graph.nodes import Node, may_have_bodies, node_bodies
from qdqtool.graph.order import topological_protos, wrapped
from qdqtool.graph.view import GraphView


def names_in(graph: onnx.GraphProto, nodes: Sequence[Node] | None = None) -> set[str]:
    """Every name of a tensor or a node in a graph and in its bodies, at any depth."""
    names: set[str] = set()
    stack = [(graph, wrapped(graph.node) if nodes is None else nodes)]
    while stack:
        body, inside = stack.pop()
        names.update(value.name for value in (*body.input, *body.output, *body.value_info))
        names.update(tensor.name for tensor in body.initializer)
        names.update(sparse.values.name for sparse in body.sparse_initializer)
        names.update(proto.name for proto in body.node)
        for node in inside:
            names.update(node.inputs, node.outputs)
            if may_have_bodies(node):
                stack.extend((inner, wrapped(inner.node)) for _, inner in node_bodies(node))
    return names


def tensor_of(value: npt.ArrayLike, name: str) -> onnx.TensorProto:
    """A TensorProto of an array's own type and shape, whatever its layout in memory."""
    array = np.asarray(value)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


class GraphBuilder:
    """One graph and the names that are taken in it. The proto is ours to change."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.names = FreshNames(names_in(proto.graph))
        self._constants: dict[tuple[str, str, tuple[int, ...], bytes], str] = {}

    def view(self) -> GraphView:
        """The index of the graph as it is now."""
        return GraphView(self.proto.graph)

    def unique(self, base: str) -> str:
        """`base`, or `base` with the first free number after it; taken from now on."""
        return self.names.unique(base)

    def initializer(self, base: str, value: npt.NDArray[Any]) -> str:
        """A new initializer; its name."""
        name = self.unique(base)
        self.proto.graph.initializer.append(tensor_of(value, name))
        return name

    def constant(self, base: str, value: npt.NDArray[Any]) -> str:
        """An initializer that is never trained; equal ones of one base are one."""
        key = (base, value.dtype.name, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(base, value)
        return self._constants[key]

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
        """A node that is named after its output; the caller puts it into the list."""
        return helper.make_node(op, list(inputs), [output], name=output, **attributes)

    def append(self, op: str, inputs: Sequence[str], base: str, **attributes: Any) -> str:
        """A new node at the end of the list; the name of its output."""
        name = self.unique(base)
        self.proto.graph.node.append(self.node(op, inputs, name, **attributes))
        return name

    def set_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Another node list, put into topological order where it is not."""
        fresh = onnx.GraphProto(node=topological_protos(nodes))
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
