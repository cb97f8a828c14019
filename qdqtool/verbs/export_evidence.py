# SPDX-License-Identifier: Apache-2.0
"""What a model has for the entries of a calibration cache to be held against: names of tensors, values of constants."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import TensorProto

from qdqtool.cache.other_export import ConstantFact, ExportEvidence, find_evidence
from qdqtool.cache.text import Cache
from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types
from qdqtool.graph.view import GraphView
from qdqtool.precision.widen import as_fp32

_FLOATS_OR_UNKNOWN = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_FLOAT_KIND, _INTEGER_KINDS = "f", "iub"
_INTEGERS = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)


def export_evidence(opened: Model, cache: Cache) -> ExportEvidence:
    """What in a cache contradicts a model: see `find_evidence`. Q/DQ of the model are left in place."""
    view = opened.view
    facts, integers = constant_facts(view, cache.entries)
    floats, others = tensor_names(opened)
    computed = {name for name in others if name in view.producers and not view.is_constant(name)}
    wanted = computed.intersection(cache.entries)
    kinds = known_types(opened) if wanted else {}
    integers |= {name for name in wanted if kinds.get(name, 0) in _INTEGERS}
    return find_evidence(cache.entries, floats, facts, integers)


def tensor_names(opened: Model) -> tuple[list[str], list[str]]:
    """The floats that a model computes, and all its other tensors."""
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


def constant_facts(view: GraphView, names: Iterable[str]) -> tuple[dict[str, ConstantFact], set[str]]:
    """What the constants among `names` hold: float ones by name, and the names of the others.

    Constants whose values cannot be read are left out.
    """
    facts, integers = dict[str, ConstantFact](), set[str]()
    for name in names:
        values = view.array(name) if view.is_constant(name) else None
        if values is None:
            continue
        if values.dtype.kind in _INTEGER_KINDS:
            integers.add(name)
        if values.dtype.kind != _FLOAT_KIND:
            continue
        amax = float(np.max(np.abs(values))) if values.size else None
        if amax is None or np.isfinite(amax):
            facts[name] = ConstantFact(amax, _neighbors(view, name))
    return facts, integers


def _neighbors(view: GraphView, name: str) -> tuple[str, ...]:
    readers = [use.node for use in view.consumers(name)]
    beside = (other for node in readers for other in (*node.inputs, *node.outputs) if other and other != name)
    return tuple(dict.fromkeys(beside))
