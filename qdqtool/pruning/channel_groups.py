# SPDX-License-Identifier: Apache-2.0
"""Groups: channels that lie on the same axes of the same weights. What goes together of them is one channel class.

A class that is alone on its axes joins a group of the operator that makes it, as in a shuffle's remainders.

A class is what `graph/channels` finds to be one channel, made wider here: what goes must leave every tensor a
rectangle. Which classes go is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.channels.arguments import slices_of
from qdqtool.graph.channels.atoms import NONE, PINNED, ChannelAtoms, Int64
from qdqtool.graph.channels.couplings import couple_graph
from qdqtool.graph.view import GraphView, Node
from qdqtool.options import compile_pattern
from qdqtool.pruning.probe import TensorFacts
from qdqtool.pruning.shuffles import ChannelShuffle, find_shuffles
from qdqtool.pruning.weight_axes import ChannelAxis, weight_axes

_COUPLED = "it must stay together with channels that cannot be removed"


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels that lie on the same axes of the same weights.

    Attributes:
        name: of the first operator that makes them, with a number after it where it makes several groups.
        classes: int64, each one a channel of the group as `ChannelMap.atoms` numbers it.
        axes: every weight axis on which they lie.
    """

    name: str
    classes: Int64
    axes: tuple[ChannelAxis, ...]

    @property
    def made(self) -> tuple[ChannelAxis, ...]:
        """The axes along which the weights make them."""
        return tuple(axis for axis in self.axes if axis.role == "made")


@dataclass(frozen=True, eq=False)
class ChannelMap:
    """Which channels of a graph are which, and which of them can go.

    Attributes:
        view: of the graph.
        atoms: the atoms of its tensors, as `graph/channels` has them.
        axes: every weight axis of the graph.
        groups: in the order of the graph.
        pinned: name of an operator -> why (some of) the channels that it makes must stay.
        channels: how many channels weighted operators make.
        prunable: how many of them are in a group.
        excluded: the expressions by which operators were left out.
        alone: the classes of each tensor whose classes can all go, though one must stay.
        gathered: shuffles that become a Gather where they lose channels.
    """

    view: GraphView
    atoms: ChannelAtoms
    axes: tuple[ChannelAxis, ...]
    groups: tuple[ChannelGroup, ...]
    pinned: Mapping[str, str]
    channels: int
    prunable: int
    excluded: tuple[str, ...] = ()
    alone: tuple[tuple[int, ...], ...] = ()
    gathered: tuple[ChannelShuffle, ...] = ()


def find_groups(view: GraphView, facts: TensorFacts, exclude: Sequence[str] = ()) -> ChannelMap:
    """Find which channels go together.

    Raises:
        QdqError: an expression of `exclude` fits nothing, or is none.
    """

    def value(name: str) -> npt.NDArray[np.generic] | None:
        return view.array(name) if view.is_constant(name) else facts.fixed.get(view.root(name))

    atoms = ChannelAtoms(view, facts.shapes, value, removal=True)
    couple_graph(atoms)
    nodes = sorted(view.nodes, key=lambda node: (node.level, node.index))
    axes = tuple(axis for node in nodes for axis in weight_axes(atoms, node))
    _exclude(atoms, nodes, exclude)
    _pin_what_cannot_change(atoms, nodes)
    gathered = _close_shuffled(atoms, find_shuffles(atoms, nodes))
    groups = _grouped(atoms, axes)
    found = _map(view, atoms, axes, groups)
    return replace(found, excluded=tuple(exclude), alone=_alone(atoms, groups), gathered=gathered)


def axis_atoms(atoms: ChannelAtoms, axis: ChannelAxis) -> Int64:
    """The class of each index of a weight's axis."""
    row = atoms.row(axis.tensor, axis.tensor_axis)
    if row is None:
        return np.empty(0, np.int64)
    classes: Int64 = row.atoms
    if axis.groups > 1 and len(classes) % axis.groups == 0:
        first: Int64 = classes.reshape(axis.groups, -1)[0]
        return first
    return classes


# ---------------------------------------------------------------------- what must stay


def _exclude(atoms: ChannelAtoms, nodes: Iterable[Node], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        found = compile_pattern("--exclude", pattern)
        names = [
            name
            for node in nodes
            for name in node.outputs
            if name and (found.search(node.proto.name) or found.search(name))
        ]
        if not names:
            raise QdqError("--exclude", f"{pattern} matches no operator or tensor", "see the names in --dry-run --json")
        for name in names:
            atoms.pin(atoms.of(name), f"--exclude {pattern}")


def _pin_what_cannot_change(atoms: ChannelAtoms, nodes: Iterable[Node]) -> None:
    """Operators whose sizes or indices are computed, or step over channels: no constant says what goes."""
    for node in nodes:
        names = {"Slice": (1, 2, 3, 4), "Split": (1,), "Gather": (1,), "Pad": (1, 3)}.get(node.op)
        if names is None or not node.inputs[0]:
            continue
        array = atoms.of(node.inputs[0])
        unknown = any(index < len(node.inputs) and node.inputs[index] and atoms.values(node.inputs[index]) is None
                      for index in names)  # fmt: skip
        stepped = node.op == "Slice" and _steps_over(atoms, node, array)
        if array.size > 1 and stepped:
            atoms.pin(array, f"Slice {node.name} takes every n-th of them")
        if unknown and _is_cut_along_channels(atoms, node, array):
            atoms.pin(array, f"{node.op} {node.name} computes at run time which it takes")


def _steps_over(atoms: ChannelAtoms, node: Node, array: Int64) -> bool:

    rows = slices_of(node, atoms.values) or []
    return any(step != 1 and -array.ndim <= axis < array.ndim and array.shape[axis] > 1 for axis, _, _, step in rows)


def _is_cut_along_channels(atoms: ChannelAtoms, node: Node, array: Int64) -> bool:
    before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
    if before is None or after is None or len(before) != len(after) or array.ndim != len(before):
        return array.size > 1
    return any(size > 1 and one != other for size, one, other in zip(array.shape, before, after, strict=True))


# ---------------------------------------------------------------------- rectangles


def _close_shuffled(atoms: ChannelAtoms, shuffles: Sequence[ChannelShuffle]) -> tuple[ChannelShuffle, ...]:
    """As `_close`, but without the ties of shuffles that would leave nothing of a tensor; those are given back."""
    start = atoms.saved()
    emptied = _close(atoms)
    if not emptied or not shuffles:
        return ()
    tied = atoms.saved()
    atoms.restore(start)
    if emptied <= _close(atoms, shuffles):  # whatever is done
        atoms.restore(tied)
        return ()
    freed = list(shuffles)
    for shuffle in shuffles:
        before, rest = atoms.saved(), [one for one in freed if one is not shuffle]
        if _close(atoms, rest):
            atoms.restore(before)
        else:
            freed = rest
    return tuple(freed)


def _close(atoms: ChannelAtoms, freed: Iterable[ChannelShuffle] = ()) -> set[str]:
    """Join classes until each tensor's lie along one axis, and pin those that are a whole tensor."""
    inner = {name for shuffle in freed for name in shuffle.between}
    names = [name for name in atoms.named() if atoms.of(name).size > 1 and name not in inner]
    emptied: set[str] = set()
    while True:
        before = atoms.find(np.arange(atoms.size))
        for name in names:
            _join_across(atoms, atoms.of(name))
        for name in atoms.named():
            found = np.unique(atoms.find(atoms.of(name)))
            found = found[found != NONE]
            if len(found) == 1 and found[0] != PINNED:
                atoms.pin(found, f"{name} would lose all its channels")
                emptied.update([name] if atoms.of(name).size > 1 else [])
        if np.array_equal(before, atoms.find(np.arange(atoms.size))):
            return emptied


def _join_across(atoms: ChannelAtoms, array: Int64) -> None:
    """Along the axis on which most places differ, all that lies at one place goes together."""
    found = atoms.find(array)
    wide = [axis for axis in range(found.ndim) if _varies(found, axis)]
    if len(wide) < 2:
        return
    places = {axis: len(np.unique(np.moveaxis(found, axis, 0).reshape(found.shape[axis], -1), axis=0)) for axis in wide}
    carrier = max(wide, key=lambda axis: (places[axis], -axis))
    rows = np.moveaxis(found, carrier, 0).reshape(found.shape[carrier], -1)
    atoms.union(rows.max(axis=1)[:, None], rows)


def _varies(found: Int64, axis: int) -> bool:
    first = np.take(found, [0], axis)
    return bool(((found != first) & (found != NONE) & (first != NONE)).any())


# ---------------------------------------------------------------------- groups


def _grouped(atoms: ChannelAtoms, axes: Sequence[ChannelAxis]) -> tuple[ChannelGroup, ...]:
    """Classes with the same weight axes; those on axes that nothing makes are left out."""
    where: dict[int, list[int]] = {}
    for number, axis in enumerate(axes):
        for found in np.unique(axis_atoms(atoms, axis)).tolist():
            if found > PINNED:
                where.setdefault(found, []).append(number)
    members: dict[tuple[int, ...], list[int]] = {}
    for found, numbers in where.items():
        if any(axes[number].role == "made" for number in numbers):
            members.setdefault(tuple(numbers), []).append(found)
    groups: list[ChannelGroup] = []
    names: dict[str, int] = {}
    for places, classes in sorted(_joined(members, axes).items()):
        own = tuple(axes[number] for number in places)
        name = next(axis.use.node.name for axis in own if axis.role == "made")
        names[name] = names.get(name, 0) + 1
        full = name if names[name] == 1 else f"{name}#{names[name]}"
        groups.append(ChannelGroup(full, np.array(sorted(classes), np.int64), own))
    return tuple(groups)


def _joined(
    members: Mapping[tuple[int, ...], list[int]], axes: Sequence[ChannelAxis]
) -> dict[tuple[int, ...], list[int]]:
    """Classes that are alone on their axes with the first group of several that is made and summed up likewise."""

    def kind(places: tuple[int, ...]) -> tuple[int, bool]:
        made = next(place for place in places if axes[place].role == "made")
        return made, any(axes[place].role == "read" for place in places)

    hosts: dict[tuple[int, bool], tuple[int, ...]] = {}
    for places, classes in sorted(members.items()):
        if len(classes) > 1:
            hosts.setdefault(kind(places), places)
    joined: dict[tuple[int, ...], tuple[set[int], list[int]]] = {}
    for places, classes in sorted(members.items()):
        host = hosts.get(kind(places), places) if len(classes) == 1 else places
        every, held = joined.setdefault(host, (set(host), []))
        every.update(places)
        held.extend(classes)
    return {tuple(sorted(every)): held for every, held in joined.values()}


def _alone(atoms: ChannelAtoms, groups: Sequence[ChannelGroup]) -> tuple[tuple[int, ...], ...]:
    """The classes of each tensor that holds no other; those of one group, of which one stays in any case, left out."""
    whole = [frozenset(group.classes.tolist()) for group in groups if len(group.classes) > 1]
    free = frozenset().union(*whole)
    found: dict[tuple[int, ...], None] = {}
    for name in atoms.named():
        classes = np.unique(atoms.find(atoms.of(name)))
        held = tuple(classes[classes != NONE].tolist())
        if held and free.issuperset(held) and not any(group.issubset(held) for group in whole):
            found[held] = None
    return tuple(found)


def _map(
    view: GraphView, atoms: ChannelAtoms, axes: tuple[ChannelAxis, ...], groups: tuple[ChannelGroup, ...]
) -> ChannelMap:
    free = np.concatenate([np.empty(0, np.int64), *(group.classes for group in groups if len(group.classes) > 1)])
    pinned: dict[str, str] = {}
    channels = prunable = 0
    for axis in axes:
        node = axis.use.node
        if axis.role != "made":
            continue
        row = axis_atoms(atoms, axis)
        kept = np.isin(row, free)
        channels += len(row) * axis.groups
        prunable += int(kept.sum()) * axis.groups
        if not kept.all():
            marked = atoms.of(axis.tensor).reshape(-1)
            reasons = [atoms.reason(atom) for atom in marked.tolist()]
            pinned[node.name] = next((reason for reason in reasons if reason), _COUPLED)
    return ChannelMap(view, atoms, axes, groups, pinned, channels, prunable)
