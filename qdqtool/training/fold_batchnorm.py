# SPDX-License-Identifier: Apache-2.0
"""Folds BatchNormalization into weights that stand after Q/DQ, and their scales with them. Edits the Q/DQ model.

    W' = k W    s' = |k| s    k = scale / sqrt(var + epsilon) of the channel
so that W' / s' = +-W / s: the same integers, up to a sign. One scale for a whole weight cannot follow; it becomes
s max|W'| / max|W|, and the integers change. A weight at -128 in a channel whose k is negative loses a step, at 127.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.edit import count_uses
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of
from qdqtool.graph.view import GraphView, Node, Pair, attribute
from qdqtool.graph.weighted import output_axis
from qdqtool.passes.fold_bn import fold_batch_norms, folding_factors, unfolded_batch_norms


@dataclass(frozen=True, eq=False)
class _Bypassed:
    """A pair that was taken out so that the weight before it can be folded."""

    quantize: onnx.NodeProto
    dequantize: onnx.NodeProto
    outputs: tuple[str, str]
    scale: npt.NDArray[np.float32]
    factor: npt.NDArray[np.float64]
    amax: np.float64


def fold_behind_pairs(model: Model) -> list[str]:
    """Fold every BatchNormalization of a Q/DQ model that can be folded; the proto is edited."""
    if not any(node.op == "BatchNormalization" for node in model.view.every):
        return ["no BatchNormalization to fold"]
    bypassed = _bypass(model.view)
    model.changed()
    folded = fold_batch_norms(model)
    view = model.view
    alike = _put_back(model.proto, view, bypassed)
    model.changed()
    notes = [f"{len(folded)} BatchNormalizations folded into the weights before them, together with their scales"]
    if alike:
        notes.append(
            f"{len(alike)} weights with one scale each got a new scale, such as {alike[0]}: their integers changed"
        )
    notes += [f"{left.site}: BatchNormalization not folded: {left.reason}" for left in unfolded_batch_norms(view)]
    return notes


def _bypass(view: GraphView) -> list[_Bypassed]:
    """Take the pairs out that stand between a weight and an operator whose BatchNormalization can be folded."""
    uses = count_uses(view)
    found: list[_Bypassed] = []
    gone: set[int] = set()
    for norm in view.nodes:
        factors = folding_factors(view, norm) if norm.op == "BatchNormalization" else None
        operator = view.producers.get(norm.inputs[0]) if norm.inputs else None
        if factors is None or operator is None:
            continue
        pair = _own_pair(view, operator, uses)
        if pair is None or pair.quantize is None:
            continue
        scale = view.array(pair.quantize.inputs[1])
        weight = view.array(pair.quantize.inputs[0])
        if (
            scale is None
            or weight is None
            or scale.dtype != np.float32
            or not _along_outputs(operator, pair, scale, factors[0])
        ):
            continue
        amax = np.float64(np.abs(weight).max(initial=0))
        nodes = [onnx.NodeProto(), onnx.NodeProto()]
        nodes[0].CopyFrom(pair.quantize.proto)
        nodes[1].CopyFrom(pair.dequantize.proto)
        outputs = (operator.outputs[0], norm.outputs[0])
        found.append(_Bypassed(nodes[0], nodes[1], outputs, scale.astype(np.float32), factors[0], amax))
        operator.proto.input[1] = pair.quantize.inputs[0]
        gone.update((pair.quantize.index, pair.dequantize.index))
    for place in sorted(gone, reverse=True):
        del view.graph.node[place]
    return found


def _own_pair(view: GraphView, operator: Node, uses: Counter[str]) -> Pair | None:
    """The pair after a weight, where Q and DQ serve this operator alone and nothing stands between them."""
    for pair in view.pairs.get(view.root(operator.inputs[1]), ()):
        quantize = pair.quantize
        if quantize is None or pair.between or pair.dequantize.outputs[0] != operator.inputs[1]:
            continue
        alone = uses[pair.dequantize.outputs[0]] == 1 and uses[quantize.outputs[0]] == 1
        tensor = view.constant_tensor(quantize.inputs[0])
        if alone and tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT:
            return pair
    return None


def _along_outputs(operator: Node, pair: Pair, scale: npt.NDArray[np.generic], factor: npt.NDArray[np.float64]) -> bool:
    """Whether a scale is one, or runs along the output channels."""
    if scale.size == 1:
        return True
    if attribute(operator, "group", 1) != 1 and operator.op == "ConvTranspose":
        return False
    axis = attribute(pair.quantize or pair.dequantize, "axis", 1)
    return axis == output_axis(operator, 1, 2) and scale.size == factor.size


def _put_back(proto: onnx.ModelProto, view: GraphView, bypassed: list[_Bypassed]) -> list[str]:
    """The pairs again, with scales that follow their weights; names of weights whose one scale changed its steps."""
    if not bypassed:
        return []
    draft = GraphBuilder(proto)
    uses = Counter(name for node in view.every for name in node.inputs)
    uses.update(name for one in bypassed for name in {one.quantize.input[1], one.dequantize.input[1]})
    before: dict[int, list[onnx.NodeProto]] = {}
    alike: list[str] = []
    for one in bypassed:
        operator = next(view.producers[name] for name in reversed(one.outputs) if name in view.producers)
        if operator.op == "BatchNormalization":  # it stayed: the operator still makes the first
            operator = view.producers[one.outputs[0]]
        weight = operator.inputs[1]
        one.quantize.input[0] = weight
        if operator.outputs[0] == one.outputs[1]:
            if one.scale.size == 1:
                alike.append(weight)
            name = _scale(draft, view, one, weight, uses)
            one.quantize.input[1] = one.dequantize.input[1] = name
        operator.proto.input[1] = one.dequantize.output[0]
        before[id(operator.proto)] = [one.quantize, one.dequantize]
    nodes = [new for node in view.every for new in (*before.get(id(node.proto), ()), node.proto)]
    draft.set_nodes(nodes)
    return alike


def _scale(draft: GraphBuilder, view: GraphView, one: _Bypassed, weight: str, uses: Counter[str]) -> str:
    if one.scale.size == 1:
        value = array_of(view.initializers[weight], view.folder)
        ratio = np.float64(np.abs(value).max(initial=0)) / one.amax if one.amax else np.float64(1)
        made = one.scale.astype(np.float64) * (ratio or 1)
    else:
        factor = np.abs(one.factor).reshape(one.scale.shape)
        made = one.scale.astype(np.float64) * np.where(factor > 0, factor, 1)
    narrow = np.maximum(made, np.finfo(np.float32).tiny).astype(np.float32)
    name: str = one.quantize.input[1]
    if name in view.initializers and uses[name] == 1:
        view.initializers[name].CopyFrom(numpy_helper.from_array(narrow, name))
        return name
    return draft.initializer(f"{weight}_scale", narrow)
