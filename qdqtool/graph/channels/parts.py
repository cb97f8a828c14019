# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor holds the values of another one, followed through Concat, Slice and kin.

Where a size or an index is not known the axis is given up: a part is never said to be smaller than it is. Main graph
only; nothing is run, no weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdqtool.graph.channels.sizes import END, IN_PLACE, TensorSizes
from qdqtool.graph.view import Node, Use

# Axis -> first and last index (exclusive) along it; an axis that is not in it is covered in full.
Part = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ChannelStep:
    """One output that holds values of the part."""

    tensor: str
    part: Part
    cut: bool = False


class PartFollower:
    """Follows parts of the tensors of one graph."""

    def __init__(self, sizes: TensorSizes) -> None:
        self.sizes = sizes
        self._ends: dict[str, list[int | None]] = {}

    def follow(self, use: Use, part: Part) -> list[ChannelStep]:
        """The outputs of a node that hold values of a part of the input that is read at `use`."""
        node, outputs = use.node, [name for name in use.node.outputs if name]
        if node.op == "Concat":
            return [ChannelStep(node.outputs[0], self._joined(use, part))]
        if node.op == "Slice":
            return self._sliced(node, part) if use.index == 0 else []
        if node.op == "Split":
            return self._split(node, part) if use.index == 0 else []
        if node.op == "Gather":
            return self._gathered(node, part) if use.index == 0 else []
        if node.op in IN_PLACE:
            return [ChannelStep(name, part) for name in outputs]
        moved = {"Transpose": self._transposed, "Reshape": self._reshaped, "GatherElements": self._picked}
        return [ChannelStep(name, moved[node.op](node, part) if node.op in moved else ()) for name in outputs]

    def _joined(self, use: Use, part: Part) -> Part:
        node = use.node
        axis = self.sizes.axis(node, node.outputs[0])
        rest = tuple(span for span in part if span[0] != axis)
        if axis is None:
            return ()
        end = self._ends_of(node, axis)[use.index]
        if end is None:
            return rest
        width = self.sizes.size(node.inputs[use.index], axis) or 0
        offset = end - width
        first, last = _span(part, axis) or (0, width)
        return tuple(sorted((*rest, (axis, first + offset, last + offset))))

    def _ends_of(self, node: Node, axis: int) -> list[int | None]:
        """Where each input of a Concat ends in its output; None where a size up to there is unknown."""
        if node.key not in self._ends:
            ends: list[int | None] = []
            end: int | None = 0
            for name in node.inputs:
                size = self.sizes.size(name, axis)
                end = None if end is None or size is None else end + size
                ends.append(end)
            self._ends[node.key] = ends
        return self._ends[node.key]

    def _sliced(self, node: Node, part: Part) -> list[ChannelStep]:
        bounds = self.sizes.bounds(node)
        if bounds is None:
            return [ChannelStep(node.outputs[0], (), cut=True)]
        cut = False
        for axis, first, last, step in bounds:
            kept = _overlap(part, axis, first, last, self.sizes.size(node.inputs[0], axis))
            if kept is None:
                return []
            part, lost = kept
            cut = cut or lost or step != 1
            if step != 1:
                part = tuple(span for span in part if span[0] != axis)
        return [ChannelStep(node.outputs[0], part, cut)]

    def _split(self, node: Node, part: Part) -> list[ChannelStep]:
        axis, pieces = self.sizes.axis(node, node.inputs[0], 0), self.sizes.pieces(node)
        if axis is None or pieces is None:
            return [ChannelStep(name, (), cut=True) for name in node.outputs if name]
        steps, first = [], 0
        for name, size in zip(node.outputs, pieces, strict=True):
            kept = _overlap(part, axis, first, first + size, sum(pieces))
            if name and kept is not None:
                steps.append(ChannelStep(name, kept[0], kept[1]))
            first += size
        return steps

    def _gathered(self, node: Node, part: Part) -> list[ChannelStep]:
        """Chosen indices are known where they are constant; others choose boxes, not channels."""
        output, axis = node.outputs[0], self.sizes.axis(node, node.inputs[0], 0)
        chosen = self.sizes.view.array(node.inputs[1])
        rank = None if chosen is None else chosen.ndim
        if axis is None or chosen is None or rank is None:
            return [ChannelStep(output, ())]
        span, size = _span(part, axis), self.sizes.size(node.inputs[0], axis)
        indices = chosen.reshape(-1).astype(np.int64)
        if (indices < 0).any() and size is None:
            return [ChannelStep(output, (), cut=True)]
        indices = np.where(indices < 0, indices + (size or 0), indices)
        if span is not None and not ((indices >= span[0]) & (indices < span[1])).any():
            return []
        rest = tuple((a + (rank - 1) * (a > axis), lo, hi) for a, lo, hi in part if a != axis)
        every = set(range(*span)) if span is not None else set(range(size)) if size is not None else {-1}
        return [ChannelStep(output, rest if rank <= 1 else (), cut=not every <= set(indices.tolist()))]

    def _transposed(self, node: Node, part: Part) -> Part:
        order = self.sizes.order(node)
        return () if order is None else tuple(sorted((order.index(axis), lo, hi) for axis, lo, hi in part))

    def _reshaped(self, node: Node, part: Part) -> Part:
        """An axis stays itself where its size stays and only the batch lies before it, or nothing after it."""
        target, rank = self.sizes.target(node), self.sizes.rank(node.inputs[0])
        kept = []
        for axis, lo, hi in part if target else ():
            size = self.sizes.size(node.inputs[0], axis)
            if axis <= 1 and axis < len(target) and size is not None and target[axis] in (0, size):
                kept.append((axis, lo, hi))
            elif rank is not None and axis == rank - 1 and size is not None and target[-1] == size:
                kept.append((len(target) - 1, lo, hi))
        return tuple(kept)

    def _picked(self, node: Node, part: Part) -> Part:
        axis = self.sizes.axis(node, node.inputs[0], 0)
        return () if axis is None else tuple(span for span in part if span[0] != axis)


def _span(part: Part, axis: int) -> tuple[int, int] | None:
    return next(((lo, hi) for own, lo, hi in part if own == axis), None)


def _overlap(part: Part, axis: int, first: int, last: int, size: int | None) -> tuple[Part, bool] | None:
    """What a cut from first to last leaves of a part, and whether it loses some; None where nothing is left."""
    span = _span(part, axis)
    if span is None:
        return part, first > 0 or last < (END if size is None else size)
    lo, hi = max(span[0], first), min(span[1], last)
    if lo >= hi:
        return None
    rest = tuple(own for own in part if own[0] != axis)
    whole = lo == first and hi == last
    return rest if whole else tuple(sorted((*rest, (axis, lo - first, hi - first)))), (lo, hi) != span
