# SPDX-License-Identifier: Apache-2.0
"""The forecast and the opportunities of a report as tables and bars. What they hold is worked out elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.display import counted
from qdqtool.engine.layer_work import LayerWork
from qdqtool.forecasting.formats import FormatTime
from qdqtool.reporting.page import Cell, Column, Section, table_html
from qdqtool.reporting.svg import escaped, share_svg, wrapped

_MOST_LAYERS = 120  # a sentence counts the rest
_COMPUTES = {"int8": "INT8", "fp8": "FP8", "fp4": "FP4", "half": "FP16", "single": "FP32"}


@dataclass(frozen=True)
class Opportunity:
    """Something to do, and what it brings.

    Attributes:
        what: what is there today.
        gain: what it brings, with its figure.
        how: a sentence, or a command.
        command: whether `how` is one.
    """

    what: str
    gain: str
    how: str
    command: bool = False


def opportunities_section(rows: Sequence[Opportunity]) -> Section:
    """What there is to win, and how."""
    if not rows:
        return Section("opportunities", "Opportunities", "<p>None found.</p>")
    columns = [Column(head, wraps=True, sortable=False) for head in ("what", "gain", "how")]
    cells = [
        [
            Cell(wrapped(row.what)),
            Cell(escaped(row.gain)),
            Cell(f"<code>{wrapped(row.how, whole=True)}</code>" if row.command else wrapped(row.how)),
        ]
        for row in rows
    ]
    return Section("opportunities", "Opportunities", table_html("gains", "Opportunities", columns, cells))


def forecast_section(
    boards: Sequence[tuple[str, FormatTime, FormatTime]],
    layers: Sequence[tuple[LayerWork, float]],
    device: str,
    note: str,
    title: str = "INT8",
) -> Section:
    """FP16 beside a format on every board, then each kernel with its bytes and its time on one of them.

    Args:
        boards: name, the engine in FP16, the quantized engine.
        layers: kernels and their microseconds on `device`.
        device: the board whose times the kernels have.
        note: what the format stands for.
        title: of the format.
    """
    columns = [
        Column("board"),
        Column("FP16 ms", True),
        Column(f"{title} ms", True),
        Column("speed over FP16", True),
        Column("interval"),
        Column("verdict"),
    ]
    cells = [
        [
            Cell(escaped(name)),
            Cell(f"{half.milliseconds:.3f}", half.milliseconds),
            Cell(f"{int8.milliseconds:.3f}", int8.milliseconds),
            Cell(f"{int8.ratio:.2f}x", int8.ratio),
            Cell(f"{int8.ratio_low:.2f} to {int8.ratio_high:.2f}"),
            Cell(escaped(int8.verdict)),
        ]
        for name, half, int8 in boards
    ]
    parts = [f'<p class="note">{escaped(note)}</p>', table_html("boards", "Forecast by board", columns, cells)]
    return Section("forecast", "Forecast", "".join(parts) + _layers(layers, device))


def _layers(layers: Sequence[tuple[LayerWork, float]], device: str) -> str:
    most_bytes = max((layer.moved for layer, _ in layers), default=0) or 1
    most_time = max((time for _, time in layers), default=0.0) or 1.0
    ordered = sorted(layers, key=lambda one: -one[1])
    shown, left = ordered[:_MOST_LAYERS], ordered[_MOST_LAYERS:]
    columns = [
        Column("kernel", wraps=True),
        Column("kind"),
        Column("computes in"),
        Column("bytes", True),
        Column("", sortable=False),
        Column("microseconds", True),
        Column("", sortable=False),
    ]
    cells = [
        [
            Cell(wrapped(layer.name)),
            Cell(escaped(layer.kind)),
            Cell(_COMPUTES[layer.unit] if layer.products else "–"),
            Cell(f"{layer.moved:,}", layer.moved),
            Cell(share_svg(layer.moved / most_bytes)),
            Cell(f"{time:.1f}", time),
            Cell(share_svg(time / most_time)),
        ]
        for layer, time in shown
    ]
    note = f"Kernels of this model on {device}, the longest first."
    if left:
        share = sum(time for _, time in left) / (sum(time for _, time in layers) or 1.0)
        note += f" Not listed: {counted(len(left), 'kernel')} with {share:.0%} of the time."
    table = table_html("kernels", "Bytes and forecast time by kernel", columns, cells)
    return f'<h3>Bytes and time by kernel</h3><p class="note">{escaped(note)}</p>{table}'
