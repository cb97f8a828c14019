# SPDX-License-Identifier: Apache-2.0
"""Outputs whose rows a TopK has picked: compared as sets, as a small error may exchange two rows. Measures nothing.

Detectors by queries give the best few hundred of their boxes in the order of a score; a pick among tokens orders every
row after it alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.heads import nodes_behind, outputs_of
from qdqtool.graph.view import GraphView
from qdqtool.match.sizes import gives_sizes

Array = npt.NDArray[Any]
_PICKS = "TopK"
_MOST = 1024  # rows that are matched: the distances of all pairs are in memory


@dataclass(frozen=True)
class PickedRows:
    """Outputs of one graph that share an order of rows."""

    outputs: tuple[str, ...]
    rows: int

    def in_order_of(self, wanted: Mapping[str, Array], got: Mapping[str, Array]) -> dict[str, Array]:
        """Those of `got` that have these rows, put into the order of `wanted`; each sample by itself.

        A row goes to the nearest one of all outputs together, the nearest pair of all first (greedy). An output counts
        as much as another one, whatever its unit and width.
        """
        axes = {name: axis for name in self.outputs if (axis := self._axis(wanted, got, name)) is not None}
        if len(set(axes.values())) != 1:
            return {}
        axis = next(iter(axes.values()))
        samples = [(index,) for index in range(wanted[next(iter(axes))].shape[0])] if axis else [()]
        made = {name: np.array(got[name]) for name in axes}
        for at in samples:
            order = _matched(*_features([(wanted[name][at], got[name][at]) for name in axes]))
            for name in axes:
                made[name][at] = got[name][at][order]
        return made

    def _axis(self, wanted: Mapping[str, Array], got: Mapping[str, Array], name: str) -> int | None:
        """Which axis holds the rows: the one after the batch, or the first one where there is no batch."""
        if name not in wanted or name not in got or np.shape(wanted[name]) != np.shape(got[name]):
            return None
        shape = np.shape(wanted[name])
        return next((axis for axis in (1, 0) if len(shape) > axis and shape[axis] == self.rows), None)


def picked_rows(view: GraphView) -> tuple[PickedRows, ...]:
    """The outputs after each TopK whose number is constant; an output after several belongs to the last of them."""
    found, taken = [], set[str]()
    picks = [node for node in view.nodes if node.op == _PICKS and len(node.inputs) > 1]
    for node in sorted(picks, key=lambda node: (-node.level, node.index)):
        count = view.array(node.inputs[1])
        if count is None or count.size != 1 or not 1 < int(count.reshape(())) <= _MOST:
            continue
        reached = set(outputs_of(node))
        for one in nodes_behind(view, outputs_of(node), lambda one: [] if gives_sizes(one) else outputs_of(one)):
            reached.update(() if gives_sizes(one) else outputs_of(one))
        outputs = tuple(name for name in dict.fromkeys(view.outputs) if view.root(name) in reached - taken)
        taken.update(map(view.root, outputs))
        if outputs:
            found.append(PickedRows(outputs, int(count.reshape(()))))
    return tuple(found)


def in_order(groups: Sequence[PickedRows], wanted: Mapping[str, Array], got: Mapping[str, Array]) -> dict[str, Array]:
    """All of `got`, the rows of picked outputs in the order of `wanted`."""
    made = dict(got)
    for group in groups:
        made.update(group.in_order_of(wanted, got))
    return made


def _features(pairs: Sequence[tuple[Array, Array]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What rows are matched by: values of both in units of the reference's size; what is not finite is far off."""
    ours, theirs = [], []
    for one, other in pairs:
        flat, others = (np.asarray(value, np.float64).reshape(len(value), -1) for value in (one, other))
        flat, others = (np.nan_to_num(value, nan=1e30, posinf=1e30, neginf=-1e30) for value in (flat, others))
        unit = max(float(np.sqrt(np.mean(np.square(flat)))), 1e-30) * flat.shape[1] ** 0.5
        ours.append(flat / unit)
        theirs.append(others / unit)
    return np.concatenate(ours, 1), np.concatenate(theirs, 1)


def _matched(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """For each row of ours one of theirs, each once: nearest pairs first, equal ones in the order of rows."""
    squares = np.square(ours).sum(1)[:, None] + np.square(theirs).sum(1)[None] - 2 * ours @ theirs.T
    count, order = len(ours), np.full(len(ours), -1, np.int64)
    free = np.ones(len(theirs), bool)
    left = count
    for pair in np.argsort(squares, axis=None, kind="stable"):
        row, other = divmod(int(pair), count)
        if order[row] < 0 and free[other]:
            order[row], free[other] = other, False
            left -= 1
            if not left:
                break
    return order
