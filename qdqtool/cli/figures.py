# SPDX-License-Identifier: Apache-2.0
"""Distances between tensors as rows of a table. No verb of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.measures import Measure

_HEAD = ("SQNR dB", "cosine", "largest error")


def measure_rows(head: str, measures: Iterable[Measure]) -> list[str]:
    """One row per tensor below a head; a tensor with NaN or Inf says so."""
    rows = [(one.tensor, shown(one.sqnr), shown(one.cosine, 6), f"{one.largest_error:.4g}") for one in measures]
    broken = [one.broken for one in measures]
    lines = table((head, *_HEAD), rows)
    return lines[:1] + [
        line + (f"  NaN or Inf in {count} elements" if count else "")
        for line, count in zip(lines[1:], broken, strict=True)
    ]


def shown(value: float, digits: int = 2) -> str:
    """A figure, or what it is where it is none."""
    if math.isinf(value):
        return "exact" if value > 0 else "-inf"
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows below a head: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, *rows)
    ]
