# SPDX-License-Identifier: Apache-2.0
"""What the rows of an output are, as the graph shows it: features of tokens, or boxes that end in a class's number.

Values are not looked at. DeepStream-Yolo's exports end in rows of a box, its best score and the class of that, and so
do detectors that pick their boxes in the graph (YOLOv10, YOLO26, NMS). Shapes do not tell them from the rows of a YOLO
of one class, nor tokens from features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.rule_files import operator_set

# A row for each candidate, ending in the number of a class; or for those that TopK or an NMS picked; or the features of
# a token or a query.
OutputRows = Literal["dense", "picked", "features"]

# What an index passes on its way to the last column, beside what moves values; the first input is the one that matters.
_OF_AN_INDEX = frozenset({"Cast", "GatherElements", "GatherND", "Mod", "Floor", "Sub", "Div"})
_VALUE_BY_VALUE = frozenset({"Add", "Sub", "Mul", "Div", "Cast", "Softmax"})


def output_rows(view: GraphView) -> Mapping[str, OutputRows]:
    """Output -> what its rows are: those that hold features, and those whose last column is an index.

    An index is what an ArgMax, a TopK or an NMS says. The main graph only; Q/DQ pairs are seen through.
    """
    found: dict[str, OutputRows] = {}
    for output in view.outputs:
        if has_features(view, output):
            found[output] = "features"
        # The first node upstream that does more than rearrange or cast
        through = operator_set("rearranging") | {"Cast"}
        joined = view.producer(output)
        while joined is not None and joined.op in through and joined.inputs:
            joined = view.producer(joined.inputs[0])
        if joined is None or joined.op != "Concat" or not joined.inputs or not _is_index(view, joined.inputs[-1]):
            continue
        found[output] = "picked" if _has_picking(view, joined) else "dense"
    return found


def has_features(view: GraphView, name: str) -> bool:
    """Whether the last axis of a tensor is what a linear layer or a LayerNormalization makes, value by value since."""
    met, todo = {name}, [name]
    while todo:
        node = view.producer(todo.pop())
        if node is None:
            continue
        if node.op == "LayerNormalization" or (node.op == "MatMul" and weight_index(view, node) == 1):
            return True
        if node.op in _VALUE_BY_VALUE or node.op in operator_set("act") | operator_set("passing"):
            before = {one for one in node.inputs if one and not view.is_constant(one)} - met
            met |= before
            todo += before
    return False


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
