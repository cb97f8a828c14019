# SPDX-License-Identifier: Apache-2.0
"""A copy of a model in the few forms that training knows: flat, opset 13 to 21, weights inside, no Identity or Dropout.

BatchNormalization is in batchnorm.py, Q/DQ are in pair_nodes.py.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.tensors import array_of, constant_value
from qdqtool.graph.types import opset_of
from qdqtool.graph.validate import label, subgraphs_of, tensors_of
from qdqtool.graph.view import GraphView
from qdqtool.passes.integer_operators import complete_pairs

HIGHEST_OPSET = 21
IR_VERSION = 10
"""The highest that onnxruntime-training 1.19.2 reads; what it cannot say, no training form needs."""
_DEFAULT = ("", "ai.onnx")


def training_copy(model: Model) -> onnx.ModelProto:
    """The model as training starts from it; the original is not changed.

    Local functions are put in place of their calls; opsets below 13 are lifted and those above 21 lowered; external
    data come in; Constant nodes become initializers; Identity and Dropout go; integers that are only moved between a Q
    and its DQ get pairs around; no initializer is an input. Tensor names stay.

    Raises:
        QdqError: functions that cannot be inlined, an operator that opset 21 lacks, external data that are not there.
    """
    copy = model.copy()
    proto = copy.proto
    _inline(proto)
    normalize(copy)
    _lower(proto)
    proto.ir_version = IR_VERSION
    for tensor in tensors_of(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        tensor.CopyFrom(numpy_helper.from_array(array_of(tensor, model.folder), tensor.name))
    copy.changed()
    complete_pairs(copy.view, ends=False)
    weights = {tensor.name for tensor in proto.graph.initializer}
    for place in range(len(proto.graph.input) - 1, -1, -1):
        if proto.graph.input[place].name in weights:
            del proto.graph.input[place]
    draft = GraphBuilder(proto)
    draft.set_nodes(list(proto.graph.node))
    _constants(draft)
    _pass_through(draft)
    return proto


def _inline(proto: onnx.ModelProto) -> None:
    """Every local function in place of its calls."""
    if not proto.functions:
        return
    names = [function.name for function in proto.functions]
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # what onnx's C++ raises has no common type
        reason = f"is a local function that cannot be inlined ({str(error).splitlines()[0]})"
        raise QdqError(names[0], reason, "export the model without functions") from None
    lost = {value.name for value in proto.graph.output} - {value.name for value in inlined.graph.output}
    if lost or inlined.functions:
        raise QdqError(names[0], "is a local function that cannot be inlined", "export the model without functions")
    proto.CopyFrom(inlined)


def _lower(proto: onnx.ModelProto) -> None:
    """Opset 21 where it is higher: the same operators, as long as each of them was there with what it uses now."""
    opset = opset_of(proto)
    if opset is None or opset <= HIGHEST_OPSET:
        return
    stack = [proto.graph]
    while stack:
        graph = stack.pop()
        for node in graph.node:
            stack.extend(subgraphs_of(node))
            if node.domain in _DEFAULT and not _fits(node, opset):
                reason = (
                    f"is written in opset {opset} and cannot be converted to opset {HIGHEST_OPSET}, which "
                    "training needs"
                )
                raise QdqError(label(node), reason, f"export the model with opset {HIGHEST_OPSET} or lower")
    for entry in proto.opset_import:
        if entry.domain in _DEFAULT:
            entry.version = HIGHEST_OPSET


def _fits(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node means the same in opset 21: attributes and defaults as there; types only became more since."""
    try:
        now = onnx.defs.get_schema(node.op_type, opset, "")
        if now.since_version <= HIGHEST_OPSET:
            return True
        then = onnx.defs.get_schema(node.op_type, HIGHEST_OPSET, "")
    except onnx.defs.SchemaError:
        return now_unknown(node)
    used = {item.name for item in node.attribute}
    known = used <= set(then.attributes) and len(node.input) <= then.max_input and len(node.output) <= then.max_output
    defaults = [
        now.attributes[name].default_value == then.attributes[name].default_value
        for name in sorted(set(now.attributes) & set(then.attributes) - used)
    ]
    return known and all(defaults)


def now_unknown(node: onnx.NodeProto) -> bool:
    """Whether no opset has the operator: a plugin in the default domain, which is left as it is."""
    return not onnx.defs.has(node.op_type)


def _constants(draft: GraphBuilder) -> None:
    """Constant nodes as initializers of the same name; sparse and text values stay nodes, and so do outputs."""
    graph = draft.proto.graph
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        value = constant_value(node, None) if node.op_type == "Constant" and node.domain in _DEFAULT else None
        if value is None or node.output[0] in outputs:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), node.output[0]))
    draft.set_nodes(kept)


def _pass_through(draft: GraphBuilder) -> None:
    """Readers of an Identity, or of a Dropout that lets everything through, read what it reads."""
    view = draft.view()
    names: dict[str, str] = {}
    kept = []
    for node in view.every:
        gone = node.op == "Identity" or (node.op == "Dropout" and _lets_through(view, node.inputs, node.outputs))
        if (
            gone
            and node.inputs[0]
            and not any(view.is_output(name) for name in node.outputs)
            and not (set(node.outputs) & view.captured)
        ):
            names[node.outputs[0]] = node.inputs[0]
        elif node.op == "Dropout" and gone:
            kept.append(helper.make_node("Identity", node.inputs[:1], node.outputs[:1], name=node.proto.name))
        else:
            kept.append(node.proto)
    draft.set_nodes(kept)
    draft.rename_reads(names)


def _lets_through(view: GraphView, inputs: list[str], outputs: list[str]) -> bool:
    if len(outputs) > 1 and outputs[1] and (view.consumers(outputs[1]) or view.is_output(outputs[1])):
        return False
    if len(inputs) < 3 or not inputs[2]:
        return True
    training = view.array(inputs[2])
    return training is not None and not training.any()
