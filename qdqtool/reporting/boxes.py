# SPDX-License-Identifier: Apache-2.0
"""The boxes of the drawn graph: one for each layer, predicted or built, and what leads from one to the next.

What a layer is, `engine/` says; where boxes stand, `lanes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from qdqtool.engine.predict import FLOAT, PredictedLayer
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import is_product

Look = Literal["int8", "fp16", "fp32", "kept", "lost", "converts", "ends"]
_CONVERSIONS = ("quantize", "dequantize")


@dataclass(frozen=True)
class LayerBox:
    """What one layer is, before it is drawn.

    Attributes:
        title: the layer's name.
        kind: convolution, pointwise, ..., or the operator of a node that is no layer.
        type: what it computes or gives out: INT8, FP16, FP32, ...
        look: how it is colored: by its type; "kept" stays in float on purpose, "lost" is in float though it should not
            be, "converts" only changes the type, "ends" is an input or output of the graph.
        reason: one sentence; "" where there is nothing to say.
        nodes: names of its ONNX nodes.
    """

    title: str
    kind: str
    type: str
    look: Look
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """A graph as boxes and lines.

    Attributes:
        boxes: in an order in which they can run.
        members: for each box its ONNX nodes, in that order; none for conversions and the ends of the graph.
        lines: (source, target, tensor, whether it is read as INT8) by numbers of boxes, each pair of boxes once.
    """

    boxes: tuple[LayerBox, ...]
    members: tuple[tuple[Node, ...], ...]
    lines: tuple[tuple[int, int, str, bool], ...]


def draw_graph(view: GraphView, layers: Sequence[LayerBox], predicted: Sequence[PredictedLayer]) -> Drawn:
    """Put the nodes of the main graph into boxes."""
    nodes = sorted((node for node in view.nodes if not _constant(view, node)), key=lambda one: (one.level, one.index))
    boxes, members = _collect(view, nodes, layers, _moves_int8(layers, predicted))
    while True:
        lines = _lines(view, boxes, members, predicted)
        order = _order(len(boxes), lines)
        if len(order) == len(boxes):
            return _ordered(boxes, members, lines, _in_use(boxes, lines, order))
        _split(boxes, members, set(range(len(boxes))) - set(order))


def _constant(view: GraphView, node: Node) -> bool:
    return all(view.is_constant(name) for name in node.outputs if name)


def _collect(
    view: GraphView, nodes: Iterable[Node], layers: Sequence[LayerBox], integers: Set[str]
) -> tuple[list[LayerBox], list[tuple[Node, ...]]]:
    """The boxes with their nodes: the graph's inputs, layers, nodes of no layer, conversions, the graph's outputs."""
    of: dict[str, int] = {}
    for number, layer in enumerate(layers):
        if layer.kind not in _CONVERSIONS:  # a conversion names the tensor that it converts, as its node may be named
            for name in layer.nodes:
                of.setdefault(name, number)
    inside: dict[int, list[Node]] = {}
    boxes = [_end(name, "input") for name in view.inputs]
    members: list[tuple[Node, ...]] = [()] * len(view.inputs)
    alone: list[Node] = []
    for node in nodes:
        if node.name in of:
            inside.setdefault(of[node.name], []).append(node)
        else:
            alone.append(node)
    for number, layer in enumerate(layers):
        if number in inside or layer.kind in _CONVERSIONS:
            boxes.append(layer)
            members.append(tuple(inside.get(number, ())))
    for node in alone:
        boxes.append(_single_box(node, int8=not integers.isdisjoint(node.outputs)))
        members.append((node,))
    boxes += [_end(name, "output") for name in view.outputs]
    members += [()] * len(view.outputs)
    return boxes, members


def _end(name: str, kind: str) -> LayerBox:
    return LayerBox(name, kind, "", "ends", "", ())


def _single_box(node: Node, *, int8: bool) -> LayerBox:
    """The box of an operator that is in no layer."""
    reason = "not a layer of its own: it only moves values or computes shapes"
    return LayerBox(node.name, node.op, "INT8" if int8 else "", "int8" if int8 else "fp32", reason, (node.name,))


def _moves_int8(layers: Iterable[LayerBox], predicted: Iterable[PredictedLayer]) -> Set[str]:
    """Tensors that are read as INT8 without a conversion before: INT8 in memory, whatever makes them."""
    turned = {box.nodes[0] for box in layers if box.kind == "quantize"}
    return {port.tensor for one in predicted for port in one.inputs if port.precision != FLOAT} - turned


def _split(boxes: list[LayerBox], members: list[tuple[Node, ...]], tangled: set[int]) -> None:
    """Take boxes apart that lead to themselves, so that their nodes can be put in order."""
    for number in sorted(tangled):
        for node in members[number][1:]:
            boxes.append(LayerBox(node.name, node.op, boxes[number].type, boxes[number].look, "", (node.name,)))
            members.append((node,))
        members[number] = members[number][:1]


def _lines(
    view: GraphView, boxes: Sequence[LayerBox], members: Sequence[Sequence[Node]], predicted: Sequence[PredictedLayer]
) -> list[tuple[int, int, str, bool]]:
    """What leads from box to box; through a conversion where the reader takes the other type."""
    made = {name: number for number, nodes in enumerate(members) for node in nodes for name in node.outputs if name}
    made |= {box.title: number for number, box in enumerate(boxes) if box.look == "ends" and box.kind == "input"}
    int8 = {
        (name, port.tensor) for one in predicted for port in one.inputs if port.precision != FLOAT for name in one.nodes
    }
    turned = {(box.kind, box.nodes[0]): number for number, box in enumerate(boxes) if box.kind in _CONVERSIONS}
    found: dict[tuple[int, int], tuple[str, bool]] = {}

    def join(source: int, target: int, tensor: str, integers: bool) -> None:
        if source != target:
            found.setdefault((source, target), (tensor, integers))

    def lead(target: int, name: str, integers: bool) -> None:
        tensor = view.root(name)
        source = made.get(tensor)
        if source is None:
            return
        by = turned.get(("quantize" if integers else "dequantize", tensor))
        if by is not None:
            join(source, by, tensor, not integers)
            source = by
        join(source, target, tensor, integers)

    for number, nodes in enumerate(members):
        moves = boxes[number].look == "int8" and [node.op for node in nodes] == [boxes[number].kind]
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    lead(number, name, moves or (node.name, view.root(name)) in int8)
        if boxes[number].look == "ends" and boxes[number].kind == "output":
            lead(number, boxes[number].title, False)
    return [(source, target, *facts) for (source, target), facts in found.items()]


def _order(count: int, lines: Sequence[tuple[int, int, str, bool]]) -> list[int]:
    """The boxes in an order in which they can run, those left out that lead to themselves."""
    waits, leads = [0] * count, [list[int]() for _ in range(count)]
    for source, target, *_ in lines:
        waits[target] += 1
        leads[source].append(target)
    order = [number for number in range(count) if not waits[number]]
    for number in order:
        for target in leads[number]:
            waits[target] -= 1
            if not waits[target]:
                order.append(target)
    return order


def _in_use(boxes: Sequence[LayerBox], lines: Sequence[tuple[int, int, str, bool]], order: Sequence[int]) -> list[int]:
    """The order without conversions that no line goes through, such as the second one of a tensor."""
    touched = {end for source, target, *_ in lines for end in (source, target)}
    return [number for number in order if number in touched or boxes[number].kind not in _CONVERSIONS]


def _ordered(
    boxes: Sequence[LayerBox],
    members: Sequence[tuple[Node, ...]],
    lines: Sequence[tuple[int, int, str, bool]],
    order: Sequence[int],
) -> Drawn:
    place = {number: position for position, number in enumerate(order)}
    moved = sorted((place[source], place[target], tensor, int8) for source, target, tensor, int8 in lines)
    return Drawn(tuple(boxes[n] for n in order), tuple(tuple(members[n]) for n in order), tuple(moved))


def words_of(view: GraphView, node: Node) -> str:
    """What a box calls a node: the operator, and of a product its kernel and how many channels it makes."""
    if not is_product(node):
        word = node.op.rpartition("::")[2]
        return "BatchNorm" if word == "BatchNormalization" else word
    shape = next((one for name in node.inputs[1:2] if (one := view.shape(name)) is not None), None)
    if shape is None or len(shape) < 2:
        return node.op
    if not node.op.startswith("Conv"):
        return f"{node.op} → {shape[-1] if node.op == 'MatMul' else max(shape[0], 1)}"
    kernel = "×".join(map(str, shape[2:]))
    depthwise = " dw" if shape[1] == 1 and attribute(node, "group", 1) != 1 and node.op == "Conv" else ""
    return f"{node.op} {kernel}{depthwise} → {shape[0] if node.op == 'Conv' else shape[1]}"
