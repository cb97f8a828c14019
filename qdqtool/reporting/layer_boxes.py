# SPDX-License-Identifier: Apache-2.0
"""Layers as boxes: those that the rules predict, or those of a built engine, each with its type and why it has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qdqtool.engine.compare import MEANING, LayerComparison, nodes_inside
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.predict import FLOAT, PredictedLayer
from qdqtool.engine.products import FORMAT_TITLES, count_products
from qdqtool.formats import number_format
from qdqtool.graph.view import GraphView, Node
from qdqtool.precision.element_types import type_name
from qdqtool.reporting.boxes import LayerBox, Look

_CONVERSIONS = ("quantize", "dequantize")
_PRODUCTS = ("convolution", "product")
_LOOKS: Mapping[str, Look] = {**dict.fromkeys(FORMAT_TITLES, "int8"), "FP16": "fp16", "BF16": "fp16"}

Reason = tuple[Look, str]


def predicted_boxes(
    layers: Iterable[PredictedLayer], reasons: Mapping[str, Reason], types: Mapping[str, int]
) -> list[LayerBox]:
    """A box for each predicted layer that has nodes."""
    boxes = []
    for layer in layers:
        if layer.kind in _CONVERSIONS:
            boxes.append(_conversion(layer))
        elif layer.nodes:
            boxes.append(_predicted(layer, _of_nodes(layer.nodes, reasons), types))
    return boxes


def _conversion(layer: PredictedLayer) -> LayerBox:
    """The box of a left-over Q or DQ; its only node is the tensor, by which the lines find it."""
    tensor = layer.inputs[0].tensor
    ends = layer.outputs if layer.kind == "quantize" else layer.inputs
    title = number_format(ends[0].precision).title
    what = f"float to {title}" if layer.kind == "quantize" else f"{title} to float"
    reason = f"{tensor} goes from {what}: no layer on that side reads the type directly"
    return LayerBox(
        layer.name, layer.kind, title if layer.kind == "quantize" else "FP32", "converts", reason, (tensor,)
    )


def _predicted(layer: PredictedLayer, why: Reason | None, types: Mapping[str, int]) -> LayerBox:
    moves = layer.kind not in _PRODUCTS and layer.input == layer.output != FLOAT
    if layer.compute != FLOAT or moves:
        title = number_format(layer.output if moves else layer.compute).title
        reason = why[1] if why is not None and why[0] == "int8" else ""
        return LayerBox(layer.name, layer.kind, title, "int8", reason or _rule(layer), layer.nodes)
    kind = next((type_name(types[port.tensor]) for port in layer.outputs if port.tensor in types), "FP32")
    look = _LOOKS.get(kind, "fp32")
    product = layer.kind in _PRODUCTS
    if why is None:
        return LayerBox(layer.name, layer.kind, kind, look, "no Q/DQ pair at its input" if product else "", layer.nodes)
    if why[0] == "int8":
        reason = f"in float, though the rules quantize it: {why[1]}"
        return LayerBox(layer.name, layer.kind, kind, "lost" if product else look, reason, layer.nodes)
    return LayerBox(layer.name, layer.kind, kind, look if why[0] == "fp32" else why[0], why[1], layer.nodes)


def _rule(layer: PredictedLayer) -> str:
    return f"fused by rule {layer.rule}" if layer.rule else ""


def _of_nodes(nodes: Iterable[str], reasons: Mapping[str, Reason]) -> Reason | None:
    """The reason of the first node of a layer that has one; one that is not "int8" goes first."""
    found = [reasons[name] for name in nodes if name in reasons]
    return next((one for one in found if one[0] != "int8"), found[0] if found else None)


def built_boxes(
    info: EngineInfo, known: Mapping[str, str], comparison: LayerComparison | None, reasons: Mapping[str, Reason]
) -> list[LayerBox]:
    """A box for each layer of a built engine that holds nodes of the model."""
    verdicts = {id(row.engine): row for row in comparison.rows} if comparison is not None else {}
    boxes = []
    for layer, nodes in zip(info.layers, nodes_inside(info, known), strict=True):
        if not nodes & known.keys():
            continue
        kind = (layer.product_type if layer.is_product else "") or (layer.outputs[0].type if layer.outputs else "")
        row = verdicts.get(id(layer))
        words = [] if row is None else [f"built, {MEANING[row.verdict]}" + (f": {row.note}" if row.note else "")]
        why = _of_nodes(sorted(nodes), reasons)
        look = _LOOKS.get(kind, "fp32")
        if look != "int8" and why is not None and why[0] != "int8":
            look = why[0]
            words.append(why[1])
        boxes.append(LayerBox(layer.name, layer.kind.lower(), kind, look, "; ".join(words), tuple(sorted(nodes))))
    return boxes


def product_counts(
    view: GraphView, boxes: Iterable[LayerBox], types: Mapping[str, int] | None = None, file: GraphView | None = None
) -> dict[str, int]:
    """Type -> how many products compute in it, INT8 first, as `count_products` counts them.

    `types` are those of `file`, the graph as it is stored; the graph itself by default.
    """
    made = {node.name: node.key for node in (file or view).every}
    of = {name: box.type for box in boxes if box.look != "converts" for name in box.nodes}

    def float_type(node: Node) -> str:
        """That of the product itself: its layer may end in a Cast."""
        kind, code = of.get(node.name, "?"), (types or {}).get(made.get(node.name, ""))
        return kind if code is None or kind in ("?", *FORMAT_TITLES) else type_name(code)

    return count_products(view, float_type, types)
