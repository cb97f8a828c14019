# SPDX-License-Identifier: Apache-2.0
"""Operators that may hurt together where none does alone: heads, pyramid levels, resolutions, runs of blocks.

From the graph and the sizes of its tensors only; nothing runs here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from qdqtool.graph.heads import Head
from qdqtool.graph.view import GraphView, Node

Grid = tuple[int, ...]


@dataclass(frozen=True)
class OperatorGroup:
    """Operators that are tried together.

    Attributes:
        label: what they are, such as ``all 6 heads``.
        nodes: their first outputs, from the input to the outputs.
    """

    label: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Blocks:
    """The operators of a network from its input to its outputs, in blocks that begin behind a residual Add.

    Attributes:
        blocks: of first outputs; of one operator each where the network has fewer than two residual Adds.
        unit: what to call the blocks.
        names: first output -> what to call the operator.
    """

    blocks: tuple[tuple[str, ...], ...]
    unit: str
    names: Mapping[str, str]

    def first(self, count: int) -> OperatorGroup:
        """The blocks next to the input."""
        nodes = tuple(node for block in self.blocks[:count] for node in block)
        return OperatorGroup(f"{self._some('first', count)} (up to {self.names[nodes[-1]]})", nodes)

    def last(self, count: int) -> OperatorGroup:
        """The blocks next to the outputs."""
        nodes = tuple(node for block in self.blocks[-count:] for node in block)
        return OperatorGroup(f"{self._some('last', count)} (from {self.names[nodes[0]]} on)", nodes)

    def runs(self) -> list[OperatorGroup]:
        """The last and the first 1, 2, 4, ... blocks."""
        sizes = [1 << power for power in range(len(self.blocks).bit_length()) if 1 << power < len(self.blocks)]
        return [take(size) for size in sizes for take in (self.last, self.first)]

    def _some(self, where: str, count: int) -> str:
        return f"the {where} {f'{count} ' if count > 1 else ''}of {len(self.blocks)} {self.unit}"


def operator_groups(
    view: GraphView, heads: Sequence[Head], operators: Collection[str], grids: Mapping[str, Grid]
) -> list[OperatorGroup]:
    """Every group of two or more operators that is not all of them, each set of operators once.

    All heads; what leads to the heads of one resolution only (a pyramid level); all operators of one resolution; the
    first and the last 1, 2, 4, ... blocks.
    """
    ordered = in_order(view, operators)
    groups = [_heads(heads, ordered), *_levels(view, heads, ordered, grids), *_resolutions(ordered, grids)]
    groups += blocks_of(view, operators).runs()
    distinct: dict[frozenset[str], OperatorGroup] = {}
    for group in groups:
        if 2 <= len(group.nodes) < len(ordered):
            distinct.setdefault(frozenset(group.nodes), group)
    return list(distinct.values())


def blocks_of(view: GraphView, operators: Collection[str]) -> Blocks:
    """Where a network can be cut between its input and its outputs: at the sums of two computed tensors."""
    ordered = in_order(view, operators)
    sums = sorted({node.level for node in view.nodes if _joins(view, node)})
    blocks: dict[int, list[str]] = {}
    for key in ordered:
        blocks.setdefault(bisect_left(sums, view.level_of(key)), []).append(key)
    names = {key: view.producers[key].name for key in ordered}
    if len(sums) < 2 or len(blocks) < 2:
        return Blocks(tuple((key,) for key in ordered), "operators", names)
    return Blocks(tuple(tuple(blocks[index]) for index in sorted(blocks)), "residual blocks", names)


def in_order(view: GraphView, operators: Iterable[str]) -> list[str]:
    """First outputs from the graph's inputs to its outputs, the same for every order of the node list."""
    return sorted(operators, key=lambda key: (view.level_of(key), key))


def _joins(view: GraphView, node: Node) -> bool:
    if node.op not in ("Add", "Sum"):
        return False
    return (
        len({view.root(name) for name in node.inputs if name and view.producer(name) and not view.is_constant(name)})
        > 1
    )


def _heads(heads: Sequence[Head], ordered: Sequence[str]) -> OperatorGroup:
    keys = {head.key for head in heads}
    nodes = tuple(key for key in ordered if key in keys)
    return OperatorGroup(f"all {len(nodes)} heads", nodes)


def _levels(
    view: GraphView, heads: Sequence[Head], ordered: Sequence[str], grids: Mapping[str, Grid]
) -> list[OperatorGroup]:
    """For each resolution of heads the operators that lead to heads of this resolution only."""
    leads = _leads_to(view, {head.key: grids.get(head.key, ()) for head in heads})
    levels = sorted({grid for found in leads.values() for grid in found}, reverse=True)
    if len(levels) < 2:
        return []
    groups = []
    for level in levels:
        nodes = tuple(key for key in ordered if leads.get(key) == {level})
        groups.append(OperatorGroup(f"the {len(nodes)} operators of the level {_format_grid(level)}", nodes))
    return groups


def _leads_to(view: GraphView, heads: Mapping[str, Grid]) -> dict[str, set[Grid]]:
    """First output of a node -> resolutions of the heads that its values reach, its own among them."""
    found: dict[str, set[Grid]] = {}
    for node in sorted(view.nodes, key=lambda one: -one.level):
        reached = {heads[node.key]} if node.key in heads else set()
        for name in node.outputs:
            for use in view.consumers(name):
                reached |= found.get(use.node.key, set())
        found[node.key] = reached
    return found


def _resolutions(ordered: Sequence[str], grids: Mapping[str, Grid]) -> list[OperatorGroup]:
    by_grid: dict[Grid, list[str]] = {}
    for key in ordered:
        by_grid.setdefault(grids.get(key, ()), []).append(key)
    return [
        OperatorGroup(f"all {len(nodes)} operators with outputs of {_format_grid(grid)}", tuple(nodes))
        for grid, nodes in sorted(by_grid.items(), reverse=True)
        if grid
    ]


def _format_grid(grid: Grid) -> str:
    return "x".join(map(str, grid)) if grid else "no positions"
