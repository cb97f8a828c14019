# SPDX-License-Identifier: Apache-2.0
"""How results are shown: one line for `repr`, a short text for `str`, an HTML table for notebooks; words and tables.

What a result says of itself stands with the result. Names come from models that may be hostile: every line is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.errors import printable

# The kind of model that a result holds: Path for a path, ModelProto for a ModelProto, Any where typing cannot tell.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ModelT = TypeVar("ModelT", default=Any)
else:
    from typing import TypeVar

    ModelT = TypeVar("ModelT")

ROWS = 20  # of a table that `str` and HTML show
_LINE = 300  # characters of a `repr`

Cells = Sequence[Sequence[str]]


class Displayed:
    """Gives a result its `repr`, `str` and HTML; a dataclass that has it is declared with `repr=False`."""

    __slots__ = ()

    def headline(self) -> str:
        """What one wants to know of the result, on one line."""
        raise NotImplementedError

    def summary(self) -> list[str]:
        """What the command line prints of it."""
        return [self.headline()]

    def next_lines(self) -> list[str]:
        """The next steps that follow from the result alone, without the user's command."""
        return []

    def rows(self) -> Cells:
        """The table that HTML shows, its first row the head; empty for the lines of `summary`."""
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {printable(self.headline(), _LINE)}>"

    def __str__(self) -> str:
        return "\n".join(printable(line, None) for line in (*self.summary(), *self.next_lines()))

    def _repr_html_(self) -> str:
        """The table for notebooks: names of tensors are escaped, rows beyond `ROWS` counted."""
        cells = self.rows()
        head = "".join(f"<th>{_escaped(cell)}</th>" for cell in cells[0]) if cells else ""
        body = cells[1:] if cells else [(line,) for line in self.summary()]
        shown = ["".join(f"<td>{_escaped(cell)}</td>" for cell in row) for row in body[:ROWS]]
        if len(body) > ROWS:
            shown.append(f"<td>and {len(body) - ROWS} more</td>")
        lines = [f"<tr>{row}</tr>" for row in ([head] if head else []) + shown]
        caption = f"<caption>{_escaped(f'{type(self).__name__}: {self.headline()}')}</caption>"
        return f"<table>{caption}{''.join(lines)}</table>"


def _escaped(text: str) -> str:
    import html  # its table of entities takes a tenth of the time of -h

    return html.escape(printable(text, _LINE))


def counted(number: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def figure(value: float, digits: int = 2) -> str:
    """A figure, or what it is where it is none."""
    if math.isinf(value):
        return "exact" if value > 0 else "-inf"
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Cells) -> list[str]:
    """Rows below a head: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, *rows)
    ]


def short_table(cells: Cells) -> list[str]:
    """`table` of the first rows, and how many there are more."""
    body = cells[1:]
    more = [f"and {len(body) - ROWS} more"] if len(body) > ROWS else []
    return table(cells[0], body[:ROWS]) + more


def model_name(model: object) -> str:
    """What a line calls the model of a result: its path, else its kind and the name of its graph."""
    if isinstance(model, Path):
        return str(model)
    name = getattr(getattr(model, "graph", model), "name", "")
    return f"{type(model).__name__} {name}".rstrip()


def written(model: object) -> list[str]:
    """`wrote m.onnx`; nothing for a model that is in memory."""
    return [f"wrote {model}"] if isinstance(model, Path) else []


def named(names: Iterable[str], shown: int = 6) -> str:
    """The first of some names, and how many there are more."""
    listed = list(names)
    return ", ".join(listed[:shown]) + (f" and {len(listed) - shown} more" if listed[shown:] else "")


def four_decimals(value: float) -> str:
    """A figure as tables print it; what is rounded to zero has no sign."""
    text = f"{value:.4f}"
    return text.removeprefix("-") if text == "-0.0000" else text


def finite_only(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Figures as JSON has them: null for what is not a finite number."""
    return {key: value if math.isfinite(value) else None for key, value in figures.items()}
