# SPDX-License-Identifier: Apache-2.0
"""The section on two models of one network: sums side by side, scales and types that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.reporting.page import Cell, Column, Section, table_html
from qdqtool.reporting.svg import escaped, wrapped
from qdqtool.scales import Scale


@dataclass(frozen=True)
class DifferingScale:
    """A tensor whose pair has another scale in the other model; None where there is no pair."""

    tensor: str
    here: Scale | None
    there: Scale | None

    @property
    def ratio(self) -> float | None:
        """The scale here over that there; None where one has none."""
        if self.here is None or self.there is None:
            return None
        return float(self.here.bits.max()) / float(self.there.bits.max())


@dataclass(frozen=True)
class DifferingType:
    """An operator that runs in another type in the other model, and why one of them is in float."""

    node: str
    op: str
    here: str
    there: str
    reason: str


def differences_section(
    names: tuple[str, str],
    sums: Sequence[tuple[str, str, str]],
    scales: Sequence[DifferingScale],
    types: Sequence[DifferingType],
) -> Section:
    """What differs between the reported model and another one."""
    head = [Column(""), Column(names[0], sortable=False), Column(names[1], sortable=False)]
    rows = [[Cell(escaped(cell)) for cell in row] for row in sums]
    parts = [table_html("sums", f"{names[0]} beside {names[1]}", head, rows)]
    parts.append(f"<h3>Scales that differ ({len(scales)})</h3>")
    if scales:
        columns = [Column("tensor", wraps=True), *(Column(name, True) for name in names), Column("ratio", True)]
        parts.append(table_html("other-scales", "Scales that differ", columns, [_scale_cells(one) for one in scales]))
    parts.append(f"<h3>Operators in another type ({len(types)})</h3>")
    if types:
        columns = [
            Column("operator", wraps=True),
            Column("kind"),
            *(Column(name) for name in names),
            Column("why", wraps=True),
        ]
        cells = [[Cell(wrapped(word)) for word in (one.node, one.op, one.here, one.there, one.reason)] for one in types]
        parts.append(table_html("other-types", "Operators in another type", columns, cells))
    return Section("differences", f"Beside {names[1]}", "".join(parts))


def _scale_cells(row: DifferingScale) -> list[Cell]:
    values = [None if one is None else float(one.bits.max()) for one in (row.here, row.there)]
    cells = [Cell("no pair" if value is None else f"{value:.6g}", value) for value in values]
    ratio = row.ratio
    return [Cell(wrapped(row.tensor)), *cells, Cell("–" if ratio is None else f"{ratio:.4g}", ratio)]
