# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a plain graph have a scale, given those of its points: the same values have the same scale.

A cache for the GPU holds the points and every tensor behind or before them whose values are the same or a selection
of them.
Without an entry on both sides of such an operator TensorRT runs it, and what reads it, in float.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import commuting, joins, value_names
from qdqtool.match.groups import Group
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook
from qdqtool.scales import CACHE, Scale, ScaleTable


@dataclass(frozen=True)
class Coverage:
    """Scales of the tensors of a plain graph.

    Attributes:
        scales: in topological order.
        spread: tensors that have theirs from a point of the same values, with that point.
    """

    scales: dict[str, Scale]
    spread: dict[str, str]


def spread_scales(
    view: GraphView, rules: RuleBook, points: Mapping[str, Scale], *, across_joins: bool = True
) -> Coverage:
    """Carry the points' scales across every operator that commutes, both ways, until nothing changes.

    Where several reach one tensor the largest holds. A point keeps its own.
    """
    neighbors = same_values(view, rules, across_joins=across_joins)
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
        for other in neighbors.get(name, ()):
            if other not in scales:
                heapq.heappush(heap, (size, other, point))
    order = sorted(scales, key=lambda name: (view.level_of(name), name))
    return Coverage({name: scales[name] for name in order}, {n: source[n] for n in order if n in source})


def borrowed_scales(
    view: GraphView, rules: RuleBook, scales: Mapping[str, Scale], wanted: Iterable[str]
) -> dict[str, Scale]:
    """Scales for the activations of `wanted` that have none, each from a tensor that holds the same values.

    Once an operator stays in float, a point can move across a pool or a Pad to a tensor that was not calibrated.
    """
    missing = sorted(name for name in wanted if name not in scales)
    if not missing:
        return {}
    known = {name: one for name, one in scales.items() if one.bits.size == 1 and not view.is_constant(name)}
    found = spread_scales(view, rules, known).scales
    return {name: found[name] for name in missing if name in found}


def with_cached_scales(coverage: Coverage, table: ScaleTable) -> dict[str, Scale]:
    """The scales of a coverage, but the cache's own for tensors that got a point's: a cache has one on each side.

    A point that has another scale than the cache's since then (it was trained) gives its own to all of them.
    """
    scales = dict(coverage.scales)
    for name, point in coverage.spread.items():
        own, there = table.get(name), table.get(point)
        kept = there is None or there.method != CACHE or there.same_bits(scales[point])
        if own is not None and own.method == CACHE and kept:
            scales[name] = own
    return scales


def equal_entries(view: GraphView, rules: RuleBook, known: Container[str], wanted: Iterable[str]) -> dict[str, str]:
    """Wanted tensors that are not known -> the nearest known tensor with all of the same values, or their largest.

    Across what rearranges values and across a pool of the largest; not across what leaves values out or joins others.
    """
    whole = operator_set("rearranging") | operator_set("comparing")
    moving = commuting(view, rules)
    found = {}
    for name in wanted:
        near, seen = [name], {name}
        for one in near if name not in known else ():
            nodes = [view.producer(one), *(use.node for use in view.consumers(one))]
            for node in (node for node in nodes if node is not None and node.op in whole and moving.moves(node)):
                beside = [view.root(other) for other in (*value_names(node), *node.outputs) if other]
                near += [other for other in beside if other not in seen and not view.is_constant(other)]
                seen.update(beside)
        lender = next((one for one in near if one in known), None)
        if lender not in (None, name):
            found[name] = str(lender)
    return found


def same_values(view: GraphView, rules: RuleBook, *, across_joins: bool = True) -> dict[str, list[str]]:
    """Tensors on either side of the operators that commute, those of a Concat where asked for: -> its neighbors."""
    table: dict[str, list[str]] = {}
    for node in commuting(view, rules).nodes():
        if joins(node) and not across_joins:
            continue
        sources = [view.root(name) for name in value_names(node) if not view.is_constant(name)]
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
        int8_nodes: first outputs of the weighted operators whose weight was quantized.

    Raises:
        QdqError: an INT8 operator whose input has no scale, named.
    """
    for key in int8_nodes:
        node = view.producers[key]
        index = weight_index(view, node)
        name = "" if index is None else view.root(node.inputs[1 - index])
        if name and name not in coverage.scales:
            reason = f"{node.op} {node.name} has an INT8 weight but its input has no scale"
            raise QdqError(name, reason, "qdqtool insert --requantize places the missing pairs")
    starts = set(int8_nodes)
    return [group.output for group in groups if group.start.key in starts and group.output not in coverage.scales]
