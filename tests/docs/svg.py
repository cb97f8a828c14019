# SPDX-License-Identifier: Apache-2.0
"""Parts of the drawings in docs/images, as text of SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

BLUE, PALE, YELLOW, GREY, RED, GREEN = "#1f78c8", "#cfe6fb", "#fdf0c4", "#525e6e", "#c8332b", "#1c8a5c"
Spot = tuple[float, float]


def text(x: float, y: float, words: str, anchor: str = "start", color: str = "#1b2430") -> str:
    """One line of text at a spot; anchor is start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{html.escape(words)}</text>'


def box(x: float, y: float, wide: float, title: str, *, in_float: bool = False) -> str:
    """An operator, 34 high: blue in INT8, yellow in float."""
    fill, edge = (YELLOW, "#b78a00") if in_float else (PALE, BLUE)
    shape = f'<rect x="{x}" y="{y}" width="{wide}" height="34" rx="5" fill="{fill}" stroke="{edge}"/>'
    return shape + text(x + wide / 2, y + 22, title, "middle")


def badge(x: float, y: float, words: str) -> str:
    """A pair, its middle at a spot."""
    wide = 9 * len(words) + 8
    shape = f'<rect x="{x - wide / 2}" y="{y - 10}" width="{wide}" height="20" rx="10" fill="{BLUE}"/>'
    return shape + text(x, y + 5, words, "middle", "#fff")


def line(
    spots: Sequence[Spot], color: str = GREY, width: float = 1.6, *, head: bool = False, dashed: bool = False
) -> str:
    """A line through spots; with a head, an arrow to the last."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    (x0, _), (x, y) = spots[-2:]
    tip = f"M{x - 6} {y - 4}L{x} {y}L{x - 6} {y + 4}" if x > x0 else f"M{x - 4} {y - 6}L{x} {y}L{x + 4} {y - 6}"
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path fill="none" stroke="{color}" stroke-width="{width}"{dash} d="M{path}{tip if head else ""}"/>'


def bars(heights: Sequence[float], left: float, floor: float, step: float, color: str = "#6f9fce") -> str:
    """A histogram: bars of given heights, side by side."""
    path = "".join(
        f"M{left + n * step:.1f} {floor}v-{tall:.0f}h{step:.1f}v{tall:.0f}z" for n, tall in enumerate(heights)
    )
    return f'<path fill="{color}" d="{path}"/>'


def svg(wide: float, high: float, title: str, parts: Sequence[str]) -> str:
    """A whole file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img">'
        f"<title>{title}</title><style>text{{font:13px system-ui,sans-serif}}</style>"
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
