# SPDX-License-Identifier: Apache-2.0
"""The minimum cut of a network, by Dinic's algorithm. It knows nothing of models.

Source: Dinic 1970, Algorithm for solution of a problem of maximum flow in networks with power estimation. Levels keep
the walks short: where most vertices lie next to a terminal, as in the networks of `cast_cut.py`, time grows with edges.
"""

from __future__ import annotations

from collections.abc import Hashable

INFINITE = 1 << 60


class FlowNetwork:
    """A directed network with integer capacities, between a source and a sink."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # per vertex: numbers of its edges
        self._to: list[int] = []
        self._left: list[int] = []  # what an edge may still carry; edge ^ 1 is its reverse
        self.source, self.sink = self._vertex(("source",)), self._vertex(("sink",))

    def _vertex(self, name: Hashable) -> int:
        if name not in self._index:
            self._index[name] = len(self._edges)
            self._edges.append([])
        return self._index[name]

    def from_source(self, name: Hashable, capacity: int) -> None:
        """An edge from the source."""
        self._connect(self.source, self._vertex(name), capacity)

    def to_sink(self, name: Hashable, capacity: int) -> None:
        """An edge to the sink."""
        self._connect(self._vertex(name), self.sink, capacity)

    def add(self, one: Hashable, other: Hashable, capacity: int) -> None:
        """An edge between two vertices, which are made where they are new."""
        self._connect(self._vertex(one), self._vertex(other), capacity)

    def _connect(self, one: int, other: int, capacity: int) -> None:
        for start, end, most in ((one, other, capacity), (other, one, 0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._left.append(most)

    def source_side(self) -> frozenset[Hashable]:
        """The vertices on the source's side of a minimum cut: of all minimum cuts the one with the fewest."""
        while (levels := self._levels())[self.sink] >= 0:
            at = [0] * len(self._edges)
            while self._push(levels, at):
                pass
        return frozenset(name for name, vertex in self._index.items() if levels[vertex] >= 0)

    def _levels(self) -> list[int]:
        """How many edges with something left lie between the source and each vertex; -1 where none leads there."""
        levels = [-1] * len(self._edges)
        levels[self.source] = 0
        queue = [self.source]
        for vertex in queue:  # grows while it is walked
            for edge in self._edges[vertex]:
                other = self._to[edge]
                if self._left[edge] > 0 and levels[other] < 0:
                    levels[other] = levels[vertex] + 1
                    queue.append(other)
        return levels

    def _push(self, levels: list[int], at: list[int]) -> bool:
        """One more path from the source to the sink along the levels, filled; False where there is none left."""
        path: list[int] = []
        vertex = self.source
        while vertex != self.sink:
            edges = self._edges[vertex]
            while at[vertex] < len(edges) and not self._leads(levels, vertex, edges[at[vertex]]):
                at[vertex] += 1
            if at[vertex] < len(edges):
                path.append(edges[at[vertex]])
                vertex = self._to[path[-1]]
            elif path:
                vertex = self._to[path.pop() ^ 1]
                at[vertex] += 1
            else:
                return False
        least = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= least
            self._left[edge ^ 1] += least
        return True

    def _leads(self, levels: list[int], vertex: int, edge: int) -> bool:
        return self._left[edge] > 0 and levels[self._to[edge]] == levels[vertex] + 1
