# SPDX-License-Identifier: Apache-2.0
"""A graph cut into stages that run one after the other, where few tensors pass from one to the next. Nothing runs here.

What follows from constants alone belongs to no stage: each stage that reads it computes it for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from qdqtool.graph.order import read_names, topological
from qdqtool.graph.view import Node

# Weighted operators of a stage at least, and stages at most: a stage more is a session more.
_OPERATORS, _STAGES = 4, 12


@dataclass(frozen=True)
class Stage:
    """Nodes that run together.

    Attributes:
        nodes: in an order in which they can run; what they read of constants among them.
        gives: the tensors that later stages or the caller read, in the order of the nodes.
    """

    nodes: tuple[Node, ...]
    gives: tuple[str, ...]


def cut_stages(
    nodes: Sequence[Node], is_constant: Callable[[str], bool], outputs: Collection[str], operators: Collection[str]
) -> list[Stage]:
    """The stages that compute some tensors, with about as many weighted operators each.

    Args:
        nodes: of the graph.
        is_constant: whether a tensor follows from constants alone.
        outputs: what is computed; nodes that it does not need are left out.
        operators: first outputs of the weighted operators.
    """
    ordered = _needed(topological(nodes), outputs)
    constant = {id(node) for node in ordered if all(is_constant(name) for name in node.outputs if name)}
    moving = [node for node in ordered if id(node) not in constant]
    made_at = {name: place for place, node in enumerate(moving) for name in node.outputs if name}
    last = {name: place for place, node in enumerate(moving) for name in read_names(node) if name in made_at}
    last.update(dict.fromkeys((name for name in outputs if name in made_at), len(moving)))
    counts = list(accumulate(node.key in operators for node in moving))
    cuts = [0, *_cuts(counts, _crossing(len(moving), made_at, last)), len(moving)]
    constants = [node for node in ordered if id(node) in constant]
    stages = []
    for start, end in pairwise(cuts):
        own = moving[start:end]
        gives = (name for node in own for name in node.outputs if last.get(name, -1) >= end)
        stages.append(
            Stage((*_needed(constants, (name for node in own for name in read_names(node))), *own), (*gives,))
        )
    return stages


def _needed(ordered: Sequence[Node], names: Iterable[str]) -> list[Node]:
    """The nodes that some tensors depend on, in the order given."""
    wanted, found = set(names), []
    for node in reversed(ordered):
        if not wanted.isdisjoint(node.outputs):
            found.append(node)
            wanted.update(read_names(node))
    return found[::-1]


def _crossing(size: int, made_at: dict[str, int], last: dict[str, int]) -> list[int]:
    """How many tensors pass each place between two nodes; place k is in front of node k."""
    steps = [0] * (size + 2)
    for name, place in made_at.items():
        if name in last:
            steps[place + 1] += 1
            steps[last[name] + 1] -= 1
    return list(accumulate(steps))


def _cuts(counts: Sequence[int], crossing: Sequence[int]) -> list[int]:
    """Places with few crossing tensors, near those that divide the weighted operators evenly.

    None right behind a weighted operator where there is another: onnxruntime fuses what follows with it (the addition
    of a bias, a BatchNormalization), and without that the last bits of its output are others.
    """
    total = counts[-1] if counts else 0
    stages = min(_STAGES, total // _OPERATORS)
    found: set[int] = set()
    for index in range(1, stages):
        low, high = (bisect_left(counts, total * (2 * index + side) / (2 * stages)) + 1 for side in (-1, 1))
        middle = (low + high) / 2
        found.add(
            min(range(low, high), key=lambda place: (*_cost(place, counts, crossing), abs(place - middle), place))
        )
    return sorted(found)


def _cost(place: int, counts: Sequence[int], crossing: Sequence[int]) -> tuple[int, int]:
    before = counts[place - 2] if place > 1 else 0
    behind_operator = counts[place - 1] > before
    return crossing[place] + behind_operator, crossing[place]
