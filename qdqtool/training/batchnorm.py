# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization as an affine map with frozen statistics, for training. The file keeps its nodes; not folding.

    factor = scale / sqrt(var + epsilon)        shift = bias - mean * factor        y = x * factor + shift
in float32 and in the order in which onnxruntime's kernel computes it, so that not a bit of y differs. The factors of
`passes/fold_bn.py`, float64 rounded once, are others in a third of the channels: 9e-4 of an output, measured. (Factor
and shift moved into the weights before make steps a tenth faster, and tip roundings of the pairs downstream: 5e-2.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import Shapes
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.nodes import is_training
from qdqtool.graph.types import infer_types, opset_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.passes.fold_bn import epsilon_of

_OP = "BatchNormalization"


def lower_batch_norms(draft: GraphBuilder, shapes: Shapes | None = None) -> int:
    """Write every BatchNormalization as an affine map; scale and bias stay the initializers that they were.

    Raises:
        QdqError: statistics that are computed, a node in training form.
    """
    view = draft.view()
    norms = [node for node in view.every if node.op == _OP]
    if not norms:
        return 0
    ranks = _ranks(draft, view, norms, shapes)
    made: dict[int, list[onnx.NodeProto]] = {}
    for norm in norms:
        rank = ranks[norm.key]
        if not rank:
            continue
        factor, shift, nodes = _factors(draft, view, norm)
        made[id(norm.proto)] = nodes + _affine(draft, norm, factor, shift, rank)
    draft.set_nodes(new for node in view.every for new in made.get(id(node.proto), [node.proto]))
    return sum(id(norm.proto) in made for norm in norms)


def _ranks(draft: GraphBuilder, view: GraphView, norms: Sequence[Node], shapes: Shapes | None) -> dict[str, int | None]:
    """Number of axes of what each normalizes: from a run, else what operators say, else what shape inference says."""
    if shapes is not None:
        return {norm.key: len(shapes[norm.inputs[0]]) for norm in norms}
    sizes = TensorSizes(view)
    found = {norm.key: sizes.rank(norm.inputs[0]) for norm in norms}
    if not all(found.values()):
        graph = infer_types(draft.proto, opset_of(draft.proto) or 13)
        inferred = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.value_info, *graph.input, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }
        found = {norm.key: found[norm.key] or inferred.get(norm.inputs[0]) for norm in norms}
    return found


def _statistics(view: GraphView, norm: Node) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """1 / sqrt(var + epsilon) and mean, float32 [channels]."""
    if is_training(norm):
        raise QdqError(norm.name, f"{_OP} is in training mode", "export the model for inference")
    mean, var = (view.array(name) if view.is_constant(name) else None for name in norm.inputs[3:5])
    if mean is None or var is None or mean.dtype != np.float32 or var.dtype != np.float32:
        raise QdqError(norm.name, f"{_OP}: its statistics are not float32 constants", "fold constants first")
    floats = mean.astype(np.float32), var.astype(np.float32)
    return np.float32(1) / np.sqrt(floats[1] + np.float32(epsilon_of(norm))), floats[0]


def _factors(draft: GraphBuilder, view: GraphView, norm: Node) -> tuple[str, str, list[onnx.NodeProto]]:
    """The names of factor and shift, and the nodes that compute them from scale and bias."""
    inverse, mean = _statistics(view, norm)
    base, scale, bias = norm.outputs[0], norm.inputs[1], norm.inputs[2]
    factor, moved, shift = (draft.unique(f"{base}_{end}") for end in ("factor", "moved", "shift"))
    return (
        factor,
        shift,
        [
            draft.node("Mul", [scale, draft.constant("qdqtool_inverse_deviation", inverse)], factor),
            draft.node("Mul", [factor, draft.constant("qdqtool_mean", mean)], moved),
            draft.node("Sub", [bias, moved], shift),
        ],
    )


def _affine(draft: GraphBuilder, norm: Node, factor: str, shift: str, rank: int) -> list[onnx.NodeProto]:
    nodes = []
    if rank > 2:
        shape = draft.constant("qdqtool_per_channel", np.array([-1] + [1] * (rank - 2), np.int64))
        raised = [draft.unique(f"{name}_raised") for name in (factor, shift)]
        nodes += [draft.node("Reshape", [name, shape], new) for name, new in zip((factor, shift), raised, strict=True)]
        factor, shift = raised
    scaled = draft.unique(f"{norm.outputs[0]}_scaled")
    nodes.append(draft.node("Mul", [norm.inputs[0], factor], scaled))
    nodes.append(draft.node("Add", [scaled, shift], norm.outputs[0]))
    return nodes
