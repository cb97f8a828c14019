# SPDX-License-Identifier: Apache-2.0
"""The way back: what `apply_types` put into a model, taken out again. What came typed from elsewhere stays typed."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto

from qdqtool.graph.edit import drop_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DEQUANTIZE, QUANTIZE
from qdqtool.graph.order import wrapped
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import is_added_cast
from qdqtool.precision.precision_record import PRECISION, PrecisionRecord, stored_precision
from qdqtool.precision.scopes import typed_scope
from qdqtool.precision.widen import is_typed, widen, widen_named


def types_over_pairs(model: onnx.ModelProto) -> PrecisionRecord | None:
    """The record of a Q/DQ model whose types came after its pairs; None where the pairs came into a typed model.

    Only then do the Casts beside pairs carry the trace of `apply_types`.
    """
    record = stored_precision(model)
    if record is None:
        return None
    dequantized = {proto.output[0] for proto in model.graph.node if proto.op_type == DEQUANTIZE and proto.output}
    quantized = {proto.input[0] for proto in model.graph.node if proto.op_type == QUANTIZE and proto.input}
    beside = [
        proto
        for proto in model.graph.node
        if proto.op_type == "Cast" and (proto.input[0] in dequantized or proto.output[0] in quantized)
    ]
    return record if all(map(is_added_cast, beside)) else None


def take_out_types(model: Model, record: PrecisionRecord) -> Model:
    """The model in FP32 under the names that it had before its types: Casts are gone, and constants stored twice.

    Constants that were stored in 16 bits alone keep their rounded values.
    """
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    made = widen(model)
    _merge_twins(made.graph, record.twins, kinds)
    drop_metadata(made.proto, PRECISION)
    return made


def fp32_masters(model: Model) -> tuple[Model, TypeAssignment | None]:
    """What is trained of a model, in FP32, and the types that it gets afterwards; None for a model in FP32.

    Types that `apply_types` did not write are read off the file: an operator that makes FP32 tensors stays FP32.
    """
    record = stored_precision(model.proto)
    if not is_typed(model):
        return model, None
    if record is not None:
        return take_out_types(model, record), record.assignment
    wide = widen_named(model)
    types = typed_scope(model).types
    kinds = {types.get(name, 0) for proto in model.graph.node for name in proto.output}
    kinds.update(tensor.data_type for tensor in model.graph.initializer)
    rest = int(TensorProto.FLOAT16 if TensorProto.FLOAT16 in kinds else TensorProto.BFLOAT16)
    float32 = {
        wide.names.get(node.key, node.key)
        for node in wrapped(model.graph.node)
        if node.op not in (QUANTIZE, DEQUANTIZE, "Constant")
        and node.key not in wide.casts
        and types.get(node.key) == TensorProto.FLOAT
    }
    stored = {tensor.name for tensor in model.graph.initializer}  # which old files list as inputs
    fed = (value for value in model.graph.input if value.name not in stored)
    half_io = any(value.type.tensor_type.elem_type == rest for value in fed)
    return wide.model, TypeAssignment(rest, frozenset(float32), half_io)


def _merge_twins(graph: onnx.GraphProto, twins: Mapping[str, str], kinds: Mapping[str, int]) -> None:
    """Let who reads a second copy of a constant read the first, which takes the exact values of an FP32 copy."""
    copies = {tensor.name: tensor for tensor in graph.initializer if tensor.name in twins}
    for tensor in graph.initializer:
        twin = next((name for name, first in twins.items() if first == tensor.name and name in copies), None)
        if twin is not None and kinds.get(twin) == onnx.TensorProto.FLOAT:
            exact = onnx.TensorProto()
            exact.CopyFrom(copies[twin])
            exact.name = tensor.name
            tensor.CopyFrom(exact)
    for proto in graph.node:
        for index, name in enumerate(proto.input):
            if name in copies:
                proto.input[index] = twins[name]
    for place in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[place].name in copies:
            del graph.initializer[place]
