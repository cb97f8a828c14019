# SPDX-License-Identifier: Apache-2.0
"""A graph's nodes with what they compute from sizes as constants: exports of transformers hold thousands of such nodes.

Each session of a run would work them out again. Their values are the same in every run: sizes of inputs are declared,
and onnxruntime refuses others. Only what `known_shapes` had to follow is known; the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from qdqtool.graph.order import read_names
from qdqtool.graph.shapes import known_numbers
from qdqtool.graph.view import GraphView, Node

_SIZES = frozenset({"Shape", "Size"})


def with_known_numbers(nodes: Sequence[Node], view: GraphView, wanted: Collection[str]) -> list[onnx.NodeProto]:
    """The nodes, without those that compute known numbers and are read by nobody then."""
    if not any(node.op in _SIZES for node in nodes):
        return [node.proto for node in nodes]
    numbers = known_numbers(view)
    last = {*view.outputs, *wanted}
    read = last.union(*(read_names(node) for node in nodes if node.key not in numbers))
    kept = []
    for node in nodes:
        value = numbers.get(node.key)
        if value is not None and node.key in read:
            kept.append(onnx.helper.make_node("Constant", [], [node.key], value=onnx.numpy_helper.from_array(value)))
        elif value is None and (node.op != "Constant" or node.key in read):
            kept.append(node.proto)
    return kept
