# SPDX-License-Identifier: Apache-2.0
"""Small drawings as inline SVG: the graph, histograms, bars, curves. Colors are the style sheet's; no text is trusted.

Presentation is by class and attribute alone: the page's policy allows no style attribute.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.errors import printable
from qdqtool.graph.view import GraphView, Node
from qdqtool.reporting.boxes import Drawn, words_of
from qdqtool.reporting.lanes import place

_LINE, _PAD = 15, 8  # pixels of a line of text in a box, and above and below all of them
_LETTERS = 17  # in a line
_LINES = 8  # in a box
BINS = 48  # of a drawn histogram
HIST_WIDTH, HIST_HEIGHT = 144, 30
_LONGEST = 300


def escaped(text: str) -> str:
    """Text of a model or file as HTML shows it."""
    return html.escape(printable(text, _LONGEST))


def wrapped(text: str, *, whole: bool = False) -> str:
    """The same, with places to break long names at; a command is shown whole."""
    shown = html.escape(printable(text, None)) if whole else escaped(text)
    return shown.replace("/", "/<wbr>").replace("_", "_<wbr>")


def graph_svg(view: GraphView, drawn: Drawn) -> str:
    """The graph: a path for each line, a group for each box, both in the order of `drawn`."""
    texts = [
        _box_lines(view, box.title, nodes, box.kind) for box, nodes in zip(drawn.boxes, drawn.members, strict=True)
    ]
    heights = [_PAD * 2 + _LINE * len(lines) - 4 for lines in texts]
    placed = place(heights, [(source, target) for source, target, *_ in drawn.lines])
    width, height = placed.size
    paths = [
        f'<path{" class=q" if int8 else ""} d="{_path(points)}"/>'
        for (_, _, _, int8), points in zip(drawn.lines, placed.lines, strict=True)
    ]
    groups = [
        f'<g class="b {box.look}" transform="translate({x} {y})"><rect height="{tall}"/>{_texts(lines)}</g>'
        for box, lines, (x, y), tall in zip(drawn.boxes, texts, placed.boxes, heights, strict=True)
    ]
    label = f"The graph of the model, {len(groups)} boxes; the table of tensors has the same in words"
    return (
        f'<svg id="graph" {_box(width, height)} preserveAspectRatio="xMidYMin meet" role="img" aria-label="{label}">'
        f'<g id="all"><g class="lines">{"".join(paths)}</g><g class="boxes">{"".join(groups)}</g></g></svg>'
    )


def _box_lines(view: GraphView, title: str, nodes: Sequence[Node], kind: str) -> list[str]:
    """What stands in a box: its operators, short ones together; the name of an input or output."""
    if not nodes:
        short = title if len(title) <= _LETTERS else f"{title[: _LETTERS - 1]}…"
        return [short] if kind in ("input", "output") else [kind]
    lines: list[str] = []
    for word in (words_of(view, node) for node in nodes):
        if lines and len(lines[-1]) + len(word) + 3 <= _LETTERS:
            lines[-1] += f" · {word}"
        else:
            lines.append(word if len(word) <= _LETTERS + 3 else f"{word[:_LETTERS]}…")
    more = len(lines) - _LINES
    return lines if more <= 0 else [*lines[: _LINES - 1], f"and {more + 1} more"]


def _texts(lines: Sequence[str]) -> str:
    return "".join(f'<text y="{_PAD + 8 + _LINE * number}">{escaped(line)}</text>' for number, line in enumerate(lines))


def _path(points: Sequence[tuple[int, int]]) -> str:
    """Vertical and horizontal strokes from the first point on."""
    (x, y), words = points[0], [f"M{points[0][0]} {points[0][1]}"]
    for next_x, next_y in points[1:]:
        words.append(f"h{next_x - x}" if next_y == y else f"v{next_y - y}")
        x, y = next_x, next_y
    return "".join(words)


def histogram_svg(counts: npt.NDArray[np.int64], width: float, largest: float, amax: float) -> str:
    """The counts of |x| as bars, logarithmic, and the clipping value as a line.

    Args:
        counts: int64[bins] of |x|, zeros not in it.
        width: of one bin.
        largest: the largest |x|.
        amax: the clipping value; 0 for none.
    """
    end = max(largest, amax, width) * 1.02
    used = np.flatnonzero(counts)
    bars = np.zeros(BINS)
    np.add.at(bars, np.minimum((used + 0.5) * width / end * BINS, BINS - 1).astype(int), counts[used])
    tall = np.log1p(bars)
    tall = np.round(tall / max(tall.max(), 1e-9) * (HIST_HEIGHT - 2)).astype(int)
    step, at, words = HIST_WIDTH // BINS, 0, [f"M0 {HIST_HEIGHT}"]
    for value in tall.tolist():
        words.append(f"v{at - value}h{step}" if value != at else f"h{step}")
        at = value
    cut = "" if not amax else f'<path class="cut" d="M{min(amax / end, 1) * HIST_WIDTH:.1f} 0v{HIST_HEIGHT}"/>'
    return (
        f'<svg class="hist" {_box(HIST_WIDTH, HIST_HEIGHT)} aria-hidden="true">'
        f'<path d="{_merged(words)}v{at}z"/>{cut}</svg>'
    )


def _merged(words: Sequence[str]) -> str:
    """Strokes with runs of equal horizontal steps put together."""
    out: list[str] = []
    run = 0
    for word in words:
        if word.startswith("h"):
            run += int(word[1:])
            continue
        if run:
            out.append(f"h{run}")
        head, _, tail = word.partition("h")
        run = int(tail) if tail else 0
        out.append(head)
    return "".join([*out, f"h{run}" if run else ""])


def ranges_svg(values: npt.NDArray[np.float32]) -> str:
    """Bars of the channels' largest magnitudes (float32[channels], not negative), in their order, logarithmic.

    Of more than `BINS` channels some share a bar, which shows the largest of them.
    """
    cut = [part.max() for part in np.array_split(values, min(BINS, len(values)))]
    top = max(float(values.max()), 1e-30)
    floor = math.log10(top) - 4
    step = HIST_WIDTH / len(cut)
    bars = []
    for number, value in enumerate(cut):
        share = max(0.0, (math.log10(max(float(value), 1e-30)) - floor) / 4)
        tall = max(1, round(share * (HIST_HEIGHT - 2)))
        bars.append(f"M{number * step:.1f} {HIST_HEIGHT}v-{tall}h{max(step - 1, 0.6):.1f}v{tall}z")
    return f'<svg class="hist" {_box(HIST_WIDTH, HIST_HEIGHT)} aria-hidden="true"><path d="{"".join(bars)}"/></svg>'


def share_svg(share: float) -> str:
    """A bar from 0 to 1."""
    wide = max(0.0, min(1.0, share)) * HIST_WIDTH
    bar = f'<path d="M0 1h{wide:.1f}v8h-{wide:.1f}z"/>'
    return f'<svg class="share" {_box(HIST_WIDTH, 10)} aria-hidden="true">{bar}</svg>'


def curve_svg(points: Sequence[tuple[float, float]], label: str) -> str:
    """A line through points, with the ends of both axes written beside it."""
    wide, high, left, low = 640, 180, 64, 24
    xs, ys = [x for x, _ in points], [y for _, y in points]
    bottom, top = min(ys), max(ys)
    reach, span = max(xs[-1] - xs[0], 1e-12), max(top - bottom, 1e-12)
    places = [
        (left + (x - xs[0]) / reach * (wide - left - 8), 8 + (top - y) / span * (high - low - 12)) for x, y in points
    ]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    words = (
        (left - 6, 14, f"{top:.4g}", "end"),
        (left - 6, high - low, f"{bottom:.4g}", "end"),
        (left, high - 6, f"{xs[0]:g}", "begin"),
        (wide - 4, high - 6, f"{xs[-1]:g}", "end"),
    )
    texts = "".join(f'<text class="{kind}" x="{x}" y="{y}">{word}</text>' for x, y, word, kind in words)
    return (
        f'<svg class="curve" {_box(wide, high)} role="img" aria-label="{escaped(label)}">'
        f'<path class="axis" d="M{left} 4V{high - low}H{wide - 4}"/><path class="line" d="M{line}"/>{texts}</svg>'
    )


def _box(width: int, height: int) -> str:
    return f'viewBox="0 0 {width} {height}"'
