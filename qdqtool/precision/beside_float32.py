# SPDX-License-Identifier: Apache-2.0
"""Why operators are in FP32 that need not be: what their neighbors are FP32 for. Which they are says `cast_cut.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qdqtool.precision.float_graph import FloatGraph, FloatTensor
from qdqtool.precision.required import FloatReason

CASTS = "casts"  # the rule of such a reason
INT8 = "int8"  # the rule of what is FP32 in the file and INT8 in the engine
_MOST = 3  # causes that a sentence names


def reasons_beside(
    graph: FloatGraph, added: Collection[str], required: Mapping[str, FloatReason]
) -> dict[str, FloatReason]:
    """The first cause of each operator that is in FP32 for fewer Casts: an operator whose values do not fit, an end."""
    group = {key: key for key in added}

    def find(key: str) -> str:
        while group[key] != key:
            group[key] = group[group[key]]
            key = group[key]
        return key

    touched = [(tensor, [key for key in _ends(tensor) if key in group]) for tensor in graph.tensors]
    touched = [(tensor, keys) for tensor, keys in touched if keys]
    for _, keys in touched:
        for key in keys[1:]:
            group[find(key)] = find(keys[0])
    causes: dict[str, dict[str, None]] = {}
    for tensor, keys in touched:
        causes.setdefault(find(keys[0]), {}).update(dict.fromkeys(_causes(graph, tensor, required)))
    return {key: FloatReason(CASTS, _sentence(list(causes.get(find(key), ())))) for key in added}


def _ends(tensor: FloatTensor) -> list[str]:
    """What makes and reads a tensor."""
    return [key for key in (tensor.maker, *tensor.readers) if key is not None]


def _causes(graph: FloatGraph, tensor: FloatTensor, required: Mapping[str, FloatReason]) -> list[str]:
    """What at a tensor is FP32 in any case."""
    found = []
    if tensor.name in graph.view.outputs and tensor.fixed:
        found.append(f"the output {tensor.name}")
    if tensor.name in graph.view.inputs and not tensor.half_maker:
        found.append(f"the input {tensor.name}")
    for key in _ends(tensor):
        reason = required.get(key)
        if reason is not None and reason.rule != INT8:  # a Cast beside an INT8 layer costs nothing
            found.append(f"{graph.nodes[key].name} ({reason.text})")
    return found


def _sentence(causes: list[str]) -> str:
    if not causes:
        return "two Casts around it would cost more than running it in FP32"
    more = f" and {len(causes) - _MOST} more" if causes[_MOST:] else ""
    return f"Casts to half would cost more than they save, beside what is FP32: {', '.join(causes[:_MOST])}{more}"
