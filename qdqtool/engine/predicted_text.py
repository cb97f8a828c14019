# SPDX-License-Identifier: Apache-2.0
"""Predicted layers, and their comparison with an engine, as lines for people and as values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdqtool.display import counted
from qdqtool.engine.compare import MEANING, LayerComparison, LayerPair
from qdqtool.engine.cost import Forecast, layers_in_kernels
from qdqtool.engine.layer_info import EngineInfo
from qdqtool.engine.layer_types import layer_types
from qdqtool.engine.predict import FLOAT, PredictedLayer
from qdqtool.engine.products import FORMAT_TITLES
from qdqtool.formats import INT8, number_format
from qdqtool.graph.view import GraphView
from qdqtool.precision.element_types import FLOATS, type_name

Ends = tuple[str, str]  # what a layer reads and what it gives: "INT8", "FP8", "FP16", "FP32", "BF16", or "float"


def layer_lines(layers: Sequence[PredictedLayer], ends: Sequence[Ends], forecast: Forecast) -> list[str]:
    """One line per predicted layer, then what they cost together. A prediction: no engine was built for it."""
    pairs = zip(layers, ends, strict=True)
    lines = [f"{read:>5} -> {given:<5}  {layer.kind:<11}  {layer.name}" for layer, (read, given) in pairs]
    return [*lines, *forecast_lines(forecast)]


def forecast_lines(forecast: Forecast) -> list[str]:
    """What the predicted layers cost, in one line or two."""
    found = forecast.layers_by_format or {INT8.title: 0}
    layers = ", ".join(f"{counted(count, 'layer')} in {title}" for title, count in found.items())
    line = (
        f"predicted, not measured: {layers_in_kernels(forecast.layers, forecast.kernels)}, "
        f"{layers}, {counted(forecast.conversions, 'conversion')}, "
        f"{forecast.float_residuals} residual branches in float"
    )
    products = format_products(forecast.products_by_type)
    lines = [line, *([products] if products else [])]
    if forecast.bytes_moved is None:
        return [*lines, "bytes moved are unknown: a tensor has dynamic dimensions besides the batch"]
    if not forecast.bytes_by_type:
        return [*lines, f"bytes moved: {forecast.bytes_moved:,} with floats as FP16"]
    lines.append(f"bytes moved: {forecast.bytes_moved:,} ({format_shares(forecast.bytes_by_type)})")
    return lines + ([f"multiply-adds: {format_shares(forecast.macs_by_type)}"] if forecast.macs_by_type else [])


def format_products(counts: Mapping[str, int]) -> str:
    """`convolutions and matrix products: 70 in INT8, 3 in FP16, 0 in FP32`; "" where their types are not known."""
    if not counts:
        return ""
    formats = [title for title in FORMAT_TITLES if title in counts] or [INT8.title]
    shown = {**{kind: counts.get(kind, 0) for kind in (*formats, "FP16", "FP32")}, **counts}
    return f"convolutions and matrix products: {', '.join(f'{count} in {kind}' for kind, count in shown.items())}"


def format_shares(sums: Mapping[str, int]) -> str:
    """`61 % FP32, 39 % INT8`."""
    total = sum(sums.values()) or 1
    return ", ".join(f"{100 * count / total:.0f} % {kind}" for kind, count in sums.items())


def comparison_lines(comparison: LayerComparison, info: EngineInfo) -> list[str]:
    """How the engine differs from the prediction, and which of its INT8 layers run on Tensor Cores.

    TensorRT for RTX runs nearly every product as two layers, the product and a generated kernel: these are counted.
    """
    lines = []
    for row in comparison.rows:
        if row.verdict != "same" and not (row.verdict == "split" and info.source == "built"):
            name = row.engine.name if row.engine else row.predicted.name if row.predicted else ""
            lines.append(f"{MEANING[row.verdict]}: {name}: {row.note}")
    lines.append(
        f"{info.path.name}: {comparison.right} of {comparison.engine_layers} layers of the engine as predicted; "
        f"{len(comparison.reformats)} reformats and empty layers, {len(comparison.helpers)} without a node of the model"
    )
    counts = comparison.counts()
    if len(counts) > 1:
        lines.append("verdicts: " + ", ".join(f"{count} {MEANING[verdict]}" for verdict, count in counts.items()))
    if len(comparison.helpers) > comparison.engine_layers:
        lines.append("most of its layers name no node of the model: is this the engine of this model?")
    if info.source == "fusions":
        lines.append("the log ends before the engine: fusions are compared, types and kernels are unknown")
        return lines
    cores = [(layer, layer.tensor_cores) for layer in info.layers if layer.reads_int8 and not layer.is_reformat]
    lines += [f"INT8, not on Tensor Cores: {layer.name} ({layer.tactic})" for layer, found in cores if found is False]
    count = Counter(found for _, found in cores)
    lines.append(
        f"INT8 kernels: {count[True]} on Tensor Cores, {count[False]} not, {count[None]} whose name does not show it"
    )
    return lines


def layers_json(layers: Sequence[PredictedLayer], ends: Sequence[Ends], forecast: Forecast) -> dict[str, Any]:
    """Predicted layers and their cost, as `engine show --json` prints them."""
    return {
        "predicted": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "nodes": list(layer.nodes),
                "compute": layer.compute,
                "output": layer.output,
                "types": list(types),
                "rule": layer.rule,
            }
            for layer, types in zip(layers, ends, strict=True)
        ],
        "forecast": {
            "layers": forecast.layers,
            "kernels": forecast.kernels,
            "layers_by_format": dict(forecast.layers_by_format),
            "conversions": forecast.conversions,
            "float_residuals": forecast.float_residuals,
            "bytes_moved": forecast.bytes_moved,
            "bytes_by_type": dict(forecast.bytes_by_type),
            "macs_by_type": dict(forecast.macs_by_type),
            "products_by_type": dict(forecast.products_by_type),
        },
    }


def comparison_json(comparison: LayerComparison) -> dict[str, Any]:
    """The comparison with an engine, as `engine show --json` prints it."""
    return {
        "right": comparison.right,
        "compared": comparison.engine_layers,
        "reformats": len(comparison.reformats),
        "verdicts": comparison.counts(),
        "rows": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: LayerPair) -> dict[str, Any]:
    return {
        "verdict": row.verdict,
        "engine": None if row.engine is None else row.engine.name,
        "predicted": None if row.predicted is None else row.predicted.name,
        "note": row.note,
    }


def end_types(file: GraphView, layers: Sequence[PredictedLayer], types: Mapping[str, int] | None) -> tuple[Ends, ...]:
    """What each layer reads, the number format where it takes codes, and gives."""
    if types is None:
        return tuple((_word(layer.input), _word(layer.output)) for layer in layers)
    found = zip(layers, layer_types(file, layers, types), strict=True)
    return tuple((_word(layer.input, _floats_first(of.inputs)), _word(layer.output, of.outputs)) for layer, of in found)


def _floats_first(codes: Sequence[int]) -> list[int]:
    return sorted(codes, key=lambda code: code not in FLOATS)


def _word(precision: str, codes: Iterable[int] = ()) -> str:
    return next((type_name(code) for code in codes), FLOAT) if precision == FLOAT else number_format(precision).title
