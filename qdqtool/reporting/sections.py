# SPDX-License-Identifier: Apache-2.0
"""The sections of a report as HTML: the graph, tensors, weights, findings, and what other verbs have found."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from qdqtool.cache.check import CacheCheck
from qdqtool.cache.text import Cache, scale_hex
from qdqtool.display import counted, figure
from qdqtool.graph.view import GraphView, Node
from qdqtool.linting.checks import check_named
from qdqtool.linting.finding import Finding, by_code, format_counts
from qdqtool.reporting.boxes import Drawn, words_of
from qdqtool.reporting.page import Cell, Column, Section, table_html
from qdqtool.reporting.svg import escaped, graph_svg, histogram_svg, ranges_svg, share_svg, wrapped
from qdqtool.reporting.tensor_rows import TensorRow, WeightRow
from qdqtool.scales import Scale

_MOST_FINDINGS, _MOST_BOXES = 40, 12  # of one code, and of one color
_MOST_VALUES = 16  # of an attribute
_MOST_ENTRIES = 20_000  # of a cache: some 3 MB of the page
_LOOKED_FOR = ("kept", "lost")  # colors whose boxes are listed before one is chosen
_PAIRED = 2  # the column of tensors that tells whether there is a pair
_LEGEND = (
    ("int8", "INT8"),
    ("fp16", "FP16 or BF16"),
    ("fp32", "FP32, as in the file"),
    ("kept", "in float on purpose"),
    ("lost", "in float, though the rules quantize it"),
    ("converts", "only converts the type"),
)


_SQNR_LEGEND = "".join(  # the steps are those of report.js
    f'<li><svg aria-hidden="true"><g class="b s{step}"><rect/></g></svg>{text}'
    for step, text in enumerate(("SQNR below 10 dB", "10 to 20 dB", "20 to 30 dB", "30 to 40 dB", "from 40 dB on"))
)


@dataclass(frozen=True)
class Card:
    """One fact of the verdict.

    Attributes:
        label: what it is.
        value: the figure or word.
        more: a sentence below it.
        mood: good, bad, warn or "".
        picture: SVG between them.
    """

    label: str
    value: str
    more: str = ""
    mood: str = ""
    picture: str = ""


@dataclass(frozen=True)
class DrawnImage:
    """A picture of a worst image: JPEG or PNG, and what it shows."""

    data: bytes
    kind: str
    caption: str


def verdict_section(cards: Sequence[Card]) -> Section:
    """What one wants to know first."""
    parts = "".join(
        f'<div class="card {card.mood}"><dt>{escaped(card.label)}</dt>'
        f'<dd><span class="big">{escaped(card.value)}</span>'
        f'{card.picture}<span class="more">{escaped(card.more)}</span></dd></div>'
        for card in cards
    )
    return Section("verdict", "Verdict", f'<dl class="cards">{parts}</dl>')


def types_svg(counts: Mapping[str, int]) -> str:
    """A bar that is divided by type."""
    total, at, parts = sum(counts.values()) or 1, 0.0, []
    for kind, count in counts.items():
        look = {"INT8": "int8", "FP16": "fp16", "BF16": "fp16"}.get(kind, "fp32")
        wide = 200 * count / total
        parts.append(f'<rect class="{look}" x="{at:.1f}" width="{wide:.1f}" height="10"/>')
        at += wide
    return (
        f'<svg class="types" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def graph_section(view: GraphView, drawn: Drawn, note: str) -> Section:
    """The picture, its buttons, the panel for what is chosen, the legend."""
    buttons = "".join(
        f'<button type="button" id="{key}">{text}</button>'
        for key, text in (
            ("zoom-in", "Zoom in"),
            ("zoom-out", "Zoom out"),
            ("zoom-fit", "Whole graph"),
            ("zoom-real", "Readable size"),
            ("previous", "Previous box"),
            ("next", "Next box"),
        )
    )
    buttons += (
        '<label>Find<input type="search" id="search" placeholder="operator, tensor, type"></label>'
        '<span role="status" id="found"></span>'
        '<label id="by-loss" hidden><input type="checkbox" id="loss">Color by SQNR</label>'
    )
    present = {box.look for box in drawn.boxes}
    legend = "".join(
        f'<li><svg aria-hidden="true"><g class="b {look}"><rect/></g></svg>{text}'
        for look, text in _LEGEND
        if look in present
    )
    keys = (
        "Drag moves the graph; Ctrl and the wheel zoom. With the keyboard: arrows move, + and − zoom, 0 shows all, "
        "n and p go to the next and the previous box. Enter in Find goes to the next box found."
    )
    return Section(
        "graph-section",
        "Graph",
        f'<p class="note">{escaped(note)}</p><div class="tools">{buttons}</div><div class="stage">'
        f'<div id="view" tabindex="0" role="group" aria-label="Graph. {escaped(keys)}">{graph_svg(view, drawn)}</div>'
        '<div id="detail" role="region" aria-live="polite" aria-label="Selection" tabindex="0">'
        f"<p>Choose a box in the graph, or a tensor in the table.</p>{_float_boxes(view, drawn)}</div></div>"
        f'<ul class="legend">{legend}</ul><ul class="legend" id="scale" hidden>{_SQNR_LEGEND}</ul>'
        f'<p class="note">{escaped(keys)}</p>',
    )


def _float_boxes(view: GraphView, drawn: Drawn) -> str:
    """The boxes that one looks for first, by colors: how many, and the first of them as buttons, with the reason."""
    parts = []
    for look, text in _LEGEND:
        numbers = [number for number, box in enumerate(drawn.boxes) if box.look == look]
        if look not in _LOOKED_FOR or not numbers:
            continue
        items = [f"<li>{_box_button(view, drawn, number)}" for number in numbers[:_MOST_BOXES]]
        items += [f"<li>and {len(numbers) - _MOST_BOXES} more"] if numbers[_MOST_BOXES:] else []
        parts.append(f"<h3>{escaped(text[0].upper() + text[1:])} ({len(numbers)})</h3><ul>{''.join(items)}</ul>")
    return "".join(parts)


def _box_button(view: GraphView, drawn: Drawn, number: int) -> str:
    box = drawn.boxes[number]
    words = [*(words_of(view, node) for node in drawn.members[number][:1]), *([box.reason] if box.reason else [])]
    return f'<button type="button" data-box="{number}">{escaped(box.title)}</button> {escaped("; ".join(words))}'


def graph_data(view: GraphView, drawn: Drawn, rows: Sequence[TensorRow]) -> dict[str, Any]:
    """What the script knows: boxes, their operators, lines, and which row of the table is which tensor."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    nodes: list[list[Any]] = []
    settings: dict[str, int] = {}
    for place, (box, inside) in enumerate(zip(drawn.boxes, drawn.members, strict=True)):
        if box.look == "ends" and box.kind == "input":
            nodes.append([box.title, "input", place, [], [number(box.title)], settings.setdefault("", len(settings))])
        for node in inside:
            reads = [number(view.root(name)) for name in node.inputs if name and not view.is_constant(name)]
            written = [number(name) for name in node.outputs if name]
            text = "\n".join(_attributes(node))
            nodes.append([_cut(node.name), node.op, place, reads, written, settings.setdefault(text, len(settings))])
    listed = [number(row.tensor) for row in rows]
    return {
        "boxes": [[_cut(box.title), box.kind, box.type, box.reason] for box in drawn.boxes],
        "nodes": nodes,
        "lines": [[source, target] for source, target, *_ in drawn.lines],
        "rows": listed,
        "sqnr": [None if row.sqnr is None or math.isnan(row.sqnr) else round(min(row.sqnr, 999.0), 2) for row in rows],
        "attributes": list(settings),
        "tensors": [_cut(name) for name in numbers],
    }


def _attributes(node: Node) -> list[str]:
    """`name value` of each attribute, as far as it is short; graphs and tensors by their kind."""
    found = []
    for one in node.proto.attribute:
        value = onnx.helper.get_attribute_value(one)
        if isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
        elif isinstance(value, (int, float)) or (isinstance(value, Sequence) and len(value) <= _MOST_VALUES):
            text = ", ".join(map(_value_text, value)) if isinstance(value, Sequence) else _value_text(value)
        else:
            text = onnx.AttributeProto.AttributeType.Name(one.type).lower()
        found.append(_cut(f"{one.name} {text}"))
    return found


def _value_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:g}" if isinstance(value, (int, float)) else type(value).__name__


def _cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:200]}…"


def tensors_section(rows: Sequence[TensorRow], note: str) -> Section:
    """The table of activations."""
    columns = [
        Column("tensor", wraps=True),
        Column("made by"),
        Column("Q/DQ"),
        Column("scale", True),
        Column("amax", True),
        Column("method"),
    ]
    counted_values, measured = any(row.histogram for row in rows), any(row.sqnr is not None for row in rows)
    columns += [Column("clipped", True)] if counted_values else []
    columns += [Column("SQNR dB", True)] if measured else []
    columns += [Column("values and amax", sortable=False)] if counted_values else []
    columns += [Column("why", wraps=True)]
    cells = [_tensor_cells(row, counted_values, measured) for row in rows]
    kinds = (("", "all"), ("pair", "with a pair"), ("–", "without a pair"))
    chosen = "pair" if any(row.paired for row in rows) else ""
    choices = "".join(
        f'<option value="{value}"{" selected" if value == chosen else ""}>{text}</option>' for value, text in kinds
    )
    tools = (
        '<div class="tools"><label>Filter tensors<input type="search" data-filters="tensors"></label>'
        f'<label>Show<select data-kinds="tensors" data-column="{_PAIRED}">{choices}</select></label>'
        '<span role="status" data-counts="tensors"></span></div>'
    )
    legend = (
        " Bars count |x| on a logarithmic scale; the red line is amax: values beyond it are clipped."
        if counted_values
        else ""
    )
    table = table_html("tensors", "Tensors and their scales", columns, cells)
    return Section("tensors-section", "Tensors", f'<p class="note">{escaped(note + legend)}</p>{tools}{table}')


def _tensor_cells(row: TensorRow, counted_values: bool, measured: bool) -> list[Cell]:
    amax, scale = row.amax, row.scale
    largest = None if scale is None else float(scale.bits.max())
    cells = [
        Cell(f'<button type="button">{wrapped(row.tensor)}</button>'),
        Cell(escaped(row.made_by)),
        Cell("pair" if row.paired else "–"),
        Cell("–" if largest is None else f"{largest:.6g}", largest),
        Cell("–" if amax is None else f"{amax:.5g}", amax),
        Cell("–" if scale is None else escaped(_source(scale))),
    ]
    if counted_values:
        clipped = row.clipped
        cells.append(Cell("–" if clipped is None else _percent(clipped), clipped))
    if measured:
        known = row.sqnr is not None and math.isfinite(row.sqnr)
        cells.append(Cell("–" if row.sqnr is None else figure(row.sqnr), row.sqnr if known else None))
    if counted_values:
        cells.append(Cell(_histogram(row)))
    return [*cells, Cell(wrapped(row.reason))]


def _percent(share: float) -> str:
    return "< 0.0001 %" if 0 < share < 1e-6 else f"{100 * share:.3g} %"


def _source(scale: Scale) -> str:
    """How the scale was found; that it stands in a pair, another column says."""
    return scale.method or "as in the file" if scale.origin == "qdq" else scale.source()


def _histogram(row: TensorRow) -> str:
    one = row.histogram
    if one is None or not one.finite or one.all_zero:
        return "–"
    counts, width = one.folded()
    return histogram_svg(counts, width, float(one.amax), row.amax or 0.0)


def weights_section(rows: Sequence[WeightRow]) -> Section:
    """The ranges of output channels: where they lie far apart, one scale for all would lose the small ones."""
    columns = [
        Column("weight", wraps=True),
        Column("operator", wraps=True),
        Column("type"),
        Column("channels", True),
        Column("largest", True),
        Column("smallest", True),
        Column("ratio", True),
        Column("range of each channel", sortable=False),
    ]
    cells = []
    for row in rows:
        alive = row.largest[row.largest > 0]
        low = float(alive.min()) if alive.size else 0.0
        high = float(row.largest.max())
        cells.append(
            [
                Cell(wrapped(row.weight)),
                Cell(wrapped(f"{row.op} {row.reader}")),
                Cell(escaped(row.format) or "float"),
                Cell(str(len(row.largest)), len(row.largest)),
                Cell(f"{high:.4g}", high),
                Cell(f"{low:.4g}", low),
                Cell(f"{row.ratio:.3g}", row.ratio),
                Cell(ranges_svg(row.largest)),
            ]
        )
    note = (
        "The largest magnitude of each output channel; bars span four decades. With one scale per channel a large "
        "ratio does not matter; with one scale for the whole weight, small channels lose precision."
    )
    table = table_html("weights", "Ranges of weights", columns, cells)
    return Section("weights-section", "Weights", f'<p class="note">{escaped(note)}</p>{table}')


def findings_section(findings: Sequence[Finding], repair: str) -> Section:
    """What lint found, the gravest first, and what repairs it."""
    if not findings:
        return Section("findings", "Findings of lint", "<p>Nothing found.</p>")
    columns = [Column("code"), Column("severity"), *(Column(head, wraps=True) for head in ("where", "what", "to do"))]
    cells, left = [], []
    for code, found in by_code(findings).items():
        for one in found[:_MOST_FINDINGS]:
            kind = f'<span class="tag {one.severity}">{one.severity}</span>'
            todo = f"<code>{escaped(f'{repair} --fix {code}')}</code>" if one.fixable and repair else escaped(one.fix)
            cells.append([Cell(code), Cell(kind), Cell(wrapped(one.where)), Cell(wrapped(one.message)), Cell(todo)])
        if found[_MOST_FINDINGS:]:
            left.append(f"{counted(len(found) - _MOST_FINDINGS, 'more finding')} of {code}")
    note = format_counts(findings) + (f"; not shown: {', '.join(left)}" if left else "")
    codes = "".join(f"<li><code>{code}</code> {escaped(check_named(code).summary)}" for code in by_code(findings))
    table = table_html("lint", "Findings", columns, cells)
    explain = "qdqtool lint --explain CODE says more."
    content = f'<p>{escaped(note)}.</p><ul class="codes">{codes}</ul><p class="note">{escaped(explain)}</p>{table}'
    return Section("findings", "Findings of lint", content)


def sensitivity_section(document: Mapping[str, Any]) -> Section:
    """What `sensitivity --json` wrote: the loss of each operator.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it is no such document.
    """
    operators = document["operators"]
    most = max((float(one["local"]) for one in operators), default=0.0) or 1.0
    columns = [
        Column("operator", wraps=True),
        Column("type"),
        Column("loss alone", True),
        Column("", sortable=False),
        Column("loss at the outputs if this one stays in float", True),
        Column("share of multiply-adds", True),
    ]
    cells = []
    for one in operators:
        without = one["without"]
        cells.append(
            [
                Cell(wrapped(str(one["node"]))),
                Cell(escaped(str(one["op"]))),
                Cell(f"{float(one['local']):.3g}", float(one["local"])),
                Cell(share_svg(float(one["local"]) / most)),
                Cell("–" if without is None else f"{float(without):.4g}", None if without is None else float(without)),
                Cell(f"{float(one['share']):.2%}", float(one["share"])),
            ]
        )
    total = (
        f"Loss at the outputs with all of them in INT8: {float(document['loss']):.4g} (0: none, 1: all signal lost)."
    )
    table = table_html("sensitivity", "Sensitivity of operators", columns, cells)
    return Section("sensitivity-section", "Sensitivity", f"<p>{total}</p>{table}")


def pictures_section(images: Sequence[DrawnImage], note: str) -> Section:
    """The worst images, drawn."""
    figures = "".join(
        f'<figure><img alt="{escaped(one.caption)}" src="data:image/{one.kind};base64,'
        f'{base64.b64encode(one.data).decode()}"><figcaption>{escaped(one.caption)}</figcaption></figure>'
        for one in images
    )
    return Section(
        "pictures", "Worst images", f'<p class="note">{escaped(note)}</p><div class="figures">{figures}</div>'
    )


def cache_section(cache: Cache, found: CacheCheck, name: str) -> Section:
    """A calibration cache beside the model: what is missing, what is named in vain, every entry."""
    total = len(found.matched) + len(found.missing)
    share = (
        f"{len(found.matched)} of {counted(total, 'float tensor')} of the model have a scale ({found.coverage:.1f} %)"
    )
    parts = [f"<p>{escaped(name)}: {escaped(cache.header)}. {share}.</p>"]
    if found.export:
        sure = "is" if found.export.is_proof else "may be"
        parts.append(f"<p>It {sure} of another export: {escaped('; '.join(found.export.sentences()))}.</p>")
    near = {name: f"{name} (is it {other}?)" for name, other in found.near.items()}
    for title, names in (
        ("In the cache, not in the model", [near.get(one, one) for one in found.unknown]),
        ("In the model, missing in the cache (TensorRT runs them in float)", found.missing),
        ("Without a usable scale (zero or infinite)", found.unusable),
        ("With a colon (onnxruntime and MIGraphX cut the name off there)", found.colons),
    ):
        if names:
            shown = "".join(f"<li><code>{escaped(one)}</code>" for one in names[:_MOST_FINDINGS])
            more = f"<li>and {len(names) - _MOST_FINDINGS} more" if names[_MOST_FINDINGS:] else ""
            parts.append(f"<h3>{title} ({len(names)})</h3><ul>{shown}{more}</ul>")
    matched = set(found.matched)
    cells = [
        [
            Cell(escaped(one)),
            Cell(f"{value:.6g}", float(value)),
            Cell(scale_hex(value)),
            Cell("yes" if one in matched else "no"),
        ]
        for one, value in itertools.islice(cache.entries.items(), _MOST_ENTRIES)
    ]
    columns = [Column("tensor", wraps=True), Column("scale", True), Column("bits"), Column("float tensor of the model")]
    if (left := len(cache.entries) - len(cells)) > 0:
        parts.append(f"<p>The table has the first {len(cells):,} entries; qdqtool cache show lists {left:,} more.</p>")
    return Section(
        "cache", "Calibration cache", "".join(parts) + table_html("entries", "Entries of the cache", columns, cells)
    )


def made_section(facts: Mapping[str, str]) -> Section:
    """How the report was made."""
    rows = "".join(f"<dt>{escaped(key)}<dd>{escaped(value)}" for key, value in facts.items())
    return Section("made", "How this was made", f'<dl class="facts">{rows}</dl>')
