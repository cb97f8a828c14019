# SPDX-License-Identifier: Apache-2.0
"""What lies between the parameters and the loss: where a gradient flows. Not what the gradient is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx

from qdqtool.autodiff.non_differentiable import STOPS
from qdqtool.graph.order import reads_of


@dataclass(frozen=True)
class Activity:
    """Where gradients flow.

    Attributes:
        varying: parameters, and the real-valued tensors that depend on one.
        counting: tensors that the loss depends on.
    """

    varying: frozenset[str]
    counting: frozenset[str]

    def has(self, tensor: str) -> bool:
        """Whether a gradient by the tensor is needed."""
        return tensor in self.varying and tensor in self.counting

    def passes(self, node: onnx.NodeProto) -> bool:
        """Whether a gradient must pass the node on its way back."""
        if stops(node) or self.counting.isdisjoint(node.output):
            return False
        return not self.varying.isdisjoint(reads_of(node))


def find_activity(
    nodes: Sequence[onnx.NodeProto], parameters: Iterable[str], loss: str, is_real: Callable[[str], bool]
) -> Activity:
    """Walk from the parameters forwards and from the loss backwards."""
    varying, counting = set(parameters), {loss}
    for node in nodes:
        if not stops(node) and not varying.isdisjoint(node.input):
            varying.update(name for name in node.output if name and is_real(name))
    for node in reversed(nodes):
        if not stops(node) and not counting.isdisjoint(node.output):
            counting.update(reads_of(node))
    return Activity(frozenset(varying), frozenset(counting))


def stops(node: onnx.NodeProto) -> bool:
    """Whether no gradient passes the node by definition."""
    return node.domain in ("", "ai.onnx") and node.op_type in STOPS
