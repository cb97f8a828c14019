# SPDX-License-Identifier: Apache-2.0
"""Atoms: a channel of a tensor as (tensor, axis, index), and which atoms are one channel, by union-find.

Each tensor has an int64 array of atoms that is broadcastable to it (an axis of size 1: alike along it), so that a
channel shuffle or a flattened picture is followed value by value. What an operator contributes is in `couplings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.graph.channels import relayout
from qdqtool.graph.channels.arguments import Values
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.view import GraphView

Int64 = npt.NDArray[np.int64]

# Two atoms that every graph has. NONE: a value that goes with any channel, such as a zero that Pad fills in or the
# constant of an Add. PINNED: a value that is no channel's own; a channel that is one with it must stay as it is.
NONE, PINNED = 0, 1
MOST = 1 << 22  # elements of the array of one tensor


@dataclass(frozen=True, eq=False)
class ChannelRow:
    """The atoms along one axis of a tensor.

    Attributes:
        atoms: int64 [size], one for each index; NONE where nothing but NONE is met there.
        mixed: every atom of the tensor, sorted, where some index holds values of several; else empty.
    """

    atoms: Int64
    mixed: Int64


class ChannelAtoms:
    """The atoms of one graph and what is known of its tensors.

    Attributes:
        view: the graph.
        shapes: tensor -> shape; None for a free axis.
        values: the value of a tensor by its name, where it is known: constants, or more after a run.
        removal: whether channels are to be removed: a place that Pad fills in is a channel of its own then, not NONE,
            and the channels that DepthToSpace lays side by side go together.
    """

    def __init__(
        self, view: GraphView, shapes: Mapping[str, Shape], values: Values | None = None, *, removal: bool = False
    ) -> None:
        self.view = view
        self.shapes = shapes
        self.removal = removal
        self.values: Values = view.array if values is None else values
        self._reasons: dict[int, str] = {}
        self._arrays: dict[str, Int64] = {}
        self._parents = np.arange(2)
        self._readers: dict[str, tuple[Int64, Int64]] = {}

    @property
    def size(self) -> int:
        """How many atoms there are, NONE and PINNED among them."""
        return len(self._parents)

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor as far as it is known; of a constant its own."""
        root = self.view.root(name)
        return self.view.shape(root) if self.view.is_constant(root) else self.shapes.get(root)

    # ------------------------------------------------------------------ atoms of tensors

    def mark(self, name: str, axis: int) -> Int64 | None:
        """New atoms for the indices of one axis of a tensor; None where its size is not known."""
        shape = self.shape(name)
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if shape is None or size is None:
            return None
        fresh = self.fresh(size)
        self.set(name, fresh.reshape([size if place == axis else 1 for place in range(len(shape))]))
        return fresh

    def fresh(self, count: int) -> Int64:
        """So many new atoms, which no tensor holds yet."""
        made = np.arange(self.size, self.size + count)
        self._parents = np.concatenate([self._parents, made])
        return made

    def named(self) -> list[str]:
        """The tensors of which something was said, in the order in which it was."""
        return list(self._arrays)

    def set(self, name: str, atoms: Int64) -> None:
        """Say which atoms a tensor holds: an array that is broadcastable to it."""
        self._arrays[self.view.root(name)] = atoms

    def has(self, name: str) -> bool:
        """Whether something was said of a tensor."""
        return self.view.root(name) in self._arrays

    def of(self, name: str) -> Int64:
        """The atoms of a tensor as they were set: NONE of a constant, PINNED of what nothing was said of."""
        found = self._arrays.get(self.view.root(name))
        if found is not None:
            return found
        rank = len(self.shape(name) or ())
        return np.full((1,) * rank, NONE if not name or self.view.is_constant(self.view.root(name)) else PINNED)

    def row(self, name: str, axis: int) -> ChannelRow | None:
        """The channels along one axis of a tensor; None where its shape is not known."""
        shape = self.shape(name)
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if shape is None or size is None:
            return None
        atoms = self.find(relayout.padded(self.of(name), len(shape)))
        rows = np.moveaxis(atoms, axis, 0).reshape(atoms.shape[axis], -1)
        high = rows.max(axis=1, initial=NONE)
        low = np.where(rows == NONE, high[:, None], rows).min(axis=1, initial=self.size)
        mixed = np.unique(rows) if (low < high).any() else np.empty(0, np.int64)
        return ChannelRow(np.broadcast_to(high, size), mixed)

    # ------------------------------------------------------------------ union-find

    def find(self, atoms: Int64) -> Int64:
        """The least atom of each one's class."""
        found = self._parents[atoms]
        while (found != (above := self._parents[found])).any():
            found = above
        return found

    def union(self, atoms: Int64, others: Int64) -> None:
        """Make atoms one channel with others, pair by pair of arrays that broadcast; NONE goes with any."""
        one, other = np.broadcast_arrays(atoms, others)
        both = (one != NONE) & (other != NONE)
        met = np.unique(one[both] * np.int64(self.size) + other[both])  # a pair as one number: sorted much faster
        for own, another in zip((met // self.size).tolist(), (met % self.size).tolist(), strict=True):
            least, most = sorted((self._root(own), self._root(another)))
            self._parents[most] = least

    def united(self, arrays: Sequence[Int64]) -> Int64 | None:
        """An array in which what stands at one place is one channel; None where they do not fit, or it is too large."""
        try:
            result = np.zeros(np.broadcast_shapes(*(array.shape for array in arrays)), np.int64)
        except ValueError:
            return None
        if result.size > MOST:
            return None
        for array in arrays:
            self.union(result, array)
            result = np.where(result == NONE, array, result)
        return result

    def saved(self) -> tuple[Int64, dict[int, str]]:
        """What is known to be one channel by now, and why what is pinned is: to go back to by `restore`."""
        return self._parents.copy(), dict(self._reasons)

    def restore(self, saved: tuple[Int64, dict[int, str]]) -> None:
        """Forget what was said since `saved`, but for the atoms that tensors were given."""
        parents, reasons = saved
        self._parents = np.concatenate([parents, np.arange(len(parents), self.size)])
        self._reasons = dict(reasons)

    def _root(self, atom: int) -> int:
        at = atom
        while (above := int(self._parents[at])) != at:
            self._parents[at] = at = int(self._parents[above])
        return at

    def share(self, weight: str, read: Int64, made: Int64) -> None:
        """Operators that have one weight read and make the same channels: what goes from one goes from all."""
        others = self._readers.setdefault(weight, (read, made))
        for own, other in zip((read, made), others, strict=True):
            if own.shape == other.shape:
                self.union(own, other)
            else:
                self.pin(own)
                self.pin(other)

    def pin(self, atoms: Int64, reason: str = "") -> None:
        """Say that channels must stay as they are, and why; the first reason of a channel counts."""
        if reason:
            roots = np.unique(self.find(atoms))
            roots = roots[roots > PINNED]
            if roots.size:
                members = np.flatnonzero(np.isin(self.find(np.arange(self.size)), roots))
                self._reasons.update(dict.fromkeys(members.tolist(), reason))
        self.union(atoms, np.full((), PINNED))

    def reason(self, atom: int) -> str:
        """Why a pinned channel must stay; "" where it was made one with a channel that must."""
        return self._reasons.get(atom, "")

    def pinned(self, atoms: Int64) -> npt.NDArray[np.bool_]:
        """Which of some atoms must stay as they are."""
        found: npt.NDArray[np.bool_] = self.find(atoms) == PINNED
        return found
