# SPDX-License-Identifier: Apache-2.0
"""The section on a training: curves of its log. Not how a log is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdqtool.reporting.page import Section
from qdqtool.reporting.svg import curve_svg, escaped

_LARGEST = 2**128  # beyond float32


def curves_section(events: Iterable[Mapping[str, Any]], name: str) -> Section:
    """The curves of a training log: the loss of each step, and what was measured between."""
    series: dict[str, list[tuple[float, float]]] = {"loss": [], "rate": [], "measure": []}
    for event in events:
        for key, points in series.items():
            step, value = _finite(event.get("step")), _finite(event.get(key))
            if step is not None and value is not None:
                points.append((step, value))
    titles = {"loss": "Loss of each step", "rate": "Learning rate", "measure": "Measured between the steps"}
    parts = []
    for key, points in series.items():
        if points:
            label = f"{titles[key]}: from {points[0][1]:.4g} to {points[-1][1]:.4g}"
            parts.append(f"<h3>{titles[key]}</h3>{curve_svg(_thinned(points), label)}")
    return Section("training", "Training", f"<p>{escaped(name)}</p>{''.join(parts) or '<p>The log has no steps.</p>'}")


def _finite(value: object) -> float | None:
    """A number of a log; None for anything else, and for what is beyond float32: no training has such a loss."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LARGEST else None


def _thinned(points: Sequence[tuple[float, float]], most: int = 600) -> list[tuple[float, float]]:
    """At most so many points, by step: the mean of each run of them."""
    ordered = sorted(points)
    size = -(-len(ordered) // most)
    runs = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [(run[0][0], sum(y for _, y in run) / len(run)) for run in runs]
