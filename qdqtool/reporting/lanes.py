# SPDX-License-Identifier: Apache-2.0
"""Where the boxes of a nearly linear graph are drawn: rows by depth, lanes beside each other, folded into strips.

Like the picture of a version history: a chain keeps its lane, and a tensor that is read far below runs down a lane of
its own, so that no line crosses a box. Integers alone, and no drawing. The libraries for layered layouts do not serve:
see docs/report.md.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtool.progress import steps

BOX_WIDTH, LINE_LANE = 124, 16  # of a lane with boxes, and of one with lines alone
ROW_GAP, LANE_GAP, MARGIN = 22, 18, 34  # between rows, beside boxes, around strips for lines from one to the next
RATIO = 1.35  # of width to height that is aimed at
_STEPS = 5  # of lines that run beside each other
_TRIES = 5  # numbers of strips that are tried
_SLACK = 0.15  # of a strip's height, within which the best cut is looked for

Points = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placement:
    """Where everything is drawn, in pixels from the upper left corner.

    Attributes:
        boxes: the upper left corner of each box; all are `BOX_WIDTH` wide.
        lines: for each edge its corners, from the source's lower side to the target's upper side; all segments are
            vertical or horizontal.
        size: width and height of the whole.
    """

    boxes: tuple[tuple[int, int], ...]
    lines: tuple[Points, ...]
    size: tuple[int, int]


@dataclass(frozen=True)
class _Lanes:
    """The row and the lane of each box, and the lane down which a box's output runs past other rows."""

    rows: list[int]
    lanes: list[int]
    trunks: Mapping[int, int]
    ends: Sequence[int]


def place(heights: Sequence[int], edges: Sequence[tuple[int, int]], ratio: float = RATIO) -> Placement:
    """Place boxes.

    Raises:
        ValueError: an edge that does not lead forward.
    """
    if any(source >= target for source, target in edges):
        raise ValueError("an edge leads backward")
    if not heights:
        return Placement((), (), (2 * MARGIN, 2 * MARGIN))
    found = _assign(len(heights), edges)
    tall = _row_heights(heights, found.rows)
    return _draw(_folded(found, tall, ratio), heights, edges)


def _assign(count: int, edges: Sequence[tuple[int, int]]) -> _Lanes:
    """Rows by the longest way from the inputs; a lane for each box and for each output that is read further below."""
    sources, targets = _neighbors(count, edges)
    rows = _rows(count, sources, targets)
    ends = [max((rows[target] for target in targets[box]), default=-1) for box in range(count)]
    by_row: dict[int, list[int]] = defaultdict(list)
    for box, row in enumerate(rows):
        by_row[row].append(box)
    lanes, trunks, held = [0] * count, dict[int, int](), dict[int, int]()
    passing: list[int] = []  # boxes above whose outputs are read in this row or below
    for row in steps(range(max(rows) + 1), "row"):
        held = {lane: box for lane, box in held.items() if ends[box] > row}
        taken = set(held)
        for box in sorted(by_row[row], key=lambda one: (_wish(one, sources, rows, lanes), one)):
            lanes[box] = _nearest_free(_wish(box, sources, rows, lanes), taken)
            taken.add(lanes[box])
        passing = [box for box in passing if ends[box] > row]
        for box in passing:
            if box not in trunks:
                trunks[box] = _nearest_free(lanes[box], taken)
                taken.add(trunks[box])
                held[trunks[box]] = box
        passing += by_row[row]
    return _Lanes(rows, lanes, trunks, ends)


def _neighbors(count: int, edges: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    sources: list[list[int]] = [[] for _ in range(count)]
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    return sources, targets


def _rows(count: int, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[int]:
    """The longest way to each box; one that reads nothing stands just above its first reader."""
    rows = [0] * count
    for box in range(count):
        rows[box] = max((rows[source] + 1 for source in sources[box]), default=0)
    for box in range(count):
        if not sources[box] and targets[box]:
            rows[box] = max(0, min(rows[target] for target in targets[box]) - 1)
    return rows


def _wish(box: int, sources: Sequence[Sequence[int]], rows: Sequence[int], lanes: Sequence[int]) -> int:
    """The lane of the nearest source above, the leftmost of several; the first lane where there is none."""
    return min(((-rows[source], lanes[source]) for source in sources[box]), default=(0, 0))[1]


def _nearest_free(wish: int, taken: set[int]) -> int:
    """The free lane next to the wish, the right one of two."""
    step = 0
    while True:
        for lane in (wish + step, wish - step):
            if lane >= 0 and lane not in taken:
                return lane
        step += 1


def _row_heights(heights: Sequence[int], rows: Sequence[int]) -> list[int]:
    tall = [0] * (max(rows) + 1)
    for height, row in zip(heights, rows, strict=True):
        tall[row] = max(tall[row], height)
    return [height + ROW_GAP for height in tall]


def _folded(found: _Lanes, tall: Sequence[int], ratio: float) -> _Grid:
    """The grid with the number of strips that comes nearest to the ratio."""
    crossing = _crossing(found, len(tall))
    count, best, tried = 1.0, _Grid(found, tall, [0]), {1}
    for _ in range(_TRIES):
        count = max(1.0, min(float(len(tall)), count * math.sqrt(ratio * best.height / best.width)))
        if round(count) in tried:
            break
        tried.add(round(count))
        grid = _Grid(found, tall, _strips(tall, crossing, round(count)))
        if grid.off(ratio) >= best.off(ratio):
            break
        best = grid
    return best


def _strips(tall: Sequence[int], crossing: Sequence[int], count: int) -> list[int]:
    """The first row of each strip of about one height; cuts where few lines cross."""
    total = sum(tall)
    sums = [0]
    for height in tall:
        sums.append(sums[-1] + height)
    starts, slack = [0], _SLACK * total / count
    for number in range(1, count):
        aim = total * number / count
        near = range(
            max(starts[-1] + 1, bisect.bisect_left(sums, aim - slack)),
            min(len(tall), bisect.bisect_right(sums, aim + slack)),
        )
        if near:
            starts.append(min(near, key=lambda row: (crossing[row], abs(sums[row] - aim))))
    return starts


def _crossing(found: _Lanes, count: int) -> list[int]:
    """How many outputs are read across the upper edge of each row."""
    changes = [0] * (count + 1)
    for row, end in zip(found.rows, found.ends, strict=True):
        if end > row:
            changes[row + 1] += 1
            changes[end + 1] -= 1
    crossing, now = [], 0
    for change in changes[:count]:
        now += change
        crossing.append(now)
    return crossing


class _Grid:
    """Pixels of rows and lanes: where each strip, its lanes and its rows begin."""

    def __init__(self, found: _Lanes, tall: Sequence[int], starts: Sequence[int]) -> None:
        self.found, self._tall = found, tall
        self.strip_of = [0] * len(tall)
        self.top = [0] * len(tall)
        bounds = [*starts, len(tall)]
        self.height = 0
        for strip in range(len(starts)):
            y = MARGIN
            for row in range(bounds[strip], bounds[strip + 1]):
                self.strip_of[row], self.top[row] = strip, y
                y += tall[row]
            self.height = max(self.height, y + MARGIN)
        self.lane_x, self.left, self.width = self._columns(len(starts))

    def _columns(self, strips: int) -> tuple[list[dict[int, int]], list[int], int]:
        boxes: list[set[int]] = [set() for _ in range(strips)]
        lines: list[set[int]] = [set() for _ in range(strips)]
        for box, row in enumerate(self.found.rows):
            boxes[self.strip_of[row]].add(self.found.lanes[box])
            if box in self.found.trunks:
                last = self.strip_of[self.found.ends[box]]
                for strip in range(self.strip_of[row], last + 1):
                    lines[strip].add(self.found.trunks[box])
        centers: list[dict[int, int]] = []
        left, x = [], 0
        for strip in range(strips):
            left.append(x)
            x += MARGIN
            centers.append({})
            for lane in sorted(boxes[strip] | lines[strip]):
                wide = BOX_WIDTH + LANE_GAP if lane in boxes[strip] else LINE_LANE
                centers[strip][lane] = x + wide // 2
                x += wide
        return centers, left, x + MARGIN

    def bottom(self, row: int) -> int:
        """The height at which the tallest box of a row ends."""
        return self.top[row] + self._tall[row] - ROW_GAP

    def off(self, ratio: float) -> float:
        """How far width to height lies from a ratio: 0 for equal."""
        return abs(math.log(self.width / self.height / ratio))

    def box_at(self, box: int) -> tuple[int, int]:
        """The upper left corner of a box."""
        row = self.found.rows[box]
        return self.lane_x[self.strip_of[row]][self.found.lanes[box]] - BOX_WIDTH // 2, self.top[row]


def _draw(grid: _Grid, heights: Sequence[int], edges: Sequence[tuple[int, int]]) -> Placement:
    corners = [grid.box_at(box) for box in range(len(heights))]
    lines = []
    for number, (source, target) in enumerate(edges):
        begin = (corners[source][0] + BOX_WIDTH // 2, corners[source][1] + heights[source])
        end = (corners[target][0] + BOX_WIDTH // 2, corners[target][1])
        lines.append(_straightened([begin, *_between(grid, source, target, number), end]))
    return Placement(tuple(corners), tuple(lines), (grid.width, grid.height))


def _between(grid: _Grid, source: int, target: int, number: int) -> list[tuple[int, int]]:
    """The corners of a line: down the lane of the source's output, across to the next strip, down to the target."""
    found = grid.found
    first, last = found.rows[source], found.rows[target]
    strip, other = grid.strip_of[first], grid.strip_of[last]
    lane = found.trunks.get(source, found.lanes[source])
    here = grid.lane_x[strip][lane if last > first + 1 or strip != other else found.lanes[source]]
    start = grid.lane_x[strip][found.lanes[source]]
    stop = grid.lane_x[other][found.lanes[target]]
    below = grid.bottom(first) + 4 + source % _STEPS * 2
    above = grid.top[last] - 6 - source % _STEPS * 2
    if strip == other:
        return [(start, below), (here, below), (here, above), (stop, above)]
    shift = number % _STEPS * 3
    side, floor, ceiling = grid.left[other] + 8 + shift, grid.height - MARGIN + 6 + shift, 6 + shift
    across = [(start, below), (here, below), (here, floor), (side, floor), (side, ceiling)]
    there = grid.lane_x[other][found.trunks[source]] if last > first + 1 else stop
    return [*across, (there, ceiling), (there, above), (stop, above)]


def _straightened(points: Sequence[tuple[int, int]]) -> Points:
    """The points without those that are no corner."""
    kept: list[tuple[int, int]] = []
    for point in points:
        if kept and point == kept[-1]:
            continue
        if len(kept) > 1 and any(kept[-2][axis] == kept[-1][axis] == point[axis] for axis in (0, 1)):
            kept[-1] = point
        else:
            kept.append(point)
    return tuple(kept)
