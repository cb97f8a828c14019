# SPDX-License-Identifier: Apache-2.0
"""Edits of constants, collected from those who read them and made once: in place where all readers want the same.

A constant after Q/DQ, Cast or Transpose is cut where it is stored, the scales and zero points of the pair with it.
Where a reader wants another value than the others, it gets a constant of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.channels.arguments import permutation
from qdqtool.graph.edit import Editor
from qdqtool.graph.tensors import stored_array
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Use, attribute
from qdqtool.pruning.cut import Kept

Array = npt.NDArray[Any]
# What a reader wants: places kept, as (axis, indices), or another value, as (None, its numbers).
_Wish = tuple[tuple[int | None, tuple[int, ...]], ...]


@dataclass(frozen=True)
class _ConstantReader:
    use: Use
    wish: _Wish


class ConstantEdits:
    """What becomes of the constants of one graph.

    Attributes:
        view: of the graph that is edited.
        passed: the constants that are cut, and what is made of them on their way to who reads them.
    """

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._wishes: dict[str, dict[tuple[int, int], _ConstantReader]] = {}
        self._owned: dict[tuple[int, int], tuple[Use, Array]] = {}
        self.passed: set[str] = set()

    def keep(self, use: Use, kept: Kept) -> None:
        """Let a node read these places of a constant alone: of all axes at once.

        Raises:
            QdqError: the constant is computed in a way that cannot be cut, or a step on its way is read differently.
        """
        if not kept:
            return
        name = use.node.inputs[use.index]
        node = self.view.producers.get(name)
        self.passed.add(name)
        if name in self.view.initializers or node is None or node.op == "Constant":
            self._wish(name, use, tuple((axis, tuple(places.tolist())) for axis, places in sorted(kept.items())))
        elif node.op in (DEQUANTIZE, QUANTIZE):
            self.keep_scales(node, kept)
            self.keep(Use(node, 0), kept)
        elif node.op in ("Cast", "Identity", "Clip"):
            self.keep(Use(node, 0), kept)
        elif node.op == "Transpose":
            order = permutation(node, len(self.view.shape(name) or ())) or []
            self.keep(Use(node, 0), {order[axis]: places for axis, places in kept.items()})
        elif node.op == "ConstantOfShape" and len(self.view.consumers(name)) == 1:
            left = [len(kept[axis]) if axis in kept else size for axis, size in enumerate(self.view.shape(name) or ())]
            self.set_numbers(Use(node, 0), left)
        elif node.op != "Reshape" or not self._through_reshape(node, kept):
            value = self.view.array(name)
            if value is None:
                raise QdqError(name, f"is a constant that {node.op} {node.name} computes", "fold constants first")
            self._own(use, cut(value, kept))

    def _through_reshape(self, node: Node, kept: Kept) -> bool:
        """Cut what a Reshape of a constant reads, and its target; False where no rectangle of that stays."""
        before, after = self.view.shape(node.inputs[0]), self.view.shape(node.outputs[0])
        if before is None or after is None or len(self.view.consumers(node.outputs[0])) != 1:
            return False
        stays = np.ones(after, bool)
        for axis, places in kept.items():
            stays &= np.isin(np.arange(after[axis]), places).reshape(
                [-1 if i == axis else 1 for i in range(len(after))]
            )
        folded = stays.reshape(before)
        sides = {
            axis: np.flatnonzero(folded.any(axis=tuple(other for other in range(len(before)) if other != axis)))
            for axis in range(len(before))
        }
        if math.prod(len(places) for places in sides.values()) != int(folded.sum()):
            return False
        self.keep(Use(node, 0), {axis: places for axis, places in sides.items() if len(places) < before[axis]})
        left = [len(kept[axis]) if axis in kept else size for axis, size in enumerate(after)]
        self.set_numbers(Use(node, 1), left)
        return True

    def keep_scales(self, node: Node, kept: Kept) -> None:
        """Cut the scales and zero points of a Q or DQ that lie along an axis with its channels."""
        rank = len(
            next((self.view.shape(name) for name in (node.inputs[0], node.outputs[0]) if self.view.shape(name)), None)
            or ()
        )
        axis = int(str(attribute(node, "axis", 1)))
        axis += rank * (axis < 0)
        for index in (1, 2):
            if index < len(node.inputs) and node.inputs[index] and axis in kept:
                shape = self.view.shape(node.inputs[index])
                if shape and len(shape) == 1 and shape[0] > 1:
                    self.keep(Use(node, index), {0: kept[axis]})

    def set_numbers(self, use: Use, numbers: list[int], before: list[int] | None = None) -> None:
        """Let a node read other integers: a shape, sizes, indices. Where they are the same nothing changes."""
        name = use.node.inputs[use.index]
        node = self.view.producers.get(name)
        old = self.view.array(name) if self.view.is_constant(name) else None
        if numbers == (before if old is None else old.reshape(-1).tolist()):
            return
        if name in self.view.initializers or (node is not None and node.op == "Constant"):
            self._wish(name, use, ((None, tuple(numbers)),))
        else:
            self._own(use, np.array(numbers, np.int64))

    def _wish(self, name: str, use: Use, wish: _Wish) -> None:
        key = id(use.node), use.index
        before = self._wishes.setdefault(name, {}).setdefault(key, _ConstantReader(use, wish))
        if before.wish != wish:
            merged = dict(before.wish) | dict(wish)
            if any(merged[axis] != places for axis, places in before.wish):
                raise QdqError(name, f"is read through {use.node.name} with different channels", "give each its own")
            self._wishes[name][key] = _ConstantReader(use, tuple(sorted(merged.items(), key=lambda item: item[0] or 0)))

    def _own(self, use: Use, value: Array) -> None:
        self._owned[id(use.node), use.index] = use, value

    def apply(self, editor: Editor) -> None:
        """Make the edits, in the order of the graph."""
        readers: dict[str, int] = {}
        for node in self.view.every:
            for name in filter(None, node.inputs):
                readers[name] = readers.get(name, 0) + 1
        for name in (*self.view.outputs, *self.view.captured):
            readers[name] = readers.get(name, 0) + 1
        for name, wishes in self._wishes.items():
            different = {reader.wish for reader in wishes.values()}
            value = self._stored(name)
            if len(different) == 1 and len(wishes) == readers[name]:
                editor.set_constant(name, _wished(value, different.pop()))
                continue
            made: dict[_Wish, str] = {}
            for reader in wishes.values():
                if reader.wish not in made:
                    fresh = editor.unique_name(f"{name}_pruned")
                    made[reader.wish] = editor.add_initializer(fresh, _wished(value, reader.wish))
                editor.reroute(reader.use, made[reader.wish])
        for use, value in self._owned.values():
            fresh = editor.unique_name(f"{use.node.inputs[use.index]}_pruned")
            editor.reroute(use, editor.add_initializer(fresh, value))

    def _stored(self, name: str) -> Array:
        if name in self.view.initializers:
            return stored_array(self.view.initializers[name], self.view.folder)
        value = self.view.array(name)
        if value is None:
            raise QdqError(name, "is a constant that cannot be read", "fold constants first")
        return value


def cut(value: Array, kept: Mapping[int, npt.NDArray[np.int64]]) -> Array:
    """Some places of some axes of an array."""
    for axis, places in kept.items():
        value = np.take(value, places, axis)
    return value


def _wished(value: Array, wish: _Wish) -> Array:
    for axis, places in wish:
        if axis is None:
            shape = value.shape if value.size == len(places) else (len(places),)
            return np.array(places, value.dtype).reshape(shape)
        value = np.take(value, np.array(places, np.int64), axis)
    return np.ascontiguousarray(value)
