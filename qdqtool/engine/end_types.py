# SPDX-License-Identifier: Apache-2.0
"""What goes in and out of predicted layers, with the element types of a strongly typed file. It predicts no layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qdqtool.engine.predict import PredictedLayer
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.precision.element_types import FLOATS, type_name

Ends = tuple[str, str]  # what a layer reads and what it gives: "INT8", "FP16", "FP32", "BF16", or "float"


def end_types(view: GraphView, layers: Sequence[PredictedLayer], types: Mapping[str, int] | None) -> tuple[Ends, ...]:
    """What each layer reads and gives.

    Args:
        view: the graph as the file has it, with its Casts.
        layers: those predicted of it.
        types: its element types by `infer_types`; None where the builder chooses them, which is "float".
    """
    nodes = {node.name: node for node in view.every}
    return tuple((_input(layer, nodes, types), _output(layer, types)) for layer in layers)


def _input(layer: PredictedLayer, nodes: Mapping[str, Node], types: Mapping[str, int] | None) -> str:
    """INT8 where it takes integers, else the type that its first operator reads."""
    if layer.input == "int8":
        return "INT8"
    inside = [nodes[name] for name in layer.nodes if name in nodes]
    computing = [node for node in inside if node.op not in (QUANTIZE, DEQUANTIZE)]
    for node in computing or inside:
        for name in node.inputs:
            if types is not None and types.get(name) in FLOATS:
                return type_name(types[name])
    return _of_tensors((port.tensor for port in layer.inputs), types)


def _output(layer: PredictedLayer, types: Mapping[str, int] | None) -> str:
    return "INT8" if layer.output == "int8" else _of_tensors((port.tensor for port in layer.outputs), types)


def _of_tensors(names: Iterable[str], types: Mapping[str, int] | None) -> str:
    known = (type_name(types[name]) for name in names if types is not None and name in types)
    return next(known, "float")
