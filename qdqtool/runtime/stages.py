# SPDX-License-Identifier: Apache-2.0
"""A graph cut into stages that run one after the other, where few tensors pass from one to the next. Nothing runs here.

What follows from constants alone belongs to no stage: each stage that reads it computes it for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from qdqtool.graph.order import read_names, topological
from qdqtool.graph.view import Node

# Weighted operators of a stage at least, and stages at most: a stage more is a session more.
_OPERATORS, _STAGES = 4, 12
# Where sizes count: bytes of a stage at least, and stages at most.
_BYTES, _PARTS = 10 << 20, 32
_NEVER = 1 << 40  # tensors that pass where one of them may not


@dataclass(frozen=True)
class Stage:
    """Nodes that run together.

    Attributes:
        nodes: in an order in which they can run; what they read of constants among them.
        gives: the tensors that later stages read, and the caller at the end, in the order of the nodes.
    """

    nodes: tuple[Node, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class CutOptions:
    """How a graph is cut into stages.

    Attributes:
        passing: tensors that may pass a cut; None for all.
        sizes: bytes of tensors, where stages are to hold about as many of them; None for operators.
        lengths: how many values tensors have, as far as is known: of places alike, that is cut where the fewest pass.
        hold: whether the outputs are read at the end; otherwise where they are made, and no stage gives them for it.
    """

    passing: Container[str] | None = None
    sizes: Mapping[str, int] | None = None
    lengths: Mapping[str, int] | None = None
    hold: bool = True


AT_OPERATORS = CutOptions()


def cut_stages(
    nodes: Sequence[Node],
    is_constant: Callable[[str], bool],
    outputs: Collection[str],
    operators: Collection[str],
    how: CutOptions = AT_OPERATORS,
) -> list[Stage]:
    """The stages that compute some tensors, with about as many weighted operators or bytes each."""
    ordered = _needed(topological(nodes), outputs)
    known = [name for node in ordered if all(map(is_constant, filter(None, node.outputs))) for name in node.outputs]
    constants = _needed(ordered, filter(None, known))  # the QuantizeLinear of a weight among them
    constant = set(map(id, constants))
    moving = [node for node in ordered if id(node) not in constant]
    made_at = {name: place for place, node in enumerate(moving) for name in node.outputs if name}
    last = {name: place for place, node in enumerate(moving) for name in read_names(node) if name in made_at}
    if how.hold:
        last.update(dict.fromkeys((name for name in outputs if name in made_at), len(moving)))
    behind = [node.key in operators for node in moving]
    sizes, passing = how.sizes, how.passing
    if sizes is None:
        counts, most = list(accumulate(map(int, behind))), (_OPERATORS, _STAGES)
    else:
        counts, most = list(accumulate(sum(sizes.get(n, 0) for n in node.outputs) for node in moving)), (_BYTES, _PARTS)
    crossing = _crossing(len(moving), made_at, last)
    passed = _crossing(len(moving), made_at, last, how.lengths or {})
    if passing is not None:
        stopped = _crossing(len(moving), made_at, {name: end for name, end in last.items() if name not in passing})
        crossing = [_NEVER if more else some for some, more in zip(crossing, stopped, strict=True)]
    cuts = [0, *(at for at in _cuts(counts, (crossing, passed), behind, most) if crossing[at] < _NEVER), len(moving)]
    stages, made_of_constants = [], {name: at for at, node in enumerate(constants) for name in node.outputs if name}
    for start, end in pairwise(cuts):
        own = moving[start:end]
        gives = (name for node in own for name in node.outputs if last.get(name, -1) >= end)
        stages.append(Stage((*_read_by(own, constants, made_of_constants), *own), (*gives,)))
    return stages


def _read_by(nodes: Sequence[Node], constants: Sequence[Node], made_at: Mapping[str, int]) -> list[Node]:
    """The nodes of constants that some nodes depend on, in the order given."""
    places, stack = set[int](), list(nodes)
    while stack:
        for name in read_names(stack.pop()):
            at = made_at.get(name)
            if at is not None and at not in places:
                places.add(at)
                stack.append(constants[at])
    return [constants[at] for at in sorted(places)]


def _needed(ordered: Sequence[Node], names: Iterable[str]) -> list[Node]:
    """The nodes that some tensors depend on, in the order given."""
    wanted, found = set(names), []
    for node in reversed(ordered):
        if not wanted.isdisjoint(node.outputs):
            found.append(node)
            wanted.update(read_names(node))
    return found[::-1]


def _crossing(
    size: int, made_at: dict[str, int], last: dict[str, int], lengths: Mapping[str, int] | None = None
) -> list[int]:
    """How many tensors, or values of tensors, pass each place between two nodes; place k is in front of node k."""
    steps = [0] * (size + 2)
    for name, place in made_at.items():
        if name in last:
            weight = 1 if lengths is None else lengths.get(name, 0)
            steps[place + 1] += weight
            steps[last[name] + 1] -= weight
    return list(accumulate(steps))


def _cuts(
    counts: Sequence[int],
    crossing: tuple[Sequence[int], Sequence[int]],
    behind: Sequence[bool],
    limits: tuple[int, int],
) -> list[int]:
    """Places with few crossing tensors, then values, near those that divide what counts evenly.

    None right after a weighted operator where there is another: onnxruntime fuses what follows with it (the addition
    of a bias, a BatchNormalization), and without that the last bits of its output are others.
    """
    least, most = limits
    total = counts[-1] if counts else 0
    stages = min(most, total // least)
    found: set[int] = set()
    for index in range(1, stages):
        low, high = (bisect_left(counts, total * (2 * index + side) / (2 * stages)) + 1 for side in (-1, 1))
        middle = (low + high) / 2
        places = range(low, max(high, low + 1))  # one node alone may count for several
        found.add(min(places, key=lambda place: (*_cost(place, crossing, behind), abs(place - middle), place)))
    return sorted(found - {len(counts)})


def _cost(place: int, crossing: tuple[Sequence[int], Sequence[int]], behind: Sequence[bool]) -> tuple[int, int, int]:
    tensors, values = crossing
    return tensors[place] + behind[place - 1], tensors[place], values[place]
