# SPDX-License-Identifier: Apache-2.0
"""What lies between the parameters and the loss: where a gradient flows. Not what the gradient is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.errors import QdqError


@dataclass(frozen=True, eq=False)
class Activity:
    """Where gradients flow.

    Attributes:
        tensors: float32 tensors that depend on a parameter and that the loss depends on.
        nodes: positions of the nodes that make such a tensor from such a tensor.
    """

    tensors: frozenset[str]
    nodes: frozenset[int]

    def inputs(self, node: onnx.NodeProto) -> tuple[bool, ...]:
        """For each input of a node, whether a gradient goes to it."""
        reads = readable(node)
        return tuple(name in self.tensors and at in reads for at, name in enumerate(node.input))


def find_activity(forward: Forward) -> Activity:
    """Walk from the parameters forwards and from the loss backwards, over float32 tensors alone.

    Raises:
        QdqError: a parameter that no float32 path leads from to the loss.
    """
    nodes = forward.proto.graph.node
    grown = set(forward.parameters)
    for node in nodes:
        if _read(node, grown):
            grown.update(name for name in node.output if _is_float(forward, name))
    wanted, found = {forward.loss}, []
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        if wanted.intersection(grown.intersection(node.output)):
            wanted.update(_read(node, grown))
            found.append(position)
    for name in forward.parameters:
        if name not in wanted:
            raise QdqError(name, "is a parameter that the loss does not depend on", "leave it out: --freeze it")
    return Activity(frozenset(wanted & grown), frozenset(found))


def readable(node: onnx.NodeProto) -> frozenset[int]:
    """The inputs of a node that can have a gradient; of a pair, its scale only where it is learned."""
    if node.domain == PAIR_DOMAIN:
        pair = PairFunction.parse(node.op_type)
        return frozenset((0, 1) if pair is not None and pair.learned else (0,))
    return frozenset(range(len(node.input)))


def _read(node: onnx.NodeProto, tensors: set[str]) -> Sequence[str]:
    return [node.input[at] for at in sorted(readable(node)) if at < len(node.input) and node.input[at] in tensors]


def _is_float(forward: Forward, name: str) -> bool:
    return bool(name) and forward.types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT
