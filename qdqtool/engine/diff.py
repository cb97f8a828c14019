# SPDX-License-Identifier: Apache-2.0
"""Two built engines beside each other: their layers aligned by the ONNX nodes in them, and what differs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qdqtool.engine.layer_info import EngineInfo, EngineLayer, node_words
from qdqtool.engine.totals import EngineTotals
from qdqtool.errors import QdqError

Change = Literal["same", "types", "split", "merged", "regrouped", "only A", "only B"]
_COUNTER = re.compile(r"[A-Z][A-Za-z]*_\d+")
CHANGES: tuple[Change, ...] = ("same", "types", "split", "merged", "regrouped", "only A", "only B")


@dataclass(frozen=True)
class AlignedLayers:
    """The layers of both engines that hold the same ONNX nodes.

    Attributes:
        change: same; types (of what they read or write); split (one of A, several of B); merged; regrouped (several of
            both); only A or only B (nodes that no layer of the other names).
        nodes: what both name, sorted; what the one side names where only that has them.
        a: layers of the first engine, in its order.
        b: layers of the second.
    """

    change: Change
    nodes: tuple[str, ...]
    a: tuple[EngineLayer, ...]
    b: tuple[EngineLayer, ...]

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "change": self.change,
            "nodes": list(self.nodes),
            "a": [_side(layer) for layer in self.a],
            "b": [_side(layer) for layer in self.b],
        }


def _side(layer: EngineLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "inputs": [one.format_type() for one in layer.inputs],
        "outputs": [one.format_type() for one in layer.outputs],
        "bytes_moved": layer.bytes_moved,
    }


def align_layers(first: EngineInfo, second: EngineInfo) -> tuple[AlignedLayers, ...]:
    """Layers of two engines by the ONNX nodes in them, in the order of the first; those of the second alone last.

    A node that a product holds is not counted for the generated kernel beside it, which Myelin also names it in.
    Layers that name no node (copies, waits) are left out.

    Raises:
        QdqError: the engines have no node in common.
    """
    sides = [_nodes(first), _nodes(second)]
    common = frozenset().union(*sides[0]) & frozenset().union(*sides[1])
    if not common:
        reason = f"has no ONNX node in common with {first.path.name}"
        raise QdqError(second.path, reason, "compare engines of one model, exported with detailed layer information")
    sides = [[_telling(nodes, common) for nodes in layers] for layers in sides]
    joined = _Groups()
    by_node: dict[str, tuple[int, int]] = {}
    for side, layers in enumerate(sides):
        for place, nodes in enumerate(layers):
            for name in sorted(nodes & common):
                joined.join((side, place), by_node.setdefault(name, (side, place)))
    found: dict[tuple[int, int], _Group] = {}
    for side, info in enumerate((first, second)):
        for place, nodes in enumerate(sides[side]):
            if nodes:
                group = found.setdefault(joined.root((side, place)), _Group(([], []), set()))
                group.layers[side].append(info.layers[place])
                group.nodes.update(nodes & common or nodes)
    return tuple(_row(*group.layers, group.nodes) for group in found.values())


@dataclass(frozen=True)
class _Group:
    """Layers of both engines, by side, and the nodes in them."""

    layers: tuple[list[EngineLayer], list[EngineLayer]]
    nodes: set[str]


def _telling(nodes: frozenset[str], common: frozenset[str]) -> frozenset[str]:
    """The nodes of a layer that say which it is in both engines.

    Of `weight + Conv_59` the counter of an exporter is left out: another node has it where Q/DQ nodes were counted too.
    """
    named = frozenset(name for name in nodes & common if not _COUNTER.fullmatch(name))
    return named or nodes


class _Groups:
    """Which things belong together: a forest with path halving."""

    def __init__(self) -> None:
        self._parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(self, one: tuple[int, int]) -> tuple[int, int]:
        """The one that stands for the group."""
        while (above := self._parent.get(one, one)) != one:
            self._parent[one] = self._parent.get(above, above)
            one = above
        return one

    def join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        """Make their groups one; the earlier root stands for it."""
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low


def _nodes(info: EngineInfo) -> list[frozenset[str]]:
    """The nodes of each layer: of its metadata, else the words of its name."""
    inside = [
        frozenset() if layer.is_reformat else frozenset(layer.metadata or layer.parts or node_words(layer.name))
        for layer in info.layers
    ]
    products = frozenset().union(*(nodes for layer, nodes in zip(info.layers, inside, strict=True) if layer.is_product))
    return [nodes if layer.is_product else nodes - products for layer, nodes in zip(info.layers, inside, strict=True)]


def _row(a: Sequence[EngineLayer], b: Sequence[EngineLayer], nodes: Iterable[str]) -> AlignedLayers:
    return AlignedLayers(_change(a, b), tuple(sorted(nodes)), tuple(a), tuple(b))


def _change(a: Sequence[EngineLayer], b: Sequence[EngineLayer]) -> Change:
    if not a or not b:
        return "only A" if a else "only B"
    if len(a) == len(b) == 1:
        return "same" if _types(a[0]) == _types(b[0]) else "types"
    return "split" if len(a) == 1 else "merged" if len(b) == 1 else "regrouped"


def _types(layer: EngineLayer) -> tuple[list[str], list[str]]:
    return sorted(one.type for one in layer.inputs), sorted(one.type for one in layer.outputs)


def difference_lines(rows: Sequence[AlignedLayers], names: tuple[str, str], *, in_full: bool = False) -> list[str]:
    """The rows that differ, or all of them, and how many there are of each change."""
    lines = [
        f"{row.change}: {_layers(row.a) or '-'} | {_layers(row.b) or '-'}"
        for row in rows
        if in_full or row.change != "same"
    ]
    counts = Counter(row.change for row in rows)
    summary = ", ".join(f"{counts[change]} {change}" for change in CHANGES if counts[change])
    return [*lines, f"A is {names[0]}, B is {names[1]}; groups of layers with the same ONNX nodes: {summary}"]


def _layers(layers: Sequence[EngineLayer]) -> str:
    return " + ".join(
        f"{layer.name} ({_format_types(layer.inputs)} -> {_format_types(layer.outputs)})" for layer in layers
    )


def _format_types(tensors: Iterable[Any]) -> str:
    return ",".join(dict.fromkeys(one.type or "?" for one in tensors)) or "?"


def totals_table(a: EngineTotals, b: EngineTotals) -> list[tuple[str, str, str]]:
    """The sums of both engines, a row each, for `display.table`."""
    rows = [("layers", str(a.layers), str(b.layers)), ("conversions", str(a.conversions), str(b.conversions))]
    kinds = dict.fromkeys((*a.products, *b.products))
    rows += [(f"products in {kind}", str(a.products.get(kind, 0)), str(b.products.get(kind, 0))) for kind in kinds]
    rows.append(("bytes moved", f"{a.bytes_moved:,}", f"{b.bytes_moved:,}"))
    if a.milliseconds is not None and b.milliseconds is not None:
        rows.append(("ms", f"{a.milliseconds:.3f}", f"{b.milliseconds:.3f}"))
    return rows
