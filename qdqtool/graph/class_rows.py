# SPDX-License-Identifier: Apache-2.0
"""Outputs whose last column is the number of a class, not a score, as the graph shows it. Values are not looked at.

Such rows are what DeepStream-Yolo's exports end in (box, best score, its class), and detectors that pick their boxes in
the graph (YOLOv10, YOLO26, NMS). Shapes do not tell them from the rows of a YOLO of one class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from qdqtool.graph.view import GraphView, Node
from qdqtool.rule_files import operator_set

ClassRows = Literal["dense", "picked"]  # a row for each candidate; or for those that TopK or an NMS picked

# What an index passes on its way to the last column, beside what moves values; the first input is the one that matters.
_OF_AN_INDEX = frozenset({"Cast", "GatherElements", "GatherND", "Mod", "Floor", "Sub", "Div"})


def class_rows(view: GraphView) -> Mapping[str, ClassRows]:
    """Output -> what its rows are, for those whose last column the graph makes of an ArgMax, a TopK or an NMS.

    The main graph only; Q/DQ pairs are seen through.
    """
    found: dict[str, ClassRows] = {}
    for output in view.outputs:
        joined = _back(view, output, operator_set("rearranging") | {"Cast"})
        if joined is None or joined.op != "Concat" or not joined.inputs or not _is_index(view, joined.inputs[-1]):
            continue
        found[output] = "picked" if _has_picking(view, joined) else "dense"
    return found


def _back(view: GraphView, name: str, through: frozenset[str]) -> Node | None:
    """The first node before a tensor that is none of those."""
    node = view.producer(name)
    while node is not None and node.op in through and node.inputs:
        node = view.producer(node.inputs[0])
    return node


def _is_index(view: GraphView, name: str) -> bool:
    """Whether a tensor is what an ArgMax, a TopK or an NMS says of places, moved about."""
    if view.is_constant(name):
        return False
    moving = operator_set("rearranging") | operator_set("copying") | operator_set("gathering")
    node = view.producer(name)
    while node is not None:
        if node.op == "ArgMax" or _is_nms(node):
            return True
        if node.op == "TopK":
            return name in node.outputs[1:]
        if not (node.op in _OF_AN_INDEX or node.op in moving) or not node.inputs:
            return False
        name = view.root(node.inputs[0])
        node = view.producer(name)
    return False


def _has_picking(view: GraphView, start: Node) -> bool:
    """Whether candidates were picked before a node: by an NMS, or by a TopK of more than one."""
    met, todo = {start.index}, [start]
    while todo:
        node = todo.pop()
        if _is_nms(node) or (node.op == "TopK" and not _takes_one(view, node)):
            return True
        for name in node.inputs:
            before = view.producer(name) if name else None
            if before is not None and before.index not in met:
                met.add(before.index)
                todo.append(before)
    return False


def _is_nms(node: Node) -> bool:
    return node.op == "NonMaxSuppression" or "NMS" in node.op  # plug-ins: EfficientNMS_TRT and kin


def _takes_one(view: GraphView, node: Node) -> bool:
    """Whether a TopK is an ArgMax: its number is 1."""
    number = view.array(node.inputs[1]) if node.inputs[1:] else None
    return number is not None and number.size == 1 and int(number.reshape(-1)[0]) == 1
