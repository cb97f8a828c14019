# SPDX-License-Identifier: Apache-2.0
"""The contiguous parts of a graph that the DLA runs, and which fallbacks cut them apart. Not what falls back, or why.

Two neighbors are in one part unless some way between them leads over the GPU: then one would wait for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtool.graph.view import GraphView

# How many groups of fallbacks are tried; each costs one more look at the whole graph.
_MOST_TRIED = 64


@dataclass(frozen=True)
class Saving:
    """Fallback nodes that stand together or side by side, and how many subgraphs were left if they ran on the DLA."""

    nodes: tuple[str, ...]
    left: int


@dataclass(frozen=True)
class Subgraphs:
    """DLA subgraphs.

    Attributes:
        members: of each, the first outputs of its nodes, in file order.
        savings: the changes that would leave fewer of them, the most saving first. A change is of fallbacks that read
            one another, or of all such groups that read one tensor.
        untried: groups of fallbacks that were not looked at, where there are very many.
    """

    members: tuple[tuple[str, ...], ...] = ()
    savings: tuple[Saving, ...] = ()
    untried: int = 0


def find_subgraphs(view: GraphView, devices: Mapping[str, str]) -> Subgraphs:
    """The DLA subgraphs of a graph."""
    net = _Net.of(view, devices)
    on_dla = [devices[key] == "dla" for key in net.keys]
    members = net.parts(on_dla)
    islands = net.joined([not there for there in on_dla])
    savings = []
    for island in (*islands[:_MOST_TRIED], *net.side_by_side(islands)[:_MOST_TRIED]):
        changed = [there or index in island for index, there in enumerate(on_dla)]
        left = len(net.parts(changed))
        if left < len(members):
            savings.append(Saving(tuple(net.keys[index] for index in sorted(island)), left))
    savings.sort(key=lambda one: (one.left, len(one.nodes)))
    named = [tuple(net.keys[index] for index in part) for part in members]
    return Subgraphs(tuple(named), tuple(savings), max(0, len(islands) - _MOST_TRIED))


def count_subgraphs(view: GraphView, devices: Mapping[str, str]) -> int:
    """How many DLA subgraphs a graph has; see `find_subgraphs`."""
    net = _Net.of(view, devices)
    return len(net.parts([devices[key] == "dla" for key in net.keys]))


@dataclass(frozen=True)
class _Net:
    """The nodes that are layers, in an order in which each comes after what it reads, and whom each reads."""

    keys: Sequence[str]
    reads: Sequence[Sequence[int]]
    places: Sequence[int]

    @classmethod
    def of(cls, view: GraphView, devices: Mapping[str, str]) -> _Net:
        nodes = sorted(view.nodes, key=lambda node: (node.level, node.index))
        made: dict[str, tuple[int, ...]] = {}
        keys: list[str] = []
        reads: list[list[int]] = []
        places: list[int] = []
        for node in nodes:
            sources = sorted({number for name in node.inputs for number in made.get(view.root(name), ())})
            if devices[node.key] == "none":
                own: tuple[int, ...] = tuple(sources)  # Identity and its like hand on what they read
            else:
                own = (len(keys),)
                keys.append(node.key)
                reads.append(sources)
                places.append(node.index)
            made.update(dict.fromkeys(filter(None, node.outputs), own))
        return cls(keys, reads, places)

    def joined(self, wanted: Sequence[bool]) -> list[set[int]]:
        """Wanted nodes that read one another, in groups, in file order."""
        sets = _Sets(len(self.keys))
        for index, sources in enumerate(self.reads):
            for source in sources:
                if wanted[index] and wanted[source]:
                    sets.join(source, index)
        groups: dict[int, set[int]] = {}
        for index in sorted(range(len(self.keys)), key=lambda i: self.places[i]):
            if wanted[index]:
                groups.setdefault(sets.root(index), set()).add(index)
        return list(groups.values())

    def side_by_side(self, islands: Sequence[set[int]]) -> list[set[int]]:
        """Groups of nodes that read the same tensors, two and more together: one alone leaves the other's cut."""
        sets = _Sets(len(islands))
        reader: dict[int, int] = {}
        for number, island in enumerate(islands):
            for source in {source for index in island for source in self.reads[index]} - island:
                sets.join(reader.setdefault(source, number), number)
        groups: dict[int, list[set[int]]] = {}
        for number, island in enumerate(islands):
            groups.setdefault(sets.root(number), []).append(island)
        return [set().union(*group) for group in groups.values() if len(group) > 1]

    def parts(self, on_dla: Sequence[bool]) -> list[list[int]]:
        """The nodes of each DLA subgraph: at first by how often the way to them changes sides, then joined further."""
        changes: list[int] = []
        for index, sources in enumerate(self.reads):
            before = [changes[source] + (on_dla[source] != on_dla[index]) for source in sources]
            changes.append(max(before, default=0))
        sets = _Sets(len(self.keys))
        for index, sources in enumerate(self.reads):
            for source in sources:
                if on_dla[index] and on_dla[source] and changes[index] == changes[source]:
                    sets.join(source, index)
        self._join_further(on_dla, sets)
        groups: dict[int, list[int]] = {}
        for index in sorted(range(len(self.keys)), key=lambda i: self.places[i]):
            if on_dla[index]:
                groups.setdefault(sets.root(index), []).append(index)
        return list(groups.values())

    def _join_further(self, on_dla: Sequence[bool], sets: _Sets) -> None:
        """Join neighboring subgraphs between which no other way leads."""
        for index, sources in enumerate(self.reads):
            for source in sources:
                one, other = sets.root(source), sets.root(index)
                if on_dla[index] and on_dla[source] and one != other and not self._roundabout(one, other, sets):
                    sets.join(one, other)

    def _roundabout(self, first: int, second: int, sets: _Sets) -> bool:
        """Whether some way leads from one set to another over a third."""
        after: dict[int, set[int]] = {}
        for index, sources in enumerate(self.reads):
            for source in sources:
                one, other = sets.root(source), sets.root(index)
                if one != other:
                    after.setdefault(one, set()).add(other)
        stack = [name for name in after.get(first, ()) if name != second]
        seen = set(stack)
        while stack:
            here = stack.pop()
            if here == second:
                return True
            fresh = after.get(here, set()) - seen
            seen |= fresh
            stack.extend(fresh)
        return False


class _Sets:
    """Disjoint sets of numbers, each known by its smallest."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low
