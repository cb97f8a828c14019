# SPDX-License-Identifier: Apache-2.0
"""A training copy that is being rewritten: fresh names, constants, node order. What is rewritten, others say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.order import topological_protos


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
