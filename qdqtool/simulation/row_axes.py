# SPDX-License-Identifier: Apache-2.0
"""Which axes of which tensors hold the rows that a TopK picked, so that each row can be found again in another model.

A decoder of queries computes alike for every row: if two models pick the same tokens in another order, what they
compute differs by that order alone. It is followed operator by operator; where one does not treat rows alike, such as
an Add with numbers of their own for the first and the second row, rows after it are no longer taken for the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qdqtool.graph.channels.arguments import integers, permutation
from qdqtool.graph.channels.sizes import IN_PLACE
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.rule_files import operator_set

Shapes = Mapping[str, tuple[int, ...]]
Axes = frozenset[int]
# Each place in the row is computed from all of them along an axis, whichever order they have.
_ALONG = frozenset({"Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "LpNormalization"})
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf"})
_ALIKE = (IN_PLACE | _ALONG | _COMPARING | operator_set("act")) - {"BatchNormalization"}  # whose gains are per channel


class RowAxes:
    """The rows of one TopK in the tensors of a graph.

    Attributes:
        axes: tensor -> the axes that hold them; tensors without such rows, or with lost ones, are left out.
        lost: tensors that depend on the rows and are no longer known to treat them alike.
    """

    def __init__(self, view: GraphView, pick: Node, rows: int, shapes: Shapes) -> None:
        """Follow the rows from a TopK on."""
        self.view, self.rows, self.shapes = view, rows, shapes
        self.axes: dict[str, Axes] = {}
        self.lost = set[str]()
        axis = attribute(pick, "axis", -1)
        for name in pick.outputs:
            rank = len(shapes.get(name, ()))
            if name and isinstance(axis, int) and rank and shapes[name][axis] == rows:
                self.axes[name] = frozenset({axis % rank})
        for node in sorted(view.nodes, key=lambda node: (node.level, node.index)):
            if node.key != pick.key:
                self._follow(node)

    def of(self, name: str) -> Axes:
        """The axes of a tensor that hold the rows; none for a tensor that has no part in them."""
        return self.axes.get(self.view.root(name), frozenset())

    def _follow(self, node: Node) -> None:
        if node.op in operator_set("sizes"):
            return
        read = [self.view.root(name) for name in node.inputs if name]
        touched = any(name in self.axes for name in read)
        if any(name in self.lost for name in read) or (touched and node.op == "TopK"):
            self.lost.update(filter(None, node.outputs))
        elif touched:
            self._carry(node)

    def _carry(self, node: Node) -> None:
        known = all(name in self.shapes for name in (*map(self.view.root, filter(None, node.inputs)), *node.outputs))
        rule = _rule_of(node.op)
        for name in filter(None, node.outputs):
            found = rule(self, node, name) if known and rule is not None else None
            if found is None or any(self.shapes[name][axis] != self.rows for axis in found):
                self.lost.add(name)
            elif found:
                self.axes[name] = found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that a node reads or makes."""
        return self.shapes[self.view.root(name)]


def _aligned(rows: RowAxes, names: list[str], rank: int, last: int = 0) -> Axes | None:
    """The rows of operands that are broadcast against each other; None where one of them has other values for each."""
    found = {axis + rank - len(rows.shape(name)) for name in names for axis in rows.of(name)}
    found = {axis for axis in found if axis < rank - last}
    for name in names:
        shape, shift = rows.shape(name), rank - len(rows.shape(name))
        own = {axis + shift for axis in rows.of(name)}
        if any(axis >= shift and axis not in own and shape[axis - shift] != 1 for axis in found):
            return None
    return frozenset(found)


def _in_place(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """A value made of those at its own place, or along an axis of all: alike for every order of rows."""
    return _aligned(rows, [name for name in node.inputs if name], len(rows.shape(out)))


def _product(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """A matrix product: rows of the left operand, columns of the right one, and the axes before."""
    left, right = node.inputs[:2]
    ranks = len(rows.shape(left)), len(rows.shape(right))
    if min(ranks) < 2 or (node.op == "Gemm" and (attribute(node, "transA", 0) or rows.of(right))):
        return None
    if node.op == "Gemm":
        return rows.of(left) if rows.of(left) == {0} and not any(map(rows.of, node.inputs[2:])) else None
    if (ranks[0] - 1 in rows.of(left)) != (ranks[1] - 2 in rows.of(right)):
        return None  # a sum over the rows, each with a weight of its own
    rank = len(rows.shape(out))
    before = _aligned(rows, [left, right], rank, 2)
    own = {rank - 2} if ranks[0] - 2 in rows.of(left) else set[int]()
    own |= {rank - 1} if ranks[1] - 1 in rows.of(right) else set[int]()
    return None if before is None else before | own


def _shaped(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """The same values in the same order: an axis stays one where as much stands before it as behind."""
    if any(map(rows.of, node.inputs[1:])):
        return None
    given, made, found = rows.shape(node.inputs[0]), rows.shape(out), set[int]()
    for axis in rows.of(node.inputs[0]):
        before = math.prod(given[:axis])
        places = [at for at, size in enumerate(made) if size == rows.rows and math.prod(made[:at]) == before]
        if not places:
            return None
        found.add(places[0])
    return frozenset(found)


def _turned(rows: RowAxes, node: Node, out: str) -> Axes | None:
    order = permutation(node, len(rows.shape(out)))
    return None if order is None else frozenset(list(order).index(axis) for axis in rows.of(node.inputs[0]))


def _spread(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """Expand and Tile: rows stay where they are, and are not repeated; a size that follows from rows is none."""
    shift = len(rows.shape(out)) - len(rows.shape(node.inputs[0]))
    return None if any(map(rows.of, node.inputs[1:])) else frozenset(axis + shift for axis in rows.of(node.inputs[0]))


def _taken(rows: RowAxes, node: Node, out: str) -> Axes | None:
    data, places = node.inputs[:2]
    axis, rank = attribute(node, "axis", 0), len(rows.shape(data))
    if not isinstance(axis, int) or axis % rank in rows.of(data):
        return None  # places among the rows themselves
    wide = len(rows.shape(places))
    kept = {at if at < axis % rank else at + wide - 1 for at in rows.of(data)}
    return frozenset(kept | {axis % rank + at for at in rows.of(places)})


def _taken_each(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """GatherElements and GatherND: what comes out lies as the places do."""
    data, places = node.inputs[:2]
    wide = len(rows.shape(places)) - (node.op == "GatherND")
    return None if rows.of(data) or any(axis >= wide for axis in rows.of(places)) else rows.of(places)


def _joined(rows: RowAxes, node: Node, out: str) -> Axes | None:
    axis, rank = attribute(node, "axis", 0), len(rows.shape(out))
    owned = {rows.of(name) for name in node.inputs}
    (one,) = owned if len(owned) == 1 else (frozenset({-1}),)
    return None if -1 in one or not isinstance(axis, int) or axis % rank in one else one


def _cut(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """Split and Slice: rows stay where no row is left out."""
    return None if any(map(rows.of, node.inputs[1:])) else rows.of(node.inputs[0])


def _reduced(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """A sum, mean or extreme along axes: rows that it does not go along stay."""
    given, made = rows.shape(node.inputs[0]), rows.shape(out)
    listed = integers(node, 1, "axes", rows.view.array)
    if listed is None or any(map(rows.of, node.inputs[1:])):
        return None
    along = {axis % len(given) for axis in listed} or set(range(len(given)))
    kept = [axis for axis in range(len(given)) if axis not in along]
    stay = rows.of(node.inputs[0]) - along
    return frozenset(stay if len(made) == len(given) else {kept.index(axis) for axis in stay})


def _sampled(rows: RowAxes, node: Node, out: str) -> Axes | None:
    """GridSample: what comes out lies as the places do, after the axis of channels."""
    data, places = node.inputs[:2]
    last = len(rows.shape(places)) - 1
    return None if rows.of(data) or rows.of(places) & {0, last} else frozenset(axis + 1 for axis in rows.of(places))


_RULES: Mapping[str, Callable[[RowAxes, Node, str], Axes | None]] = {
    **dict.fromkeys(("MatMul", "Gemm"), _product),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"), _shaped),
    **dict.fromkeys(("Expand", "Tile"), _spread),
    **dict.fromkeys(("GatherElements", "GatherND"), _taken_each),
    **dict.fromkeys(("Split", "Slice"), _cut),
    "Transpose": _turned,
    "Gather": _taken,
    "Concat": _joined,
    "GridSample": _sampled,
}


def _rule_of(op: str) -> Callable[[RowAxes, Node, str], Axes | None] | None:
    """What an operator does with rows; None for one that is not followed."""
    if op in _ALIKE:
        return _in_place
    return _reduced if op.startswith("Reduce") else _RULES.get(op)
