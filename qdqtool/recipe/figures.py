# SPDX-License-Identifier: Apache-2.0
"""What the table takes from the JSON that verbs print: figures of a task, and times, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqtool.display import four_decimals


def figures_of(verb: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a step, for its record."""
    if verb == "evaluate":
        wanted = ("metric", "samples", "figures", "losses", "baseline_figures", "executor", "reference_warning")
        return {key: document[key] for key in wanted}
    if verb == "bench":
        return {"runs": document["runs"], "machine": document["machine"]}
    return {}


def judged_text(figures: Mapping[str, Any]) -> str:
    """The first figure of an evaluation: `AP 0.5130 (loss 0.0042, 0.0010 to 0.0074)`, with the 95 % interval."""
    name, figure = next(iter(figures["figures"].items()), ("", {"value": None}))
    if figure["value"] is None:
        return f"{name} -"
    loss = figures["losses"].get(name, {})
    text = f"{name} {figure['value']:.4f}"
    if loss.get("value") is None:
        return text
    ends = [loss.get(end) for end in ("low", "high")]
    span = "" if None in ends else f", {' to '.join(map(four_decimals, ends))}"
    return f"{text} (loss {four_decimals(loss['value'])}{span})"


def times_text(figures: Mapping[str, Any], number: int) -> str:
    """The latency of a model in a bench step, with where it was measured: `0.42 ms (measured, onnxruntime cpu)`."""
    runs = [one for one in figures["runs"] if one["model"] == number]
    if not runs:
        return "-"
    best = runs[0]
    return f"{best['latency_ms']['mean']:.3f} ms at batch {best['batch']} (measured, {best['runner']})"


def latency_text(measured: float | None, forecast: float | None) -> str:
    """The cell of a table: milliseconds and whether they were measured; both arguments as facts have them (ms, us)."""
    if measured is not None:
        return f"{measured:.3f} ms measured"
    return "-" if forecast is None else f"{forecast / 1000:.3f} ms forecast"


def measured_latency(figures: Mapping[str, Any], number: int) -> float | None:
    """The mean milliseconds of a model in a bench step; None where it has none."""
    return next((float(one["latency_ms"]["mean"]) for one in figures["runs"] if one["model"] == number), None)
