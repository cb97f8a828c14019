# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a plain graph have a scale, given those of its points: the same values have the same scale.

A cache for the GPU holds the points and every tensor behind or before them whose values are the same or a selection
of them.
Without an entry on both sides of such an operator TensorRT runs it, and what reads it, in float.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.constraints import Site, constraint_named
from qdqtool.match.groups import Group
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale


@dataclass(frozen=True)
class Coverage:
    """Scales of the tensors of a plain graph.

    Attributes:
        scales: in topological order.
        spread: tensors that have theirs from a point of the same values, with that point.
    """

    scales: dict[str, Scale]
    spread: dict[str, str]


def spread_scales(view: GraphView, rules: RuleBook, points: Mapping[str, Scale]) -> Coverage:
    """Carry the points' scales across every operator that commutes, both ways, until nothing changes.

    Where several reach one tensor the largest holds. A point keeps its own.
    """
    neighbours = _neighbours(view, rules)
    scales = dict(points)
    source: dict[str, str] = {}
    heap = [(-float(scale.bits), name, name) for name, scale in points.items()]
    heapq.heapify(heap)
    while heap:
        size, name, point = heapq.heappop(heap)
        if name not in scales:
            scales[name] = replace(points[point], origin="equal", method=f"same values as {point}")
            source[name] = point
        elif name != point:
            continue
        for other in neighbours.get(name, ()):
            if other not in scales:
                heapq.heappush(heap, (size, other, point))
    order = sorted(scales, key=lambda name: (view.level_of(name), name))
    return Coverage({name: scales[name] for name in order}, {n: source[n] for n in order if n in source})


def _neighbours(view: GraphView, rules: RuleBook) -> dict[str, list[str]]:
    """Tensors on either side of the operators that commute."""
    guards: dict[str, list[str]] = {}
    for rule in rules.commutes:
        for step in rule.steps:
            for name in step.names:
                for op in rules.sets.get(name, (name,)):
                    guards.setdefault(op, []).append(step.constraint)
    table: dict[str, list[str]] = {}
    for node in view.nodes:
        if any(not guard or constraint_named(guard)(Site(view, node, start=node)) for guard in guards.get(node.op, ())):
            names = node.inputs if node.op == "Concat" else node.inputs[:1]
            sources = [view.root(name) for name in names if name and not view.is_constant(name)]
            for before, after in itertools.product(sources, filter(None, node.outputs)):
                table.setdefault(before, []).append(after)
                table.setdefault(after, []).append(before)
    return table


def check_coverage(
    view: GraphView, groups: Iterable[Group], coverage: Coverage, int8_nodes: Collection[str]
) -> list[str]:
    """Make sure that every INT8 group reads a tensor with a scale; give the outputs of such groups that have none.

    Args:
        view: the plain graph.
        groups: its fused groups.
        coverage: what has a scale.
        int8_nodes: first outputs of the weighted operators whose weight was quantised.

    Raises:
        QdqError: an INT8 operator whose input has no scale, named.
    """
    for key in int8_nodes:
        node = view.producer[key]
        index = weight_index(view, node)
        name = "" if index is None else view.root(node.inputs[1 - index])
        if name and name not in coverage.scales:
            reason = f"{node.op} {node.name} has an INT8 weight but its input has no scale"
            raise QdqError(name, reason, "qdqtool insert --requantize places what is missing")
    starts = set(int8_nodes)
    return [group.output for group in groups if group.start.key in starts and group.output not in coverage.scales]
