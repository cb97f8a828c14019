# SPDX-License-Identifier: Apache-2.0
"""Predicted layers, and their comparison with an engine, as lines for people and as values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from qdqtool.engine.compare import LayerComparison, LayerPair
from qdqtool.engine.cost import Forecast
from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.engine.predict import PredictedLayer

_MARK: dict[bool | None, str] = {True: "TC", False: "--", None: "  "}
_MEANING = {
    "type": "INT8 or float differs",
    "nodes": "other nodes",
    "engine": "only in the engine",
    "predicted": "only predicted",
}


def layer_lines(
    layers: Sequence[PredictedLayer], forecast: Forecast, comparison: LayerComparison | None = None
) -> list[str]:
    """One line per predicted layer, then what they cost together. A prediction: no engine was built for it.

    Beside an engine each layer is marked by the kernel that it got there: TC for INT8 on Tensor Cores, -- for INT8 on
    the plain cores.
    """
    lines = [f"{layer.input:>5} -> {layer.output:<5}  {layer.kind:<11}  {layer.name}" for layer in layers]
    if comparison is not None:
        cores = {id(row.predicted): _cores(row.engine) for row in comparison.rows}
        lines = [f"{_MARK[cores.get(id(layer))]}  {line}" for layer, line in zip(layers, lines, strict=True)]
        lines.append("TC: its INT8 kernel in the engine runs on Tensor Cores; --: it does not (by the kernel's name)")
    return [*lines, *forecast_lines(forecast)]


def forecast_lines(forecast: Forecast) -> list[str]:
    """What the predicted layers cost, in one line or two."""
    line = (
        f"predicted, not measured: {forecast.layers} layers, {forecast.int8_layers} of them compute in INT8, "
        f"{forecast.conversions} only convert, {forecast.float_residuals} residual branches in float"
    )
    if forecast.bytes_moved is None:
        return [line, "bytes moved are unknown: a tensor has no fixed shape but for its batch"]
    return [line, f"bytes moved: {forecast.bytes_moved:,} with floats as FP16"]


def comparison_lines(comparison: LayerComparison, info: EngineInfo) -> list[str]:
    """How the engine differs from the prediction, and which of its INT8 layers run on Tensor Cores."""
    lines = []
    for row in comparison.rows:
        if row.status != "same":
            name = row.engine.name if row.engine else row.predicted.name if row.predicted else ""
            lines.append(f"{_MEANING[row.status]}: {name}: {row.note}")
    lines.append(
        f"{info.path.name}: {comparison.right} of {comparison.engine_layers} layers of the engine as predicted; "
        f"{len(comparison.reformats)} reformats and empty layers, {len(comparison.helpers)} without a node of the model"
    )
    if len(comparison.helpers) > comparison.engine_layers:
        lines.append("most of its layers name no node of the model: is it the engine of this model?")
    if info.source == "fusions":
        lines.append("the log ends before the engine: fusions are compared, types and kernels are unknown")
        return lines
    cores = [(layer, layer.tensor_cores) for layer in info.layers if layer.reads_int8 and not layer.is_reformat]
    lines += [f"INT8, not on Tensor Cores: {layer.name} ({layer.tactic})" for layer, found in cores if found is False]
    count = Counter(found for _, found in cores)
    lines.append(
        f"INT8 kernels: {count[True]} on Tensor Cores, {count[False]} not, {count[None]} whose name does not tell"
    )
    return lines


def layers_json(layers: Sequence[PredictedLayer], forecast: Forecast) -> dict[str, Any]:
    """Predicted layers and their cost, as `lint --json` prints them."""
    return {
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "nodes": list(layer.nodes),
                "compute": layer.compute,
                "output": layer.output,
                "rule": layer.rule,
            }
            for layer in layers
        ],
        "forecast": {
            "layers": forecast.layers,
            "int8_layers": forecast.int8_layers,
            "conversions": forecast.conversions,
            "float_residuals": forecast.float_residuals,
            "bytes_moved": forecast.bytes_moved,
        },
    }


def comparison_json(comparison: LayerComparison, info: EngineInfo) -> dict[str, Any]:
    """The comparison with an engine, as `lint --json` prints it."""
    return {
        "file": info.path.name,
        "source": info.source,
        "trt": info.version,
        "right": comparison.right,
        "compared": comparison.engine_layers,
        "reformats": len(comparison.reformats),
        "rows": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: LayerPair) -> dict[str, Any]:
    return {
        "status": row.status,
        "engine": None if row.engine is None else row.engine.name,
        "predicted": None if row.predicted is None else row.predicted.name,
        "output": None if row.engine is None else row.engine.output,
        "tensor_cores": _cores(row.engine),
        "note": row.note,
    }


def _cores(layer: EngineLayer | None) -> bool | None:
    return None if layer is None else layer.tensor_cores
