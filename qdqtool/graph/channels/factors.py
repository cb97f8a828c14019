# SPDX-License-Identifier: Apache-2.0
"""Which channels must have one factor: dividing a class of channels by a positive number can be made up for exactly.

With a tensor divided per channel, an operator passes the factors on (Relu, pools, moves), needs them equal (Add), takes
them in with constants of its own (Conv, BatchNormalization), or allows none (Sigmoid). Atoms of one factor are joined;
those that allow none are pinned. Which constants may be written the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from qdqtool.graph.channels import relayout
from qdqtool.graph.channels.atoms import NONE, PINNED, ChannelAtoms, Int64
from qdqtool.graph.channels.couplings import COUPLINGS, Coupling, Found, couple_graph
from qdqtool.graph.view import Node, attribute
from qdqtool.rule_files import operator_set


@dataclass(frozen=True)
class Absorber:
    """How a node takes factors in.

    Attributes:
        reads: the axis of its first data input whose channels it multiplies; None where it passes no factor through.
        gives: the axis of its output whose channels it makes.
        index: which of its inputs holds the data.
    """

    reads: int | None
    gives: int
    index: int = 0


@dataclass(frozen=True, eq=False)
class FactorSite:
    """A node whose constants make up for factors: multiplied by those of `reads`, divided by those of `gives`.

    Attributes:
        key: its first output.
        reads: int64 [inputs], the class of each channel that it reads; empty where it takes none in.
        gives: int64 [outputs], the class of each channel that it makes.
    """

    key: str
    reads: Int64
    gives: Int64


@dataclass(frozen=True, eq=False)
class AddedConstant:
    """A constant that is added to a tensor, or compared with it, and must be divided like it.

    Attributes:
        key: first output of the node.
        index: which input the constant is.
        classes: int64, broadcastable to the node's output.
    """

    key: str
    index: int
    classes: Int64


@dataclass(frozen=True, eq=False)
class FactorClasses:
    """All classes of a graph, and where they are generated for.

    Attributes:
        atoms: the graph's; `atoms.find` gives the class of an atom, PINNED of one that must stay.
        sites: nodes that take factors in.
        added: constants that are divided.
    """

    atoms: ChannelAtoms
    sites: tuple[FactorSite, ...]
    added: tuple[AddedConstant, ...]


Absorbs = Callable[[Node], Absorber | None]
Writable = Callable[[Node, int], bool]

_SUMS = ("Add", "Sub", "Sum", "Mean", "Max", "Min")
_SAME = ("Relu", "LeakyRelu", "Identity", "Neg", "Abs", "Dropout")
_MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Transpose",
          "Concat", "Slice", "Split", "Gather")  # fmt: skip
_OVER_OTHERS = ("Resize", "Upsample", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")


def find_factor_classes(
    atoms: ChannelAtoms, absorbs: Absorbs, writable: Writable, coarse: Collection[str] = ()
) -> FactorClasses:
    """Couple a whole graph by factors."""
    rules = _Rules(atoms, absorbs, writable)
    couple_graph(atoms, rules.table())
    for key in sorted(coarse):
        atoms.pin(atoms.of(key))
    nodes = sorted(atoms.view.nodes, key=lambda node: (node.level, node.index))
    sites = [_site(atoms, node, rules.absorbed[node.key]) for node in nodes if node.key in rules.absorbed]
    added = [
        AddedConstant(node.key, index, atoms.find(atoms.of(node.key)))
        for node in nodes
        if node.op in _SUMS and not node.proto.domain and atoms.has(node.key)
        for index in _constants(atoms, node)
        if writable(node, index)
    ]
    return FactorClasses(atoms, tuple(sites), tuple(added))


def _site(atoms: ChannelAtoms, node: Node, how: Absorber) -> FactorSite:
    read = None if how.reads is None else atoms.row(node.inputs[how.index], how.reads)
    given = atoms.row(node.key, how.gives)
    assert given is not None
    return FactorSite(node.key, np.empty(0, np.int64) if read is None else read.atoms, given.atoms)


def _constants(atoms: ChannelAtoms, node: Node) -> list[int]:
    return [index for index, name in enumerate(node.inputs) if name and atoms.view.is_constant(atoms.view.root(name))]


class _Rules:
    """What each operator says of factors, in one graph."""

    def __init__(self, atoms: ChannelAtoms, absorbs: Absorbs, writable: Writable) -> None:
        self.atoms, self.absorbs, self.writable = atoms, absorbs, writable
        self.absorbed: dict[str, Absorber] = {}

    def table(self) -> dict[str, Coupling]:
        """A rule for each operator that is known; constants' own nodes say nothing."""
        pools = operator_set("pooling")
        rules: dict[str, Coupling] = {
            **dict.fromkeys(_SAME, _same),
            **dict.fromkeys(_SUMS, self._sum),
            **{op: COUPLINGS[op] for op in (*_MOVES, *_OVER_OTHERS, *sorted(pools)) if op in COUPLINGS},
            "PRelu": _slope,
            "Clip": _clip,
            "Mul": _mul,
            "Div": _div,
            "Pad": _pad,
            "MatMul": _mixing,
        }
        every = {node.op for node in self.atoms.view.nodes}
        return {op: partial(self._either, rules.get(op)) for op in sorted(every)}

    def _either(self, rule: Coupling | None, atoms: ChannelAtoms, node: Node) -> Found:
        """A node that takes factors in makes channels of its own; what no rule made is PINNED."""
        if atoms.view.is_constant(node.key):
            return None
        how = self.absorbs(node)
        found = self._absorbed(atoms, node, how) if how is not None else None
        if found is None and rule is not None:
            found = rule(atoms, node)
        return None if found is None else [_own(array) for array in found]

    def _absorbed(self, atoms: ChannelAtoms, node: Node, how: Absorber) -> Found:
        name = node.inputs[how.index]
        row = None if how.reads is None else atoms.row(name, how.reads)
        if (row is None and how.reads is not None) or len([one for one in node.outputs if one]) != 1:
            return None
        if atoms.mark(node.outputs[0], how.gives) is None:
            return None
        if row is None:
            atoms.pin(atoms.of(name))
        elif row.mixed.size:
            atoms.pin(row.mixed)
        self.absorbed[node.key] = how
        return [atoms.of(node.outputs[0])]

    def _sum(self, atoms: ChannelAtoms, node: Node) -> Found:
        """Values at one place have one factor, along axes that are broadcast too; constants are divided likewise."""
        constants = _constants(atoms, node)
        after = atoms.shape(node.outputs[0])
        others = [name for index, name in enumerate(node.inputs) if name and index not in constants]
        if after is None or not others:
            return None
        if node.op == "Mean" and constants:
            return None
        result = atoms.united([relayout.padded(atoms.of(name), len(after)) for name in others])
        if result is None:
            return None
        if not all(self.writable(node, index) for index in constants):
            atoms.pin(result)
        return [result]


def _own(array: Int64) -> Int64:
    """A tensor that holds nothing but values of constants, and is none itself, stays as it is."""
    return array if (array != NONE).any() else np.full_like(array, PINNED)


def _same(atoms: ChannelAtoms, node: Node) -> Found:
    """f(x / a) = f(x) / a for a > 0."""
    rest = [np.full((1,) * atoms.of(node.inputs[0]).ndim, PINNED) for _ in node.outputs[1:]]
    return [atoms.of(node.inputs[0]), *rest]


def _slope(atoms: ChannelAtoms, node: Node) -> Found:
    constant = atoms.view.is_constant(atoms.view.root(node.inputs[1]))
    return [atoms.of(node.inputs[0])] if constant else None


def _clip(atoms: ChannelAtoms, node: Node) -> Found:
    """A Clip at 0 from below, and at nothing from above, is a Relu."""
    low, high = (_bound(atoms, node, index, name) for index, name in ((1, "min"), (2, "max")))
    free = (low is None or low == 0 or low <= np.finfo(np.float32).min) and (
        high is None or high == 0 or high >= np.finfo(np.float32).max
    )
    return [atoms.of(node.inputs[0])] if free else None


def _bound(atoms: ChannelAtoms, node: Node, index: int, name: str) -> float | None:
    """A bound as an input or an attribute; None without; NaN, which no test lets through, where it is computed."""
    if index < len(node.inputs) and node.inputs[index]:
        value = atoms.view.array(node.inputs[index])
        return float("nan") if value is None or value.size != 1 else float(value.reshape(-1)[0])
    stored = attribute(node, name)
    return stored if isinstance(stored, float) else None


def _mul(atoms: ChannelAtoms, node: Node) -> Found:
    """A constant or a gate, whose values stay as they are, times a tensor: linear in the tensor."""
    names = [name for name in node.inputs if name]
    after = atoms.shape(node.outputs[0])
    if len(names) != 2 or after is None or names[0] == names[1]:
        return None
    stays = [bool((atoms.pinned(atoms.of(name)) | (atoms.of(name) == NONE)).all()) for name in names]
    if not any(stays):
        atoms.pin(atoms.of(names[1]))
    side = 1 if stays[0] and not stays[1] else 0
    return [relayout.padded(atoms.of(names[side]), len(after))]


def _div(atoms: ChannelAtoms, node: Node) -> Found:
    """Linear in what is divided."""
    after = atoms.shape(node.outputs[0])
    if after is None:
        return None
    atoms.pin(atoms.of(node.inputs[1]))
    return [relayout.padded(atoms.of(node.inputs[0]), len(after))]


def _pad(atoms: ChannelAtoms, node: Node) -> Found:
    """What is filled in must be 0 or without end; where it is copied from the edges, all goes along."""
    given = atoms.view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    computed = len(node.inputs) > 2 and node.inputs[2] and given is None
    value = float(str(attribute(node, "value", 0.0))) if given is None else float(given.reshape(-1)[0])
    constant = str(attribute(node, "mode", "constant")) == "constant"
    if constant and (computed or not (value == 0 or np.isinf(value))):
        return None
    return COUPLINGS["Pad"](atoms, node)


def _mixing(atoms: ChannelAtoms, node: Node) -> Found:
    """A product of two tensors, linear in the right one: its columns keep their factors where its rows are alike."""
    left, right = node.inputs[:2]
    after, columns = atoms.shape(node.outputs[0]), atoms.of(right)
    if after is None or columns.ndim < 2 or columns.shape[-2] != 1 or len(after) < columns.ndim:
        return None
    atoms.pin(atoms.of(left))
    return [relayout.padded(columns, len(after))]
