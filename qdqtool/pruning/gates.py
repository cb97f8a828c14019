# SPDX-License-Identifier: Apache-2.0
"""Gates: a factor of 1 on each channel where operators sum it up, so that a gradient tells what it is worth (Taylor).

With g the factor of a channel, 0 for a channel that goes, the outputs y move by dy/dg in first order (Molchanov 2019,
gates). For random v with E[v v'] = F, E[(v' dy/dg)^2] is what that change costs as F weighs it. Who makes gradients
and v is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import Use
from qdqtool.pruning.activation_scores import summed_axes
from qdqtool.pruning.channel_groups import ChannelMap
from qdqtool.pruning.scores import Float64
from qdqtool.pruning.weight_axes import ChannelAxis


@dataclass(frozen=True)
class Gate:
    """An initializer of ones on one axis of a tensor.

    Attributes:
        name: of the initializer.
        tensor, axis: whose channels it multiplies.
        offset: of the input that is added after it; "" where there is none.
    """

    name: str
    tensor: str
    axis: int
    offset: str = ""


def gated_copy(model: Model, channels: ChannelMap) -> tuple[Model, tuple[Gate, ...]]:
    """A copy that computes the same, with a gate wherever operators sum up a group's channels.

    Channels that no operator with constant weights sums up have their gates where they are made.
    """
    copy = model.copy()
    editor = Editor(copy.view)
    gates = [_add_gate(editor, channels, axis) for axis in _gated_axes(channels)]
    editor.commit()
    if copy.proto.ir_version < 4:  # where initializers are inputs
        for gate in gates:
            shape = channels.atoms.shape(gate.tensor) or ()
            dims = [size or 1 if place == gate.axis else 1 for place, size in enumerate(shape)]
            copy.graph.input.append(onnx.helper.make_tensor_value_info(gate.name, onnx.TensorProto.FLOAT, dims))
    return copy, tuple(gates)


def masked_copy(model: Model, channels: ChannelMap) -> tuple[Model, tuple[Gate, ...]]:
    """The same with gates that are inputs, and an input added after each: a channel can give its mean instead."""
    copy = model.copy()
    editor = Editor(copy.view)
    gates = [_add_gate(editor, channels, axis, offset=True) for axis in _gated_axes(channels)]
    editor.commit()
    made = {name for gate in gates for name in (gate.name, gate.offset)}
    listed = {value.name for value in copy.graph.input}
    kept = [tensor for tensor in copy.graph.initializer if tensor.name not in made]
    for tensor in copy.graph.initializer:
        if tensor.name in made - listed:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    copy.changed()
    return copy, tuple(gates)


def gate_shape(channels: ChannelMap, gate: Gate) -> tuple[int, ...]:
    """The shape of a gate, and of what is added after it."""
    shape = channels.atoms.shape(gate.tensor) or ()
    return tuple(size or 1 if place == gate.axis else 1 for place, size in enumerate(shape))


def _gated_axes(channels: ChannelMap) -> list[ChannelAxis]:
    """One for each tensor that an operator sums up."""
    found: dict[tuple[int, str], ChannelAxis] = {}
    for axis in (axis for group in channels.groups for axis in summed_axes(group)):
        found.setdefault((axis.use.node.index, axis.tensor), axis)
    return list(found.values())


def _add_gate(editor: Editor, channels: ChannelMap, axis: ChannelAxis, *, offset: bool = False) -> Gate:
    view = editor.view
    twin = view.every[axis.use.node.index]
    gate = Gate("", axis.tensor, axis.tensor_axis)
    ones = np.ones(gate_shape(channels, gate), np.float32)
    name = editor.add_initializer(editor.unique_name(f"{axis.tensor}_gate"), ones)
    is_read = axis.role == "read"
    source, uses = (twin.inputs[0], [Use(twin, 0)]) if is_read else (axis.tensor, list(view.consumers(axis.tensor)))
    gated = editor.unique_name(f"{axis.tensor}_gated")
    if not offset:
        editor.add_node("Mul", [source, name], gated, beside=twin, after=not is_read)
    else:
        added = editor.add_initializer(editor.unique_name(f"{axis.tensor}_offset"), np.zeros_like(ones))
        product = editor.unique_name(f"{axis.tensor}_product")
        editor.add_node("Mul", [source, name], product, beside=twin, after=not is_read)
        editor.add_node("Add", [product, added], gated, beside=twin, after=not is_read)
        gate = replace(gate, offset=added)
    for use in uses:
        editor.reroute(use, gated)
    return replace(gate, name=name)


def taylor_scores(
    channels: ChannelMap, gates: Iterable[Gate], gradients: Iterable[Mapping[str, Float64]]
) -> dict[str, Float64]:
    """Group -> what each of its classes is worth: the sum of its gates' gradients, in the root mean square of samples.

    `gradients` has for each sample, by gate, the gradient along its axis. Scores are not divided by layer: those of all
    layers are changes of the same outputs.
    """
    rows = {gate.name: channels.atoms.row(gate.tensor, gate.axis) for gate in gates}
    squares, count = np.zeros(channels.atoms.size), 0
    for sample in gradients:
        sums = np.zeros(channels.atoms.size)
        for name, row in rows.items():
            if row is not None and name in sample:
                np.add.at(sums, row.atoms, sample[name])
        squares += sums * sums
        count += 1
    worth = np.sqrt(squares / max(count, 1))
    return {group.name: worth[group.classes] for group in channels.groups}
