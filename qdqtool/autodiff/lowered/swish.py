# SPDX-License-Identifier: Apache-2.0
"""x Sigmoid(x) as one operator: its gradient is one kernel, where those of the two apart take five passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import onnx
from onnx import helper

from qdqtool.autodiff.lowered.site import Wrap

SWISH = Wrap(
    ("x",),
    "dx = com.microsoft.QuickGeluGrad <alpha: float = 1.0> (g, x)\n",
    ("x",),
    body=(helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])),
)


def find_swishes(graph: onnx.GraphProto, positions: Collection[int], kept: Iterable[str]) -> Mapping[int, int]:
    """Position of each Mul that ends one -> position of its Sigmoid, which nobody else reads.

    Args:
        graph: the main graph.
        positions: nodes that a gradient flows through.
        kept: tensors that must stay, such as outputs.
    """
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(kept)
    sigmoids = {graph.node[at].output[0]: at for at in sorted(positions) if graph.node[at].op_type == "Sigmoid"}
    found: dict[int, int] = {}
    for at in sorted(positions):
        node = graph.node[at]
        if node.op_type != "Mul" or node.domain not in ("", "ai.onnx"):
            continue
        for x, gate in (tuple(node.input), tuple(reversed(node.input))):
            made_by = sigmoids.get(gate)
            if made_by is not None and readers[gate] == 1 and graph.node[made_by].input[0] == x:
                found[at] = made_by
    return found
