# SPDX-License-Identifier: Apache-2.0
"""Channel shuffles as 1x1 convolutions with a constant 0/1 weight, which a DLA runs. Which are asked for: linting.

A Reshape, a Transpose and a Reshape that put the channels of a map in another order, and the Gathers that take some of
them (ShuffleNet's units), are found by what they do to numbered elements, not by their form. So are Slices and Splits
of channels, which the DLA of old versions does not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdqtool.graph.edit import Editor, count_uses, release
from qdqtool.graph.nodes import attribute
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView, Node

Int64 = npt.NDArray[np.int64]
_MOST = 1 << 23  # elements that are numbered
_MAP = 4  # axes of a map: batch, channels, height, width


@dataclass(frozen=True, eq=False)
class ChannelSelection:
    """Operators that do nothing but give channels of a map in another order.

    Attributes:
        nodes: Reshape, Transpose, Reshape, and the Gathers after them; or one Slice or Split.
        source: the map that is read, float32.
        made: each map that comes out -> channel i of it is channel order[i] of the source.
    """

    nodes: tuple[Node, ...]
    source: str
    made: Mapping[str, Int64]


def find_channel_selections(view: GraphView, types: Mapping[str, int]) -> list[ChannelSelection]:
    """The selections of a graph, in the order of its nodes; maps of fixed size and float32 alone."""
    shuffles = [node for node in view.nodes if node.op == "Reshape" and types.get(node.inputs[0]) == TensorProto.FLOAT]
    shapes = shapes_of(view) if shuffles else {}
    found = (_selection(view, shapes, node) for node in shuffles)
    return [one for one in found if one is not None]


def find_channel_slices(view: GraphView, types: Mapping[str, int]) -> list[ChannelSelection]:
    """The Slices and Splits that take channels of a map and nothing else, each a selection by itself."""
    nodes = [node for node in view.nodes if node.op in ("Slice", "Split")]
    of_floats = [node for node in nodes if types.get(node.inputs[0]) == TensorProto.FLOAT]
    shapes = shapes_of(view) if of_floats else {}
    found = []
    for node in of_floats:
        whole = _fixed(shapes.get(node.inputs[0]))
        if whole is None or len(whole) != _MAP:
            continue
        taken = _split(node, whole, shapes) if node.op == "Split" else _sliced(view, node, whole)
        if taken:
            found.append(ChannelSelection((node,), node.inputs[0], taken))
    return found


def _split(node: Node, whole: tuple[int, ...], shapes: Mapping[str, Shape]) -> dict[str, Int64]:
    """Output -> its channels; nothing for another axis, or where sizes are not known."""
    axis, made, first = attribute(node, "axis", 0), dict[str, Int64](), 0
    if axis not in (1, 1 - _MAP):
        return {}
    for name in node.outputs:
        size = _fixed(shapes.get(name))
        if not name or size is None or not size[1]:
            return {}
        made[name] = np.arange(first, first + size[1])
        first += size[1]
    return made if first == whole[1] else {}


def _sliced(view: GraphView, node: Node, whole: tuple[int, ...]) -> dict[str, Int64]:
    """The output and its channels; nothing where another axis is cut, or a bound is computed."""
    given = [_numbers(view, node, index, name) for index, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    starts, ends, axes, steps = given
    if not starts or ends is None or axes is None or steps is None:
        return {}
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return {}
    order = list(range(whole[1]))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cut = list(range(whole[axis % _MAP])[start:end:step])
        if axis % _MAP == 1:
            order = cut
        elif cut != list(range(whole[axis % _MAP])):
            return {}
    return {node.outputs[0]: np.asarray(order, np.int64)} if order else {}


def _numbers(view: GraphView, node: Node, index: int, name: str) -> list[int] | None:
    """An input of a Slice, before opset 10 an attribute: [] where it is left out, None where it is computed."""
    if index >= len(node.inputs) or not node.inputs[index]:
        value = attribute(node, name)
        return [int(number) for number in value] if isinstance(value, list) else []
    array = view.array(node.inputs[index])
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _selection(view: GraphView, shapes: Mapping[str, Shape], first: Node) -> ChannelSelection | None:
    chain = _chain(view, first)
    whole = _fixed(shapes.get(first.inputs[0]))
    if chain is None or whole is None or len(whole) != _MAP or math.prod(whole) > _MOST:
        return None
    labels = np.arange(math.prod(whole)).reshape(whole)
    values: Int64 | None = labels
    for node in chain:
        values = _applied(node, values, shapes)
    if values is None:
        return None
    last = chain[-1].outputs[0]
    made, gathers = {last: values}, list[Node]()
    if values.ndim != _MAP:
        gathers = [use.node for use in view.consumers(last)]
        if not gathers or view.is_output(last) or any(one.op != "Gather" or one.inputs[0] != last for one in gathers):
            return None
        taken = {one.outputs[0]: _gathered(view, one, values) for one in gathers}
        made = {name: one for name, one in taken.items() if one is not None}
        if len(made) < len(gathers):
            return None
    orders = {name: _order(labels, one) for name, one in made.items()}
    known = {name: order for name, order in orders.items() if order is not None}
    return ChannelSelection((*chain, *gathers), first.inputs[0], known) if len(known) == len(orders) else None


def _chain(view: GraphView, first: Node) -> list[Node] | None:
    """Reshape, Transpose, Reshape, each read by the next alone."""
    chain = [first]
    for op in ("Transpose", "Reshape"):
        uses = view.consumers(chain[-1].outputs[0])
        if len(uses) != 1 or uses[0].node.op != op or uses[0].index or view.is_output(chain[-1].outputs[0]):
            return None
        chain.append(uses[0].node)
    return chain


def _fixed(shape: Shape | None) -> tuple[int, ...] | None:
    return None if shape is None or None in shape else tuple(axis or 0 for axis in shape)


def _applied(node: Node, values: Int64 | None, shapes: Mapping[str, Shape]) -> Int64 | None:
    """What a Reshape or Transpose makes of numbered elements; None where its sizes are not known."""
    if values is None:
        return None
    if node.op == "Transpose":
        order = attribute(node, "perm")
        return values.transpose(order if isinstance(order, (list, tuple)) else None)
    target = _fixed(shapes.get(node.outputs[0]))
    return None if target is None or math.prod(target) != values.size else values.reshape(target)


def _gathered(view: GraphView, node: Node, values: Int64) -> Int64 | None:
    index = view.array(node.inputs[1])
    axis = attribute(node, "axis", 0)
    if index is None or not isinstance(axis, int) or not -values.ndim <= axis < values.ndim:
        return None
    size = values.shape[axis]
    if not np.all((index >= -size) & (index < size)):
        return None
    taken: Int64 = np.take(values, np.asarray(index, np.int64), axis=axis)
    return taken


def _order(labels: Int64, made: Int64) -> Int64 | None:
    """Which channels a map has of the numbered one; None where it is anything else."""
    if made.ndim != _MAP or (made.shape[0], *made.shape[2:]) != (labels.shape[0], *labels.shape[2:]):
        return None
    order: Int64 = made[0, :, 0, 0] // math.prod(labels.shape[2:])
    inside = bool(len(order)) and int(order.max()) < labels.shape[1]
    return order if inside and np.array_equal(labels[:, order], made) else None


def select_by_convolutions(view: GraphView, selections: Iterable[ChannelSelection], channels: Mapping[str, int]) -> int:
    """Let 1x1 convolutions take the place of selections; the same values come out of finite ones (-0 becomes 0)."""
    editor, uses = Editor(view), count_uses(view)
    number = 0
    for one in selections:
        for name, order in one.made.items():
            weight = np.zeros((len(order), channels[one.source], 1, 1), np.float32)
            weight[np.arange(len(order)), order] = 1
            constant = editor.add_initializer(editor.unique_name(f"{name}_selected"), weight)
            editor.add_node("Conv", [one.source, constant], name, beside=one.nodes[-1], after=True)
            number += 1
        for node in one.nodes:
            editor.remove_node(node)
            for name in filter(None, node.inputs[1:]):
                release(editor, uses, name)
        editor.drop_value_info([node.outputs[0] for node in one.nodes if node.outputs[0] not in one.made])
    editor.commit()
    return number
