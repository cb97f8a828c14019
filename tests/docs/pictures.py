# SPDX-License-Identifier: Apache-2.0
"""The drawings in docs/images, made from the code that they are of: `python -m tests.docs.pictures` does it again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import parse_method
from qdqtool.amax.methods import choose_amax
from qdqtool.reporting.lanes import BOX_WIDTH, place
from tests.docs.drawings import channels_svg, drop_svg, inputs_svg, pairs_svg, search_svg, tail
from tests.docs.svg import svg, text

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
METHODS = ("entropy-stable", "mse", "percentile=99.9", "max")
_COLORS = ("#c8332b", "#0b5cad", "#1c8a5c", "#7c4dc4")
_WIDE, _HIGH, _BINS = 760, 300, 190
STEPS = (
    "Is it a loss? evaluate",
    "Inputs: preprocessing",
    "Where? compare, report",
    "All over: condition",
    "Few operators: keep-float",
    "Box heads: float-heads",
    "Still: finetune",
    "Engine alone: engine",
)
_EDGES = ((0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (3, 6), (4, 6), (5, 6), (6, 7))


def methods_svg() -> str:
    """The counts of a tensor, and where each calibration method clips it."""
    one = Histogram()
    one.add(tail())
    counts, width = one.folded()
    end = float(one.amax) * 1.02
    used = np.flatnonzero(counts)
    bars = np.zeros(_BINS)
    np.add.at(bars, ((used + 0.5) * width / end * _BINS).astype(int), counts[used])
    tall = np.log1p(bars) / np.log1p(bars.max()) * (_HIGH - 90)
    step, floor = _WIDE / _BINS, _HIGH - 24
    path = "".join(f"M{n * step:.1f} {floor}v-{height:.0f}h{step:.1f}v{height:.0f}z" for n, height in enumerate(tall))
    parts = [f'<path fill="#6f9fce" d="{path}"/>']
    for row, (name, color) in enumerate(zip(METHODS, _COLORS, strict=True)):
        amax = float(choose_amax(parse_method(name), one))
        x = amax / end * _WIDE
        anchor = "end" if x > _WIDE * 0.7 else "start"
        parts.append(f'<path stroke="{color}" stroke-width="2" d="M{x:.1f} {12 + 16 * row}V{floor}"/>')
        shift = -6 if anchor == "end" else 6
        parts.append(text(x + shift, 16 + 16 * row, f"{name}: amax {amax:.3g}", anchor, color))
    parts.append(text(0, _HIGH - 6, "|x|, counts on a logarithmic scale", "start", "#525e6e"))
    return svg(_WIDE, _HIGH, "A histogram and where each calibration method clips it", parts)


def steps_svg() -> str:
    """The steps of the page on lost accuracy, placed as a report places a graph."""
    heights = [44] * len(STEPS)
    placed = place(heights, _EDGES, ratio=2.2)
    parts = [
        f'<path fill="none" stroke="#8893a2" stroke-width="1.6" d="M{"L".join(f"{x} {y}" for x, y in line)}"/>'
        for line in placed.lines
    ]
    for (x, y), step in zip(placed.boxes, STEPS, strict=True):
        head, _, rest = step.partition(": ") if ": " in step else step.partition("? ")
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="44" rx="5" fill="#cfe6fb" stroke="#1f78c8"/>'
            + text(x + BOX_WIDTH / 2, y + 18, head + ("?" if "? " in step else ""), "middle", "#1b2430")
            + text(x + BOX_WIDTH / 2, y + 34, rest, "middle", "#1b2430")
        )
    return svg(*placed.size, "The steps in their order", parts)


PICTURES = {
    "methods.svg": methods_svg,
    "steps.svg": steps_svg,
    "pairs.svg": pairs_svg,
    "search.svg": search_svg,
    "inputs.svg": inputs_svg,
    "channels.svg": channels_svg,
    "drop.svg": drop_svg,
}

if __name__ == "__main__":
    for name, make in PICTURES.items():
        (IMAGES / name).write_text(make(), encoding="utf-8")
