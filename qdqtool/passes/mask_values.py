# SPDX-License-Identifier: Apache-2.0
"""The number by which attention masks keys: infinity or float32's lowest, where -30000 does the same in any type.

exp(-30000 - s) is 0 in float32 for every score s beyond -29896, as exp(-inf) is: each row with an unmasked key of such
a score has the same Softmax, bit for bit. A row without one has 1/n everywhere, where -inf gives NaN.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.flow import value_inputs
from qdqtool.rule_files import operator_set

MASK = -30000.0  # two of them added are within FP16 still
_BEYOND = -65504.0  # FP16's lowest: one more score makes it -inf
_ADDING = frozenset({"Add", "Max", "Mul"})


@dataclass(frozen=True)
class MaskValue:
    """A constant that masks attention.

    Attributes:
        name: the initializer, or what a Constant or ConstantOfShape makes.
        value: its numbers; of ConstantOfShape the one that it fills with.
        lowest: the lowest of them, at most that of FP16.
    """

    name: str
    value: npt.NDArray[Any]
    lowest: float


def find_mask_values(view: GraphView) -> Iterator[MaskValue]:
    """Constants with numbers at or below FP16's lowest that reach nothing but the Softmax of attention, and mask there.

    A Mul is on the way where its other factor is 0 or 1 by what makes it: 1 - mask, or a Cast.
    """
    waiting = [node.inputs[0] for node in view.nodes if node.op == "Softmax" and node.inputs]
    inside, constants = set[int](), dict[str, None]()
    while waiting:
        name = waiting.pop()
        node = view.producer(name)
        name = view.root(name)
        if node is None or node.op in ("Constant", "ConstantOfShape"):
            if name in view.initializers or node is not None:
                constants[name] = None
        elif id(node) not in inside and (ways := _ways(view, node)):
            inside.add(id(node))
            waiting += [node.inputs[place] for place in ways]
    for name in sorted(constants):
        value = _numbers(view, name)
        if value is not None and value.size and float(value.min()) <= _BEYOND and _only_masks(view, name, inside):
            yield MaskValue(name, value, float(value.min()))


def rewrite_masks(view: GraphView, wanted: Container[str]) -> int:
    """Write `MASK` in the place of numbers below it in mask constants; the graph is edited."""
    found = [one for one in find_mask_values(view) if one.name in wanted]
    editor = Editor(view)
    for one in found:
        editor.set_constant(one.name, np.where(one.value < MASK, np.asarray(MASK, one.value.dtype), one.value))
    editor.commit()
    return len(found)


def _numbers(view: GraphView, name: str) -> npt.NDArray[Any] | None:
    """The numbers of a constant in a float type."""
    node = view.producers.get(name)
    if node is not None and node.op == "ConstantOfShape":
        held = next((item.t for item in node.proto.attribute if item.name == "value"), None)
        value: npt.NDArray[Any] | None = None if held is None else onnx.numpy_helper.to_array(held)
    else:
        value = view.array(name)
    return value if value is not None and value.dtype.name in ("float16", "float32", "float64", "bfloat16") else None


def _ways(view: GraphView, node: Node) -> list[int]:
    """The inputs by which an operator hands a mask on to Softmax; a Mul where it takes it as a whole or not at all."""
    if node.op in ("Where", "Trilu", "Cast"):
        return [1, 2] if node.op == "Where" else [0]
    if node.op not in _ADDING:
        return value_inputs(node) if node.op in operator_set("moving") | {"Identity"} else []
    makers = [view.producer(name) for name in node.inputs]
    chosen = any(one is not None and (one.op == "Cast" or _is_one_minus(view, one)) for one in makers)
    return [place for place, name in enumerate(node.inputs) if name and (chosen or node.op != "Mul")]


def _is_one_minus(view: GraphView, node: Node) -> bool:
    one = view.array(node.inputs[0]) if node.op == "Sub" and view.is_constant(node.inputs[0]) else None
    return one is not None and one.size == 1 and bool((one == 1).all())


def _only_masks(view: GraphView, name: str, inside: Container[int]) -> bool:
    """Whether every way from a tensor ends at a Softmax, by operators on the way of masks."""
    waiting, seen = [name], {name}
    while waiting:
        name = waiting.pop()
        if view.is_output(name) or name in view.captured or not view.consumers(name):
            return False
        for use in view.consumers(name):
            if use.node.op == "Softmax":
                continue
            if id(use.node) not in inside or use.index not in _ways(view, use.node):
                return False
            fresh = [one for one in use.node.outputs if one and one not in seen]
            seen.update(fresh)
            waiting += fresh
    return True
