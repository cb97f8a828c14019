# SPDX-License-Identifier: Apache-2.0
"""Which axis of an operator's constant follows which axis of a tensor: where a channel's weights are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qdqtool.graph.channels.atoms import ChannelAtoms
from qdqtool.graph.channels.couplings import COUPLINGS
from qdqtool.graph.view import GraphView, Node, Use, attribute

# made: an index of the axis makes a channel. read: it weighs a channel that is summed up. along: it goes with one.
Role = Literal["made", "read", "along"]


@dataclass(frozen=True)
class ChannelAxis:
    """An axis of a constant, and the axis of the tensor whose channels lie on it.

    Attributes:
        use: the operator and which input the constant is.
        axis: of the constant as the operator reads it.
        tensor: an input or an output of the operator.
        tensor_axis: of that tensor.
        role: what the constant does with the channel.
        groups: of a grouped convolution whose constant holds one group's places on this axis; else 1.
    """

    use: Use
    axis: int
    tensor: str
    tensor_axis: int
    role: Role
    groups: int = 1


def weight_axes(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    """Every axis of a node's constants that follows a tensor's; empty for operators that no channel passes."""
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(atoms, node)
    return _in_place(atoms, node) if COUPLINGS.get(node.op) is COUPLINGS["Add"] else []


def groups_of(node: Node) -> int:
    """The attribute `group` of a convolution."""
    return int(str(attribute(node, "group", 1)))


def is_depthwise(view: GraphView, node: Node) -> bool:
    """Whether each group of a convolution reads one channel."""
    weight = view.shape(node.inputs[1])
    if weight is None or groups_of(node) == 1:
        return False
    return (weight[1] if node.op == "Conv" else weight[0] // groups_of(node)) == 1


def is_contraction(view: GraphView, node: Node) -> bool:
    """Whether an operator sums over the channels that it reads with constant weights."""
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or not view.is_constant(node.inputs[1]):
        return False
    return node.op in ("Gemm", "MatMul") or not is_depthwise(view, node)


def _conv(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    data, made, groups = node.inputs[0], node.outputs[0], groups_of(node)
    if not atoms.view.is_constant(node.inputs[1]):
        return []
    alone = is_depthwise(atoms.view, node)
    weight = Use(node, 1)
    if node.op == "Conv":
        found = [ChannelAxis(weight, 0, made, 1, "made")]
        found += [] if alone else [ChannelAxis(weight, 1, data, 1, "read", groups)]
    else:
        found = [ChannelAxis(weight, 0, data, 1, "along" if alone else "read")]
        found += [] if alone and groups > 1 else [ChannelAxis(weight, 1, made, 1, "made", groups)]
    return found + [ChannelAxis(Use(node, 2), 0, made, 1, "along")] * (len(node.inputs) > 2 and bool(node.inputs[2]))


def _gemm(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    if not all(atoms.view.is_constant(name) for name in node.inputs[1:] if name) or attribute(node, "transA", 0):
        return []
    turned = bool(attribute(node, "transB", 0))
    found = [
        ChannelAxis(Use(node, 1), 0 if turned else 1, node.outputs[0], 1, "made"),
        ChannelAxis(Use(node, 1), 1 if turned else 0, node.inputs[0], 1, "read"),
    ]
    bias = atoms.view.shape(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if bias and bias[-1] > 1:
        found.append(ChannelAxis(Use(node, 2), len(bias) - 1, node.outputs[0], 1, "along"))
    return found


def _matmul(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    weight, shape = atoms.view.shape(node.inputs[1]), atoms.shape(node.inputs[0])
    if weight is None or len(weight) != 2 or shape is None or not atoms.view.is_constant(node.inputs[1]):
        return []
    last = len(shape) - 1
    return [
        ChannelAxis(Use(node, 1), 1, node.outputs[0], last, "made"),
        ChannelAxis(Use(node, 1), 0, node.inputs[0], last, "read"),
    ]


def _per_channel(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    indices = [index for index, name in enumerate(node.inputs) if index and name and atoms.view.is_constant(name)]
    return [ChannelAxis(Use(node, index), 0, node.inputs[0], 1, "along") for index in indices]


def _in_place(atoms: ChannelAtoms, node: Node) -> list[ChannelAxis]:
    after, found = atoms.shape(node.outputs[0]), []
    for index, name in enumerate(node.inputs):
        shape = atoms.view.shape(name) if name and atoms.view.is_constant(name) else None
        for axis, size in enumerate(shape or ()):
            if after is not None and size > 1:
                place = len(after) - len(shape or ()) + axis
                found.append(ChannelAxis(Use(node, index), axis, node.outputs[0], place, "along"))
    return found


_RULES: dict[str, Callable[[ChannelAtoms, Node], list[ChannelAxis]]] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _per_channel,
    "InstanceNormalization": _per_channel,
}
