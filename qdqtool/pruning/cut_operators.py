# SPDX-License-Identifier: Apache-2.0
"""What operators say of sizes and indices, for the channels that stay: Reshape, Split, Slice, Gather, Pad and kin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from qdqtool.graph.channels.arguments import integers, slices_of
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.pruning.constant_edits import ConstantEdits
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.weight_axes import is_depthwise

_FAR = 1 << 30


@dataclass(frozen=True, eq=False)
class OperatorEdits:
    """One edit of a graph's operators."""

    cut: Cut
    view: GraphView
    constants: ConstantEdits
    editor: Editor
    opset: int

    def before(self, name: str) -> tuple[int, ...]:
        """The shape that a tensor had."""
        return tuple(size or 0 for size in self.cut.channels.atoms.shape(name) or ())

    def set_list(self, node: Node, index: int, name: str, numbers: list[int]) -> None:
        """Another list of integers, which newer opsets have as an input and older ones as an attribute."""
        if len(node.inputs) > index and node.inputs[index]:
            self.constants.set_numbers(Use(node, index), numbers)
            return
        for place, item in enumerate(node.proto.attribute):
            if item.name == name:
                del node.proto.attribute[place]
                break
        node.proto.attribute.append(onnx.helper.make_attribute(name, numbers))


def edit_operator(edits: OperatorEdits, node: Node) -> None:
    """Let one node of the copy say what holds for the channels that stay.

    Raises:
        QdqError: a constant of it cannot be edited; see `ConstantEdits`.
    """
    rule = _RULES.get(node.op)
    if rule is not None and any(edits.cut.kept(name) for name in (*node.inputs, *node.outputs) if name):
        rule(edits, node)


def _groups(edits: OperatorEdits, node: Node) -> None:
    """A depthwise convolution has as many groups as channels."""
    kept = edits.cut.kept(node.inputs[0]).get(1)
    if kept is None or not is_depthwise(edits.cut.channels.view, node):
        return
    next(item for item in node.proto.attribute if item.name == "group").i = len(kept)


def _target(index: int) -> Callable[[OperatorEdits, Node], None]:
    """A shape as input `index`: entries of axes that become shorter; what the graph computes stays computed."""

    def edit(edits: OperatorEdits, node: Node) -> None:
        if len(node.inputs) <= index or not node.inputs[index]:
            return
        before, after = edits.before(node.outputs[0]), edits.cut.shape(node.outputs[0])
        producer, place = edits.view.producer(node.inputs[index]), 0
        pieces = [Use(node, index)]
        if producer is not None and producer.op == "Concat":
            pieces = [Use(producer, piece) for piece in range(len(producer.inputs))]
        for piece in pieces:
            name = piece.node.inputs[piece.index]
            value = edits.cut.channels.atoms.values(name)
            if value is not None:
                numbers = [int(v) for v in value.reshape(-1)]
                edits.constants.set_numbers(piece, _shortened(edits, node, numbers, place, before, after), numbers)
            place += (edits.before(name) or (1,))[0]

    return edit


def _shortened(
    edits: OperatorEdits, node: Node, numbers: list[int], first: int, before: tuple[int, ...], after: tuple[int, ...]
) -> list[int]:
    """Entries of a target shape from axis `first` on; 0 copies an axis of the input, -1 is worked out."""
    made, source = [], edits.cut.shape(node.inputs[0])
    offset = len(before) - len(numbers) if node.op == "Expand" else 0
    for place, number in enumerate(numbers):
        axis = first + place + offset
        copied = number == 0 and axis < len(source) and source[axis] == after[axis]
        changed = before[axis] != after[axis] and number not in (-1, 1) and not copied
        made.append(after[axis] if changed else number)
    return made


def _split(edits: OperatorEdits, node: Node) -> None:
    axis = _axis(edits, node)
    if axis not in edits.cut.kept(node.inputs[0]):
        return
    sizes = [edits.cut.shape(name)[axis] for name in node.outputs]
    given = integers(node, 1, "split", edits.cut.channels.atoms.values)
    if not given and len(set(sizes)) == 1:
        return
    for place in [i for i, item in enumerate(node.proto.attribute) if item.name == "num_outputs"]:
        del node.proto.attribute[place]
    if not given and edits.opset >= 13:
        name = edits.editor.unique_name(f"{node.outputs[0]}_split")
        edits.editor.set_input(node, 1, edits.editor.add_initializer(name, np.array(sizes, np.int64)))
    else:
        edits.set_list(node, 1, "split", sizes)


def _axis(edits: OperatorEdits, node: Node, default: int = 0) -> int:
    axis = next((int(item.i) for item in node.proto.attribute if item.name == "axis"), default)
    return axis + len(edits.before(node.inputs[0])) * (axis < 0)


def _slice(edits: OperatorEdits, node: Node) -> None:
    rows, shape = slices_of(node, edits.cut.channels.atoms.values), edits.before(node.inputs[0])
    kept = edits.cut.kept(node.inputs[0])
    if rows is None or not any(axis % len(shape) in kept for axis, *_ in rows):
        return
    starts, ends = [], []
    for axis, start, end, _ in rows:
        places, size = kept.get(axis % len(shape)), shape[axis % len(shape)]
        if places is None:
            starts.append(start)
            ends.append(end)
            continue
        first, last = (max(0, bound + size * (bound < 0)) for bound in (start, end))
        starts.append(int((places < first).sum()))
        ends.append(end if end >= _FAR else int((places < last).sum()))
    edits.set_list(node, 1, "starts", starts)
    edits.set_list(node, 2, "ends", ends)


def _gather(edits: OperatorEdits, node: Node) -> None:
    axis = _axis(edits, node)
    places, index = edits.cut.kept(node.inputs[0]).get(axis), edits.cut.channels.atoms.values(node.inputs[1])
    if places is None or index is None:
        return
    given = index.astype(np.int64)
    wanted = np.where(given < 0, given + edits.before(node.inputs[0])[axis], given)
    for own, left in edits.cut.kept(node.outputs[0]).items():
        if axis <= own < axis + index.ndim:
            wanted = np.take(wanted, left, own - axis)
    edits.constants.set_numbers(Use(node, 1), np.searchsorted(places, wanted).reshape(-1).tolist())


def _pad(edits: OperatorEdits, node: Node) -> None:
    pads = integers(node, 1, "pads", edits.cut.channels.atoms.values)
    axes = integers(node, 3, "axes", edits.cut.channels.atoms.values)
    shape = edits.before(node.inputs[0])
    if not pads or axes is None:
        return
    half = len(pads) // 2
    listed = [axis % len(shape) for axis in axes] or list(range(len(shape)))
    for place, axis in enumerate(listed):
        left = edits.cut.kept(node.outputs[0]).get(axis)
        if left is not None:
            before = pads[place]
            pads[place] = int((left < before).sum())
            pads[place + half] = int((left >= before + shape[axis]).sum())
    edits.set_list(node, 1, "pads", pads)


_RULES: dict[str, Callable[[OperatorEdits, Node], None]] = {
    "Conv": _groups,
    "ConvTranspose": _groups,
    "Reshape": _target(1),
    "Expand": _target(1),
    "Resize": _target(3),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
}
