# SPDX-License-Identifier: Apache-2.0
"""Gates: a factor of 1 on each channel where operators sum it up, so that a gradient tells what it is worth (Taylor).

With g the factor of a channel, 0 for a channel that goes, the outputs y move by dy/dg in first order (Molchanov 2019,
gates). For random v with E[v v'] = F, E[(v' dy/dg)^2] is what that change costs as F weighs it. Who makes gradients
and v is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Use
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
    """

    name: str
    tensor: str
    axis: int


def gated_copy(
    proto: onnx.ModelProto, folder: Path | None, channels: ChannelMap
) -> tuple[onnx.ModelProto, tuple[Gate, ...]]:
    """A copy that computes the same, with a gate wherever operators sum up a group's channels.

    Channels that no operator with constant weights sums up have their gates where they are made.

    Args:
        proto: the model; it is not changed.
        folder: where its external data lie.
        channels: of its graph.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    view = GraphView(copy.graph, folder)
    editor = Editor(view)
    gates: list[Gate] = []
    seen: set[tuple[int, str]] = set()
    for axis in (axis for group in channels.groups for axis in summed_axes(group)):
        key = (axis.use.node.index, axis.tensor)
        if key not in seen:
            seen.add(key)
            gates.append(_add_gate(editor, channels, axis))
    editor.commit()
    if copy.ir_version < 4:  # where initializers are inputs
        for gate in gates:
            shape = channels.atoms.shape(gate.tensor) or ()
            dims = [size or 1 if place == gate.axis else 1 for place, size in enumerate(shape)]
            copy.graph.input.append(onnx.helper.make_tensor_value_info(gate.name, onnx.TensorProto.FLOAT, dims))
    return copy, tuple(gates)


def _add_gate(editor: Editor, channels: ChannelMap, axis: ChannelAxis) -> Gate:
    view = editor.view
    twin = view.every[axis.use.node.index]
    shape = channels.atoms.shape(axis.tensor) or ()
    ones = np.ones([size or 1 if place == axis.tensor_axis else 1 for place, size in enumerate(shape)], np.float32)
    name = editor.add_initializer(editor.unique_name(f"{axis.tensor}_gate"), ones)
    gated = editor.unique_name(f"{axis.tensor}_gated")
    if axis.role == "read":
        editor.add_node("Mul", [twin.inputs[0], name], gated, beside=twin, after=False)
        editor.reroute(Use(twin, 0), gated)
    else:
        uses = view.consumers(axis.tensor)
        editor.add_node("Mul", [axis.tensor, name], gated, beside=twin, after=True)
        for use in uses:
            editor.reroute(use, gated)
    return Gate(name, axis.tensor, axis.tensor_axis)


def taylor_scores(
    channels: ChannelMap, gates: Iterable[Gate], gradients: Iterable[Mapping[str, Float64]]
) -> dict[str, Float64]:
    """Group -> what each of its classes is worth: the sum of its gates' gradients, in the root mean square of samples.

    Not divided by layer: the values of all layers are changes of the same outputs.

    Args:
        channels: of the graph.
        gates: where they are.
        gradients: for each sample, gate -> gradient along its axis.
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
