# SPDX-License-Identifier: Apache-2.0
"""What lies after the pair of a point: operators that move its values, and places where they are computed with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import Flow
from qdqtool.match.plan import Plan, Read
from qdqtool.rule_files import operator_set


@dataclass(frozen=True)
class PointConsumers:
    """All consumers of one point.

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


def find_ways(view: GraphView, flow: Flow, plan: Plan) -> Mapping[str, PointConsumers]:
    """The way of every point of a plan, in the plan's order; `flow` says which operators commute."""
    return {point.tensor: find_way(view, flow, point.reads) for point in plan.activations}


def find_way(view: GraphView, flow: Flow, reads: Iterable[Read]) -> PointConsumers:
    """What lies after some of the places that read a point."""
    sizes = operator_set("sizes")
    moves: dict[int, Node] = {}
    ends: dict[tuple[int, int], Use] = {}
    others: dict[tuple[int, int], Use] = {}
    given_out: dict[str, None] = {}
    for use, across in flow.down(Use(view.producers[read.node], read.index) for read in reads):
        node = use.node
        if across:
            moves[id(node)] = node
            names = filter(None, node.outputs)
            given_out.update(dict.fromkeys(name for name in names if view.is_output(name) or name in view.captured))
            continue
        index = weight_index(view, node)
        if index is not None and use.index == 1 - index:
            ends[id(node), use.index] = use
        elif not (node.op in sizes and use.index == 0):  # they read no values
            others[id(node), use.index] = use
    order = sorted(moves.values(), key=lambda node: (node.level, node.index))
    return PointConsumers(tuple(order), _ordered(ends), _ordered(others), tuple(given_out))


def _ordered(uses: Mapping[tuple[int, int], Use]) -> tuple[Use, ...]:
    return tuple(sorted(uses.values(), key=lambda use: (use.node.level, use.node.key, use.index)))
