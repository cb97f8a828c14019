# SPDX-License-Identifier: Apache-2.0
"""Where boxes stand: none on another, no line across a box, folded strips, the same for the same graph."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.reporting.lanes import BOX_WIDTH, Placement, place
from tests.steps import assert_linear


def segments(placed: Placement) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Number of the line, and both ends of each of its strokes."""
    return [(n, a, b) for n, line in enumerate(placed.lines) for a, b in itertools.pairwise(line)]


def crossed(placed: Placement, heights: list[int]) -> list[tuple[int, int]]:
    """Lines and boxes that lie on each other, edges of boxes left out."""
    found = []
    for line, (x1, y1), (x2, y2) in segments(placed):
        left, right, up, down = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
        for box, (x, y) in enumerate(placed.boxes):
            if left < x + BOX_WIDTH and right > x and up < y + heights[box] and down > y:
                found.append((line, box))
    return found


def chain(length: int) -> list[tuple[int, int]]:
    return [(step, step + 1) for step in range(length - 1)]


def residual(blocks: int) -> list[tuple[int, int]]:
    edges = []
    for start in range(0, 3 * blocks, 3):
        edges += [(start, start + 1), (start + 1, start + 2), (start + 2, start + 3), (start, start + 3)]
    return edges


def test_nothing_is_drawn_of_nothing() -> None:
    assert place([], []).boxes == ()


def test_a_short_chain_stands_in_one_lane() -> None:
    placed = place([30, 20, 40], chain(3), ratio=0.1)
    assert len({x for x, _ in placed.boxes}) == 1
    assert [y for _, y in placed.boxes] == sorted(y for _, y in placed.boxes)
    assert all(len(line) == 2 for line in placed.lines), "straight down"


def test_a_skip_runs_beside_the_boxes_it_passes() -> None:
    placed = place([30] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)], ratio=0.1)
    assert len({x for x, _ in placed.boxes}) == 1
    lane = {x for x, _ in placed.lines[3]}
    assert max(lane) > placed.boxes[0][0] + BOX_WIDTH, "right of the boxes"
    assert crossed(placed, [30] * 4) == []


def test_branches_stand_beside_each_other_and_join() -> None:
    placed = place([30] * 5, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], ratio=0.1)
    assert len({placed.boxes[number] for number in (1, 2, 3)}) == 3
    assert len({placed.boxes[number][1] for number in (1, 2, 3)}) == 1, "one row"


def test_a_box_that_reads_nothing_stands_above_its_reader() -> None:
    placed = place([30] * 5, [(0, 1), (1, 2), (2, 4), (3, 4)], ratio=0.1)
    assert placed.boxes[3][1] == placed.boxes[2][1]


def test_a_long_chain_is_folded_into_strips_of_the_ratio() -> None:
    placed = place([30] * 200, chain(200), ratio=1.35)
    width, height = placed.size
    assert 1.0 < width / height < 1.8
    assert len({x for x, _ in placed.boxes}) > 4


def test_cuts_are_made_where_few_lines_cross() -> None:
    edges = residual(40)
    placed = place([30] * 121, edges, ratio=1.35)
    strips = sorted({x for x, _ in placed.boxes})
    first = [min((y, n) for n, (x, y) in enumerate(placed.boxes) if x == strip)[1] for strip in strips[1:]]
    assert [number % 3 for number in first] == [1] * len(first), "just below the joints: one tensor crosses"


def test_ends_of_lines_are_on_their_boxes() -> None:
    heights = [20 + number % 3 * 10 for number in range(61)]
    edges = residual(20)
    placed = place(heights, edges)
    for (source, target), line in zip(edges, placed.lines, strict=True):
        x, y = placed.boxes[source]
        assert line[0] == (x + BOX_WIDTH // 2, y + heights[source])
        x, y = placed.boxes[target]
        assert line[-1] == (x + BOX_WIDTH // 2, y)


def test_an_edge_that_leads_backward_is_refused() -> None:
    with pytest.raises(ValueError, match="backward"):
        place([30, 30], [(1, 0)])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    count = draw(st.integers(1, 24))
    heights = draw(st.lists(st.integers(15, 60), min_size=count, max_size=count))
    pairs = [(a, b) for b in range(count) for a in range(max(0, b - 9), b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=30, unique=True)) if pairs else []
    return heights, sorted(edges)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(0.2, 4))
def test_boxes_never_lie_on_each_other_and_lines_never_on_boxes(
    graph: tuple[list[int], list[tuple[int, int]]], ratio: float
) -> None:
    heights, edges = graph
    placed = place(heights, edges, ratio)
    assert placed == place(heights, edges, ratio)
    for (a, (x1, y1)), (b, (x2, y2)) in itertools.combinations(enumerate(placed.boxes), 2):
        apart = x1 + BOX_WIDTH <= x2 or x2 + BOX_WIDTH <= x1 or y1 + heights[a] <= y2 or y2 + heights[b] <= y1
        assert apart, (a, b)
    assert crossed(placed, heights) == []
    for (x, y), height in zip(placed.boxes, heights, strict=True):
        assert 0 <= x <= placed.size[0] - BOX_WIDTH and 0 <= y <= placed.size[1] - height
    for _, (x1, y1), (x2, y2) in segments(placed):
        assert (x1 == x2) != (y1 == y2), "every stroke is vertical or horizontal"
        assert 0 <= min(x1, x2) <= max(x1, x2) <= placed.size[0] and 0 <= min(y1, y2) <= max(y1, y2) <= placed.size[1]


def test_the_cost_grows_with_the_graph_and_no_faster() -> None:
    rng = random.Random(3)

    def make(blocks: int):  # type: ignore[no-untyped-def]
        edges, heights = residual(blocks), [20 + rng.randrange(30) for _ in range(3 * blocks + 1)]
        return lambda: place(heights, edges)

    assert_linear(make, 150)
