# SPDX-License-Identifier: Apache-2.0
"""The names of a model's tensors as a calibration cache may have them: floats that are computed, and all others."""

from __future__ import annotations

from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.types import infer_types, opset_of
from qdqtool.precision.widen import as_fp32

_FLOATS_OR_UNKNOWN = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def tensor_names(opened: Model) -> tuple[list[str], list[str]]:
    """The tensors of a model."""
    wide = as_fp32(opened)
    stored, view = opened.view, wide.view
    graph = infer_types(wide.proto, opset_of(wide.proto) or 1)
    kinds = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    computed = [*view.inputs, *(name for node in view.nodes for name in node.outputs if name)]
    floats = [
        name
        for name in dict.fromkeys(computed)
        if not view.is_constant(name) and (name not in kinds or kinds[name].tensor_type.elem_type in _FLOATS_OR_UNKNOWN)
    ]
    wanted = set(floats)
    every = [view, *view.bodies(), *([stored] if stored is not view else [])]
    names = (n for body in every for n in (*body.initializers, *body.inputs, *body.producers))
    return floats, [name for name in dict.fromkeys(names) if name not in wanted]
