# SPDX-License-Identifier: Apache-2.0
"""What lies behind the pair of a point: operators that move its values, and places where they are computed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan, Point
from qdqtool.match.propagate_scales import nodes_of
from qdqtool.rulebook import RuleBook


@dataclass(frozen=True)
class PointConsumers:
    """All readers of one point.

    Attributes:
        moves: operators that commute with the pair, in the order in which they run.
        ends: where weighted operators read the values.
        others: where other operators compute with them.
        given_out: outputs of the graph, and names that bodies read, that hold the values.
    """

    moves: tuple[Node, ...]
    ends: tuple[Use, ...]
    others: tuple[Use, ...]
    given_out: tuple[str, ...]


def find_ways(view: GraphView, rules: RuleBook, plan: Plan) -> Mapping[str, PointConsumers]:
    """The way of every point of a plan, in the plan's order; the rules say which operators commute."""
    commuting = {id(node) for node, _ in nodes_of(view, rules, rules.commutes)}
    return {point.tensor: _way(view, commuting, point) for point in plan.activations}


def _way(view: GraphView, commuting: set[int], point: Point) -> PointConsumers:
    stack = [Use(view.producers[read.node], read.index) for read in reversed(point.reads)]
    moves: dict[int, Node] = {}
    ends: dict[tuple[int, int], Use] = {}
    others: dict[tuple[int, int], Use] = {}
    given_out: dict[str, None] = {}
    while stack:
        use = stack.pop()
        node = use.node
        if id(node) in commuting and (use.index == 0 or node.op == "Concat"):
            if id(node) in moves:
                continue
            moves[id(node)] = node
            for name in filter(None, node.outputs):
                if view.is_output(name) or name in view.captured:
                    given_out[name] = None
                stack.extend(view.consumers(name))
            continue
        index = weight_index(view, node)
        if index is not None and use.index == 1 - index:
            ends[id(node), use.index] = use
        elif not (node.op in ("Shape", "Size") and use.index == 0):  # they read no values
            others[id(node), use.index] = use
    order = sorted(moves.values(), key=lambda node: (node.level, node.index))
    return PointConsumers(tuple(order), _ordered(ends), _ordered(others), tuple(given_out))


def _ordered(uses: Mapping[tuple[int, int], Use]) -> tuple[Use, ...]:
    return tuple(sorted(uses.values(), key=lambda use: (use.node.level, use.node.key, use.index)))
