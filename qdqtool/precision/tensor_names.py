# SPDX-License-Identifier: Apache-2.0
"""The names of a model's tensors as a calibration cache may have them: floats that are computed, and all others."""

from __future__ import annotations

from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types
from qdqtool.precision.widen import as_fp32

_FLOATS_OR_UNKNOWN = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def tensor_names(opened: Model) -> tuple[list[str], list[str]]:
    """The tensors of a model."""
    wide = as_fp32(opened)
    stored, view = opened.view, wide.view
    kinds = known_types(wide)
    computed = [*view.inputs, *(name for node in view.nodes for name in node.outputs if name)]
    floats = [
        name
        for name in dict.fromkeys(computed)
        if not view.is_constant(name) and kinds.get(name, 0) in _FLOATS_OR_UNKNOWN
    ]
    wanted = set(floats)
    every = [view, *view.bodies(), *([stored] if stored is not view else [])]
    names = (n for body in every for n in (*body.initializers, *body.inputs, *body.producers))
    return floats, [name for name in dict.fromkeys(names) if name not in wanted]
