# SPDX-License-Identifier: Apache-2.0
"""Distances between tensors as rows of a table. The figures are made in `qdqtool/measures.py`."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.display import Cells, figure, table
from qdqtool.measures import Measure

_HEAD = ("SQNR dB", "cosine", "largest error")


def measure_rows(head: str, measures: Iterable[Measure]) -> list[str]:
    """One row per tensor below a head; a tensor with NaN or Inf says so."""
    rows = [(one.tensor, figure(one.sqnr), figure(one.cosine, 6), f"{one.largest_error:.4g}") for one in measures]
    broken = [one.broken for one in measures]
    lines = table((head, *_HEAD), rows)
    return lines[:1] + [
        line + (f"  NaN or Inf in {count} elements" if count else "")
        for line, count in zip(lines[1:], broken, strict=True)
    ]


def output_cells(outputs: Iterable[Measure]) -> Cells:
    """One row for each output: how far it lies from the reference."""
    return [
        ("output", "SQNR dB", "cosine"),
        *((one.tensor, figure(one.sqnr), figure(one.cosine, 6)) for one in outputs),
    ]
