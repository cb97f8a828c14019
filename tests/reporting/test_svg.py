# SPDX-License-Identifier: Apache-2.0
"""Drawings by hand: strokes of lines, words in boxes, bars of ranges and the axes of a curve."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qdqtool.graph.view import GraphView
from qdqtool.reporting.svg import BINS, HIST_HEIGHT, HIST_WIDTH, _box_lines, _path, curve_svg, histogram_svg, ranges_svg
from tests.graphs import model_of

CHAIN = """net (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w> {
    a = Conv(x, w)  b = Relu(a)  c = Sigmoid(b)  d = HardSigmoid(c)  y = Add(d, d) }"""
VIEW = GraphView(model_of(CHAIN).graph)


def test_a_line_is_drawn_in_vertical_and_horizontal_strokes() -> None:
    assert _path([(5, 10), (5, 20), (15, 20), (15, 5)]) == "M5 10v10h10v-15"
    assert _path([(5, 10)]) == "M5 10"


def test_short_operators_share_a_line_of_a_box() -> None:
    nodes = VIEW.nodes
    lines = _box_lines(VIEW, "t", nodes[1:3], "pointwise")
    assert lines == ["Relu · Sigmoid"]
    assert len(_box_lines(VIEW, "t", nodes, "pointwise")) > 1
    many = _box_lines(VIEW, "t", nodes[3:4] * 20, "pointwise")
    assert len(many) == 8 and many[-1] == "and 13 more"
    assert len(_box_lines(VIEW, "t", nodes[3:4] * 8, "pointwise")) == 8


@pytest.mark.parametrize(
    ("title", "kind", "shown"),
    [("x" * 17, "input", "x" * 17), ("x" * 18, "output", "x" * 16 + "…"), ("name", "copy", "copy")],
)
def test_a_box_without_operators_has_the_name_of_an_end_or_its_kind(title: str, kind: str, shown: str) -> None:
    assert _box_lines(VIEW, title, (), kind) == [shown]


def strokes(text: str) -> list[tuple[float, int]]:
    """Where the bars of a range begin and how tall they are."""
    return [(float(x), int(tall)) for x, tall in re.findall(rf"M([\d.]+) {HIST_HEIGHT}v-(\d+)h", text)]


def test_bars_of_ranges_span_four_decades() -> None:
    """The largest is full, 1 % of it half, and what lies four decades below, or is zero, has a line."""
    found = strokes(ranges_svg(np.array([1.0, 0.01, 1e-4, 0.0], np.float32)))
    assert [x for x, _ in found] == [0.0, HIST_WIDTH / 4, HIST_WIDTH / 2, 3 * HIST_WIDTH / 4]
    assert [tall for _, tall in found] == [HIST_HEIGHT - 2, (HIST_HEIGHT - 2) // 2, 1, 1]


def test_channels_that_share_a_bar_show_their_largest() -> None:
    values = np.full(2 * BINS, 1e-4, np.float32)
    values[1] = values[-2] = 1.0
    found = strokes(ranges_svg(values))
    assert len(found) == BINS
    assert [number for number, (_, tall) in enumerate(found) if tall > 1] == [0, BINS - 1]


def test_what_lies_at_the_end_of_a_histogram_is_in_its_last_bar() -> None:
    """48 bars span 1.02 times the largest value: 10 of 10 lies in bar 47, 5 in bar 23."""
    counts = np.zeros(10, np.int64)
    counts[4] = counts[9] = 1
    text = histogram_svg(counts, 1.0, 10.0, 0.0)
    steps = re.findall(r"[hv]-?\d+", text)
    at, peaks = 0, []
    for step in steps:
        if step[0] == "h":
            at += int(step[1:])
        elif step[1] == "-":
            peaks.append(at * BINS // HIST_WIDTH)
    assert peaks == [int(4.5 / 10.2 * BINS), int(9.5 / 10.2 * BINS)]
    assert "cut" not in text, "no clipping value, no line"


def test_a_curve_falls_from_the_top_left_to_the_bottom_right() -> None:
    text = curve_svg([(0.0, 2.0), (5.0, 1.0), (10.0, 0.0)], "loss")
    ((first, middle, last),) = [
        [tuple(map(float, one.split())) for one in found.split("L")]
        for found in re.findall(r'class="line" d="M(.*?)"', text)
    ]
    assert (first, middle, last) == ((64.0, 8.0), (348.0, 80.0), (632.0, 152.0))
    assert re.findall(r">([\d.]+)</text>", text) == ["2", "0", "0", "10"]
