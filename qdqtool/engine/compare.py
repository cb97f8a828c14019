# SPDX-License-Identifier: Apache-2.0
"""Predicted layers beside those of a built engine: the same nodes, the same type, or what differs and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from qdqtool.engine.data_types import FLOATS
from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.engine.predict import FLOAT, PredictedLayer
from qdqtool.errors import QdqError
from qdqtool.formats import number_format
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView

Verdict = Literal["same", "float", "format", "output", "split", "merged", "nodes", "engine", "predicted"]
# What each verdict means, as people read it.
MEANING: Mapping[Verdict, str] = {
    "same": "as predicted",
    "float": "float instead of a number format",
    "format": "a number format that was not predicted",
    "output": "outputs another type",
    "split": "part of a predicted layer",
    "merged": "more than a predicted layer",
    "nodes": "other nodes",
    "engine": "only in the engine",
    "predicted": "only predicted",
}
_QDQ = frozenset({QUANTIZE, DEQUANTIZE})
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_MANY = 1000  # more than what fuses with a product


@dataclass(frozen=True)
class LayerPair:
    """One layer of the engine beside the predicted one.

    Attributes:
        verdict: same; float or format (multiplies in it where another was predicted); output (gives out the other);
            split (a part of the predicted layer); merged (all of it and more); nodes (others run in it); engine or
            predicted (only there).
        engine: the engine's layer.
        predicted: the predicted layer.
        note: what differs, and why where that is known.
    """

    verdict: Verdict
    engine: EngineLayer | None
    predicted: PredictedLayer | None
    note: str = ""


@dataclass(frozen=True)
class LayerComparison:
    """All rows, in the order of the engine, and what was left out of them.

    Attributes:
        rows: layers with ONNX nodes.
        reformats: the engine's copies between formats and layers that do nothing.
        helpers: its other layers whose names and metadata tell no node of the model.
    """

    rows: tuple[LayerPair, ...]
    reformats: tuple[EngineLayer, ...]
    helpers: tuple[EngineLayer, ...]

    @property
    def engine_layers(self) -> int:
        """Layers of the engine that were compared."""
        return sum(row.engine is not None for row in self.rows)

    @property
    def right(self) -> int:
        """Those that were predicted with their nodes and type."""
        return self.counts().get("same", 0)

    def counts(self) -> dict[Verdict, int]:
        """Verdict -> how many rows have it, in the order of `MEANING`; verdicts of no row are left out."""
        found = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in MEANING if found[verdict]}


def node_ops(view: GraphView) -> dict[str, str]:
    """Every node of the main graph by name -> its operator, Q/DQ nodes among them; constants left out.

    An Add of a constant, such as a bias, is `Add:bias`: it has no other branch.
    """
    ops = {node.name: node.op for node in view.every if node.op != "Constant"}
    biases = (node.name for node in view.nodes if node.op == "Add" and any(map(view.is_constant, node.inputs)))
    return {**ops, **dict.fromkeys(biases, "Add:bias")}


def compare_layers(predicted: Iterable[PredictedLayer], info: EngineInfo, known: Mapping[str, str]) -> LayerComparison:
    """What was predicted beside what was built.

    Layers are paired by the ONNX nodes in them: by those that both names tell, or, where the export has Metadata, by
    all but Q/DQ nodes (a Q/DQ node alone counts).

    Raises:
        QdqError: no layer of the engine tells a node of the model.
    """
    layers = [layer for layer in predicted if layer.nodes]
    keyed = {_key(layer, known, full=info.has_metadata): layer for layer in layers}
    reformats, helpers, unpaired = [], [], []
    rows: dict[int, LayerPair] = {}
    inside = nodes_inside(info, known)
    for place, layer in enumerate(info.layers):
        nodes = inside[place]
        if layer.is_reformat:
            reformats.append(layer)
        elif not nodes & known.keys():
            helpers.append(layer)
        elif (found := keyed.pop(_core(nodes, known) if info.has_metadata else nodes, None)) is not None:
            rows[place] = _typed(layer, found)
        else:
            unpaired.append((place, layer, nodes))
    if not rows and not unpaired:
        raise QdqError(info.path, "names no node of the model", "give the layer information of this model's engine")
    rest = list(keyed.values())
    for place, layer, nodes in unpaired:
        rows[place] = _nearest(layer, nodes, rest, known, full=info.has_metadata)
    paired = {id(row.predicted) for row in rows.values()}
    ordered = [rows[place] for place in sorted(rows)]
    ordered += [LayerPair("predicted", None, layer, "not in the engine") for layer in rest if id(layer) not in paired]
    return LayerComparison(tuple(ordered), tuple(reformats), tuple(helpers))


def nodes_inside(info: EngineInfo, known: Mapping[str, str]) -> list[frozenset[str]]:
    """The ONNX nodes in each layer; a product belongs to the layer that multiplies alone.

    Myelin also names it in the generated kernel that requantizes what it gives.
    """
    inside = [_as_named(layer.nodes(known), known) for layer in info.layers]
    multiplied: set[str] = set()
    for layer, nodes in zip(info.layers, inside, strict=True):
        if layer.is_product:
            multiplied |= {name for name in nodes if known.get(name) in _PRODUCTS}
    return [nodes if layer.is_product else nodes - multiplied for layer, nodes in zip(info.layers, inside, strict=True)]


def _as_named(nodes: frozenset[str], known: Mapping[str, str]) -> frozenset[str]:
    """The names of the model's own: TensorRT calls a node without a name `node_of_<first output>`."""
    return frozenset(name if name in known else name.removeprefix("node_of_") for name in nodes)


def _core(nodes: frozenset[str], known: Mapping[str, str]) -> frozenset[str]:
    """All but Q/DQ nodes; where there are none, the Q nodes; where there are none of these either, the DQ nodes."""
    plain = frozenset(name for name in nodes if known.get(name) not in _QDQ)
    return plain or frozenset(name for name in nodes if known.get(name) == QUANTIZE) or nodes


def _key(layer: PredictedLayer, known: Mapping[str, str], *, full: bool) -> frozenset[str]:
    return _core(frozenset(layer.nodes), known) if full else frozenset(layer.named)


def _typed(engine: EngineLayer, predicted: PredictedLayer) -> LayerPair:
    differing = _product_type(engine, predicted)
    if differing is not None:
        return differing
    if engine.output in (None, "other") or predicted.output in engine.kinds:
        return LayerPair("same", engine, predicted)
    return LayerPair("output", engine, predicted, f"outputs {engine.output}, predicted {predicted.output}")


def _product_type(engine: EngineLayer, predicted: PredictedLayer) -> LayerPair | None:
    """The row of a layer that multiplies in float where integers were predicted, or the other way round."""
    built = engine.product_type if engine.is_product else ""
    if predicted.kind not in ("convolution", "product") or not built:
        return None
    wanted = FLOAT if predicted.compute == FLOAT else number_format(predicted.compute).title
    if wanted == (FLOAT if built in FLOATS else built):
        return None
    verdict: Verdict = "float" if built in FLOATS else "format"
    return LayerPair(verdict, engine, predicted, f"multiplies {built}, predicted {wanted}")


def _nearest(
    engine: EngineLayer, nodes: frozenset[str], layers: list[PredictedLayer], known: Mapping[str, str], *, full: bool
) -> LayerPair:
    """The layer not found elsewhere that shares most nodes with one of the engine, a product counting for many."""
    mine = _core(nodes, known)
    weight = {name: _MANY if known.get(name) in _PRODUCTS else 1 for name in mine}
    shared = [(sum(weight.get(name, 0) for name in layer.nodes), -place) for place, layer in enumerate(layers)]
    best = max(shared, default=(0, 0))
    if not best[0]:
        return LayerPair("engine", engine, None, "not predicted")
    layer = layers[-best[1]]
    theirs = _core(_key(layer, known, full=full), known)
    differing = _product_type(engine, layer)
    if differing is not None:
        return differing
    return _regrouped(engine, layer, (sorted(mine - theirs), sorted(theirs - mine)), known)


def _regrouped(
    engine: EngineLayer, layer: PredictedLayer, differences: tuple[list[str], list[str]], known: Mapping[str, str]
) -> LayerPair:
    """The row of a layer with other nodes: how it differs."""
    more, less = differences
    words = [f"also contains {', '.join(more)}"] if more else []
    words += [f"lacks {', '.join(less)}"] if less else []
    if not words:
        words = ["names other Q/DQ nodes"]
    verdict: Verdict = "nodes" if bool(more) == bool(less) else "merged" if more else "split"
    adds = [name for name in (*more, *less) if known.get(name) == "Add"]
    if adds and len(more) + len(less) <= 3:
        verdict = "nodes"
        words.append("the residual Add runs with the other convolution, which varies by version")
    return LayerPair(verdict, engine, layer, "; ".join(words))
