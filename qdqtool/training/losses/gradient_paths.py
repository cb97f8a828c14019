# SPDX-License-Identifier: Apache-2.0
"""Which parameters a loss depends on by a way that a gradient can take. The others are reported and left out (loop)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from qdqtool.autodiff.activity import STOPS
from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
# Inputs other than the first say where or how much: sizes, places, axes. Their values carry no gradient.
_FIRST_ONLY = frozenset(
    {
        "Expand",
        "Gather",
        "GatherElements",
        "GatherND",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "Resize",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "TopK",
        "Unsqueeze",
    }
)


def reached_parameters(proto: onnx.ModelProto, loss: str, parameters: Sequence[str]) -> tuple[str, ...]:
    """Those of the parameters that the loss depends on, in their order."""
    producer = {name: node for node in proto.graph.node for name in node.output if name}
    seen, waiting = {loss}, [loss]
    while waiting:
        node = producer.get(waiting.pop())
        for name in () if node is None else _gradient_inputs(node):
            if name and name not in seen:
                seen.add(name)
                waiting.append(name)
    return tuple(name for name in parameters if name in seen)


def _gradient_inputs(node: onnx.NodeProto) -> Sequence[str]:
    """The inputs of a node that its output's gradient goes on to."""
    inputs = list(node.input)
    if node.domain == PAIR_DOMAIN:
        pair = PairFunction.parse(node.op_type)
        return inputs[:2] if pair is not None and pair.learned else inputs[:1]
    if node.domain not in ("", "ai.onnx"):
        return inputs
    if node.op_type in STOPS or (node.op_type == "Cast" and _to(node) not in _FLOATS):
        return []
    return inputs[:1] if node.op_type in _FIRST_ONLY else inputs


def _to(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
