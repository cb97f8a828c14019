# SPDX-License-Identifier: Apache-2.0
"""A copy of a model without some channels: constants, what operators say of sizes, declared shapes. No policy here."""

from __future__ import annotations

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.channels.atoms import Int64
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.order import read_names, reads_of
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView, Use
from qdqtool.pruning.constant_edits import ConstantEdits
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.cut_operators import OperatorEdits, edit_operator
from qdqtool.pruning.shuffles import gather


def remove_channels(model: Model, cut: Cut) -> Model:
    """The model without the channels that go; inputs, outputs, names and order of nodes stay.

    Raises:
        QdqError: a constant cannot be cut as its readers need it.
    """
    copy = model.copy()
    if not cut.gone.any():
        return copy
    view = copy.view
    constants, editor = ConstantEdits(view), Editor(view)
    for use, kept in _weights(cut):
        constants.keep(Use(view.every[use.node.index], use.index), kept)
    edits = OperatorEdits(cut, view, constants, editor, opset_of(copy.proto) or 1)
    gathered = _gathered(cut, view, editor)
    for node in view.nodes:
        if node.index not in gathered:
            edit_operator(edits, node)
    for tensor, pairs in view.pairs.items():
        for pair in pairs:
            if pair.quantize is not None and not view.is_constant(tensor):
                constants.keep_scales(pair.quantize, cut.kept(tensor))
                constants.keep_scales(pair.dequantize, cut.kept(tensor))
    _declare(copy.graph, view, cut)
    read = {name for node in view.every for name in read_names(node)}
    constants.apply(editor)
    editor.drop_value_info(constants.passed)
    editor.commit()
    _drop_replaced(copy.graph, read)
    _list_inputs(copy.proto, set(view.initializers))
    copy.changed()
    return copy


def _gathered(cut: Cut, view: GraphView, editor: Editor) -> set[int]:
    """Put a Gather for each shuffle that needs one; the places of the operators that it replaces."""
    replaced: set[int] = set()
    for shuffle in cut.channels.gathered:
        sides = [cut.kept(name).get(1) for name in (shuffle.source, shuffle.made)]
        if sides[0] is not None and sides[1] is not None:
            gather(editor, view, shuffle, (sides[0], sides[1]))
            replaced.update(node.index for node in shuffle.nodes)
    return replaced


def _weights(cut: Cut) -> list[tuple[Use, dict[int, Int64]]]:
    """Each constant that loses places, and which stay of each of its axes."""
    found: dict[tuple[int, int], tuple[Use, dict[int, Int64]]] = {}
    for axis in cut.channels.axes:
        kept = cut.along(axis)
        if kept is None:
            continue
        if not kept.size:
            raise QdqError(axis.use.node.name, "would lose all of its channels", "--exclude it, or give --ratio")
        found.setdefault((axis.use.node.index, axis.use.index), (axis.use, {}))[1][axis.axis] = kept
    return list(found.values())


def _declare(graph: onnx.GraphProto, view: GraphView, cut: Cut) -> None:
    """The declared shapes of tensors that become smaller, those between a Q and its DQ with them."""
    between = {
        name: tensor
        for tensor, pairs in view.pairs.items()
        for pair in pairs
        if pair.quantize is not None
        for node in pair.nodes
        for name in node.outputs
    }
    for value in graph.value_info:
        shape = value.type.tensor_type.shape
        for axis, kept in cut.kept(between.get(value.name, value.name)).items():
            if axis < len(shape.dim) and shape.dim[axis].HasField("dim_value"):
                shape.dim[axis].dim_value = len(kept)


def _drop_replaced(graph: onnx.GraphProto, before: set[str]) -> None:
    """Take away constants, and nodes that make them, that were read before the edit and are no longer."""
    given = {value.name for value in graph.output}
    while True:
        read = {name for node in graph.node for name in reads_of(node)} | given
        unread = [place for place, node in enumerate(graph.node) if not read & set(node.output)]
        gone = [place for place in unread if before & set(graph.node[place].output)]
        for place in reversed(gone):
            del graph.node[place]
        if not gone:
            break
    stored = {tensor.name for tensor in graph.initializer if tensor.name in before - read}
    for table in (graph.initializer, graph.input):
        for place in range(len(table) - 1, -1, -1):
            if table[place].name in stored:
                del table[place]


def _list_inputs(model: onnx.ModelProto, before: set[str]) -> None:
    """Files before IR 4 list initializers as inputs: with the shapes that they have now, and the new ones, too."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        if value.name in stored and value.type.tensor_type.HasField("shape"):
            dims = list(stored[value.name].dims)
            if [dim.dim_value for dim in value.type.tensor_type.shape.dim] != dims:
                del value.type.tensor_type.shape.dim[:]
                for size in dims:
                    value.type.tensor_type.shape.dim.add().dim_value = size
    if model.ir_version < 4:
        for name, tensor in stored.items():
            if name not in before:
                graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
