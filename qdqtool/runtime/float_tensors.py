# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a model hold float32, also where shape inference knows no type. No scales."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.importable import runs_as_plugin
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors, known_types, untyped_tensors
from qdqtool.graph.view import GraphView
from qdqtool.runtime.activations import runtime_types
from qdqtool.runtime.executor import out_of_reach
from qdqtool.scales import ScaleTable

FLOAT = "tensor(float)"
_ON_GPU = "between plugins, which run only on the GPU"


@dataclass(frozen=True)
class FloatTensors:
    """What of a graph holds float32.

    Attributes:
        names: inputs first, then in the order of the file; constants are not among them.
        unknown: tensors that may hold float32 -> why nobody knows.
    """

    names: tuple[str, ...]
    unknown: Mapping[str, str]


def find_float_tensors(
    model: Model,
    tables: Iterable[ScaleTable | None] = (),
    scaled: Collection[str] = (),
) -> FloatTensors:
    """The float32 tensors of a graph.

    Shape inference knows most types. It knows none of operators without a schema (contrib operators, plugins) and of
    what follows from them: there whatever was observed is float32, and onnxruntime's own inference tells the others.
    """
    view = model.view
    floats = dict.fromkeys(name for name in float_tensors(model) if not view.is_constant(name))
    there = {name for node in view.nodes for name in node.outputs}
    left = [name for name in untyped_tensors(model) if name in there and not view.is_constant(name)]
    if not left:
        return FloatTensors(tuple(floats), {})
    observed = set(scaled)
    for table in tables:
        if table is not None:
            observed |= table.scales.keys() | (table.unscaled.keys() - set(table.provenance.behind))
    asked = [name for name in left if name not in observed]
    kinds, why = _asked(model, asked) if asked else ({}, {})
    floats.update(dict.fromkeys(name for name in left if name in observed or kinds.get(name) == FLOAT))
    order = (*view.inputs, *(name for node in view.every for name in node.outputs))
    return FloatTensors(
        tuple(name for name in dict.fromkeys(order) if name in floats),
        {name: why[name] for name in asked if name in why},
    )


def _asked(model: Model, names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What onnxruntime says of tensors: name -> type, and name -> why it is empty."""
    try:
        kinds, behind = runtime_types(model, names)
    except QdqError as error:  # it is reported with each tensor, and ends in an error where one of them needs a scale
        return {}, dict.fromkeys(names, f"its type is not known: {error.where} {error.reason}")
    lost = {name: f"its type is not known, since it comes after {behind[name]}" for name in names if name in behind}
    return kinds, lost


def on_gpu_alone(view: GraphView, names: Iterable[str]) -> dict[str, str]:
    """Of some tensors those that only plugins touch, each with the reason: the DLA runs no plugin."""
    found = {}
    for name in names:
        producer = view.producers.get(name)
        touched = [*([producer] if producer is not None else []), *(use.node for use in view.consumers(name))]
        if producer is not None and all(runs_as_plugin(node.op) for node in touched):
            found[name] = _ON_GPU
    return found


def check_all_in_reach(model: Model, where: object) -> None:
    """Refuse a model of which the DLA may run parts that onnxruntime cannot compute: they would have no scale.

    Raises:
        QdqError: float tensors after an operator that onnxruntime lacks, and that plugins do not keep to themselves;
            they are named. What `out_of_reach` refuses.
    """
    behind = out_of_reach(model)
    if not behind:
        return
    types = known_types(model)
    floats = [name for name in behind if types.get(name, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT]
    spared = on_gpu_alone(model.view, floats)
    lost = [f"{name} (after {behind[name]})" for name in floats if name not in spared]
    if lost:
        shown = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if lost[6:] else "")
        reason = f"{len(lost)} tensors that the DLA may round cannot be computed by onnxruntime: {shown}"
        raise QdqError(where, reason, "end the model in front of that operator, or make a cache for --target gpu")
