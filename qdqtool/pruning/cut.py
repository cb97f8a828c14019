# SPDX-License-Identifier: Apache-2.0
"""What is left of each tensor when some channels go: which places of each axis. Nothing is edited here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qdqtool.engine.macs import multiply_adds
from qdqtool.graph.channels.atoms import NONE, Int64
from qdqtool.graph.channels.relayout import padded
from qdqtool.pruning.channel_groups import ChannelMap
from qdqtool.pruning.weight_axes import ChannelAxis

# Axis of a tensor or of a constant -> which of its places stay, sorted.
Kept = Mapping[int, Int64]


class Cut:
    """The tensors of a graph without some channels.

    Attributes:
        channels: of the graph as it is.
        gone: bool [atoms], which classes go.
    """

    def __init__(self, channels: ChannelMap, classes: Iterable[int]) -> None:
        self.channels = channels
        self.gone = np.zeros(channels.atoms.size, bool)
        self.gone[list(classes)] = True
        self._kept: dict[str, dict[int, Int64]] = {}

    def kept(self, name: str) -> Kept:
        """The places that stay, of each axis on which some go; empty for a tensor that stays whole."""
        name = self.channels.view.root(name)
        if name not in self._kept:
            self._kept[name] = self._find(name)
        return self._kept[name]

    def _find(self, name: str) -> dict[int, Int64]:
        atoms, shape = self.channels.atoms, self.channels.atoms.shape(name)
        if shape is None or not atoms.has(name):
            return {}
        found = padded(atoms.find(atoms.of(name)), len(shape))
        gone, open_ = self.gone[found], found == NONE
        if not gone.any():
            return {}
        kept: dict[int, Int64] = {}
        for axis in range(found.ndim):
            others = tuple(place for place in range(found.ndim) if place != axis)
            cut = (gone | open_).all(axis=others) & gone.any(axis=others)
            if found.shape[axis] > 1 and cut.any():
                kept[axis] = np.flatnonzero(~cut)
        return kept

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a tensor will have."""
        before, kept = self.channels.atoms.shape(name) or (), self.kept(name)
        return tuple(len(kept[axis]) if axis in kept else size or 0 for axis, size in enumerate(before))

    def along(self, axis: ChannelAxis) -> Int64 | None:
        """The places of a weight's axis that stay; None where all do."""
        kept = self.kept(axis.tensor).get(axis.tensor_axis)
        shape = self.channels.atoms.shape(axis.tensor)
        if kept is None or shape is None or axis.groups == 1:
            return kept
        each = (shape[axis.tensor_axis] or 0) // axis.groups
        return kept[kept < each]

    def weight_shape(self, axis: ChannelAxis) -> tuple[int, ...]:
        """The shape that the constant of a weight axis will have."""
        view, use = self.channels.view, axis.use
        shape = list(view.shape(use.node.inputs[use.index]) or ())
        for other in self.channels.axes:
            if other.use == use and (left := self.along(other)) is not None:
                shape[other.axis] = len(left)
        return tuple(shape)

    def multiply_adds(self) -> int:
        """Multiply-adds of the operators that make channels, for one input of the first run."""
        return sum(self.operator_macs().values())

    def operator_macs(self) -> dict[str, int]:
        """The same of each operator, by its first output."""
        found: dict[str, int] = {}
        for axis in self.channels.axes:
            node = axis.use.node
            if axis.role == "made":
                first, output = self.shape(node.inputs[0]), self.shape(node.outputs[0])
                found[node.key] = multiply_adds(node, first, self.weight_shape(axis), output)
        return found
