# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that asks nothing of a network. Its style and script stand in it, and its policy names them.

What is in the sections, `sections.py` says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qdqtool.reporting.svg import escaped

_ASSETS = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    key: str
    title: str
    content: str


def render_page(title: str, headline: str, sections: Sequence[Section], data: Mapping[str, Any]) -> str:
    """The whole file."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{one.key}">{escaped(one.title)}</a>' for one in sections)
    parts = "".join(
        f'<section id="{one.key}" aria-labelledby="h-{one.key}"><h2 id="h-{one.key}">{escaped(one.title)}</h2>'
        f"{one.content}</section>\n"
        for one in sections
    )
    # "<" is escaped: no name in the data can end the element
    facts = json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}: qdqtool report</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><p class="tool">qdqtool report</p><h1>{escaped(title)}</h1>'
        f'<p class="headline">{escaped(headline)}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main id="main">\n{parts}</main>\n'
        f'<script type="application/json" id="data">{facts}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    """A hash source of a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, whether its cells are numbers, whether they are texts that wrap."""

    head: str
    number: bool = False
    sortable: bool = True
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell: HTML that is escaped already, and the number by which it is sorted."""

    content: str
    value: float | None = None


def table_html(key: str, caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """A table with a sort button in each head; the first cell of a row is its head."""
    heads = "".join(_head(column) for column in columns)
    lines = []
    for number, row in enumerate(rows):
        first = ' class="w"' if columns[0].wraps else ""
        cells = [f'<th scope="row"{first}>{row[0].content}</th>']
        for column, cell in zip(columns[1:], row[1:], strict=True):
            kind = ' class="n"' if column.number else ' class="w"' if column.wraps else ""
            value = "" if cell.value is None or not math.isfinite(cell.value) else f' data-v="{cell.value:.6g}"'
            cells.append(f"<td{kind}{value}>{cell.content}")
        lines.append(f'<tr id="{key}-{number}">{"".join(cells)}')
    return (
        f'<div class="scroll" role="region" aria-label="{escaped(caption)}" tabindex="0"><table id="{key}">'
        f"<caption>{escaped(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>\n"
        + "\n".join(lines)
        + "</tbody></table></div>"
    )


def _head(column: Column) -> str:
    kind = ' class="n"' if column.number else ""
    if not column.sortable:
        return f'<th scope="col"{kind}>{escaped(column.head)}</th>'
    return f'<th scope="col"{kind} aria-sort="none"><button type="button">{escaped(column.head)}</button></th>'
