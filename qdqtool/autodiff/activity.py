# SPDX-License-Identifier: Apache-2.0
"""Where a gradient flows: between the parameters and the loss, and past which operators never. Not what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx

from qdqtool.graph.order import reads_of

STEPS = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""Constant almost everywhere: the derivative is 0, and a back end may write that down."""

STOPS = STEPS | {
    *("And", "Not", "Or", "Xor"),
    *("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Unique"),
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Range", "Shape", "Size"),
    *("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"),
    "OneHot",
}
"""Steps, comparisons, sizes, places and answers: nothing is trained through them, and nothing is said."""


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
