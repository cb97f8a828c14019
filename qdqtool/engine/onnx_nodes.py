# SPDX-License-Identifier: Apache-2.0
"""From the names that TensorRT's log gives to ONNX nodes back to the nodes: some have no name, some share one.

TensorRT calls a node by its name, or `node_of_<first output>` where it has none. In a copy whose shared names are
cleared every node is told apart, as no two nodes of a graph make one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import NodeProto

from qdqtool.graph.validate import nodes_within

_UNNAMED = "node_of_"


class OnnxNodes:
    """The nodes of a model and of its subgraphs, by what TensorRT calls them.

    Nodes of local functions are left out: TensorRT writes a function out at each call.

    Attributes:
        shared: names that several nodes have.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._nodes = list(nodes_within(model.graph.node))
        self.shared = _shared_names(self._nodes)
        self._producers = {node.output[0]: node for node in reversed(self._nodes) if node.output}
        self._by_label: dict[str, NodeProto | None] = {}
        for node in self._nodes:
            label = self.label(node)
            self._by_label[label] = None if label in self._by_label else node

    def label(self, node: NodeProto) -> str:
        """What TensorRT calls a node in a model whose shared names are cleared."""
        named = node.name and node.name not in self.shared
        return node.name if named else f"{_UNNAMED}{next(iter(node.output), '')}"

    def find(self, label: str) -> NodeProto | None:
        """The node that TensorRT calls so; None where there is none, or where it may be one of several."""
        return self._by_label.get(label)

    def producer(self, tensor: str) -> NodeProto | None:
        """The node whose first output a tensor is; None where there is none."""
        return self._producers.get(tensor) if tensor else None


def clear_shared_names(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy in which nodes that share their name have none; None where no name is shared.

    A name that looks like that of an unnamed node, `node_of_...`, counts as shared.
    """
    shared = _shared_names(nodes_within(model.graph.node))
    if not shared:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in nodes_within(copy.graph.node):
        if node.name in shared:
            node.name = ""
    return copy


def _shared_names(nodes: Iterator[NodeProto] | list[NodeProto]) -> frozenset[str]:
    counts = Counter(node.name for node in nodes if node.name)
    return frozenset(name for name, count in counts.items() if count > 1 or name.startswith(_UNNAMED))
