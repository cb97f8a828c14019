# SPDX-License-Identifier: Apache-2.0
"""Tensors inside a decoder of queries in the order of the reference: rows by the token that a TopK picked them for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.heads import nodes_behind, outputs_of
from qdqtool.graph.shapes import followed_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.simulation.row_axes import Axes, RowAxes

Array = npt.NDArray[Any]
_PICKS = "TopK"


def places_of(node: Node) -> str:
    """What says which tokens a TopK picks; "" for another operator."""
    return node.outputs[1] if node.op == _PICKS and len(node.outputs) > 1 else ""


class RowOrder:
    """The order of rows after each TopK of one graph, batch by batch.

    Attributes:
        rows: how many were picked by the reference so far.
        same: how many of these the other model picked, too.
    """

    def __init__(self, view: GraphView, names: Mapping[str, tuple[str, str]], taken: Collection[str] = ()) -> None:
        """Take the picks whose places both models give."""
        self.view = view
        given = {one for one, other in names.values() if one == other}
        self._tensors = {other: one for one, other in names.values() if view.root(one) not in taken}
        self._picks = [node for node in view.nodes if places_of(node) in given]
        self._followed: dict[str, tuple[Mapping[str, tuple[int, ...]], RowAxes]] = {}
        self.rows = self.same = 0

    @cached_property
    def behind(self) -> frozenset[str]:
        """The tensors of the reference that `in_order` reads or may change: what the picks make, and all behind."""
        nodes = [node for pick in self._picks for node in nodes_behind(self.view, outputs_of(pick), outputs_of)]
        return frozenset(name for node in (*self._picks, *nodes) for name in outputs_of(node))

    def in_order(
        self,
        batch: Mapping[str, Array],
        ours: Mapping[str, Array],
        theirs: Mapping[str, Array],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> dict[str, Array]:
        """All of `theirs`, rows in the order of `ours` wherever they are followed.

        A row whose token the reference did not pick stands where a row of the reference's has none, in order.
        """
        made = dict(theirs)
        for pick in self._picks:
            places = places_of(pick)
            orders = self._orders(ours[places], theirs[places])
            if orders is None:
                continue
            axes = self._axes(pick, batch, shapes)
            for other, one in self._tensors.items():
                if other in theirs and axes.of(one):
                    made[other] = _moved(made[other], axes.of(one), orders)
        return made

    def _orders(self, ours: Array, theirs: Array) -> Array | None:
        """Sample by sample which row of theirs each row of ours is, [N, rows]; None where no row is looked for."""
        if ours.shape != theirs.shape or ours.ndim not in (1, 2) or ours.shape[-1] < 2:
            return None
        pairs = zip(np.atleast_2d(ours), np.atleast_2d(theirs), strict=True)
        found = np.stack([self._order(*pair) for pair in pairs])
        return None if (found == np.arange(found.shape[1])).all() else found

    def _order(self, ours: Array, theirs: Array) -> npt.NDArray[np.int64]:
        where = {int(token): row for row, token in enumerate(theirs)}
        order = np.array([where.pop(int(token), -1) for token in ours], np.int64)
        self.rows += len(order)
        self.same += int((order >= 0).sum())
        order[order < 0] = sorted(where.values())
        return order

    def _axes(self, pick: Node, batch: Mapping[str, Array], given: Mapping[str, tuple[int, ...]]) -> RowAxes:
        """Where the rows of a pick are, followed once for the shapes of a batch."""
        inputs = {name: array.shape for name, array in batch.items()}
        if self._followed.get(pick.key, (None,))[0] != inputs:
            shapes = {
                name: tuple(size for size in shape if size is not None)
                for name, shape in followed_shapes(self.view, inputs).items()
                if None not in shape
            }
            shapes.update(given)
            rows = given[places_of(pick)][-1]
            self._followed[pick.key] = inputs, RowAxes(self.view, pick, rows, shapes)
        return self._followed[pick.key][1]


def _moved(array: Array, axes: Axes, orders: Array) -> Array:
    """An array whose rows are put into the order of each sample, along every axis that holds them.

    Samples are along the first axis, alone or together with what stands before the rows, such as heads; else there is
    one sample, or the array stays as it is.
    """
    count = len(orders)
    if count == 1:
        for axis in sorted(axes):
            array = np.take(array, orders[0], axis=axis)
        return array
    if 0 in axes or len(array) % count:
        return array
    parts = np.split(array, count)
    return np.concatenate([_moved(part, axes, orders[at : at + 1]) for at, part in enumerate(parts)])
