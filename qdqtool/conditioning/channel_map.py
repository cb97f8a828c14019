# SPDX-License-Identifier: Apache-2.0
"""From each quantized tensor to the weights that read it: which input channel of which operator holds which channel.

The way is not read off the operators but measured: the operators between are run on channel numbers instead of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.conditioning.point_consumers import PointConsumers
from qdqtool.graph.order import needed
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.flow import value_inputs
from qdqtool.passes.condition.layout import input_axis, readable
from qdqtool.runtime.activations import OrtActivations

Int64 = npt.NDArray[np.int64]
Array = npt.NDArray[np.generic]

PAD, UNIT = 0, 1  # labels: a zero that was filled in, a value that is not divided


@dataclass(frozen=True)
class ChannelRange:
    """The labels of one tensor: channel c along `axis` (of `rank`) has the label `first` + c."""

    tensor: str
    axis: int
    rank: int
    first: int
    channels: int

    @property
    def labels(self) -> slice:
        """Where this tensor's channels stand in a vector over all labels."""
        return slice(self.first, self.first + self.channels)


@dataclass(frozen=True, eq=False)
class ConsumerChannels:
    """A weighted operator and the label of each of its input channels (int64 [inputs]; `UNIT` is divided by 1)."""

    key: str
    labels: Int64


@dataclass(frozen=True)
class Routes:
    """Every tensor that can be divided per channel, and everyone who then must multiply.

    Attributes:
        spans: tensor -> its labels.
        readers: first output of a weighted operator -> its input channels.
        size: number of labels, the two reserved ones among them.
        left: tensor -> why it cannot be divided.
    """

    spans: Mapping[str, ChannelRange]
    readers: Mapping[str, ConsumerChannels]
    size: int
    left: Mapping[str, str]


def find_routes(
    view: GraphView,
    proto: onnx.ModelProto,
    folder: Path | None,
    every: Mapping[str, PointConsumers],
    batch: Mapping[str, Array],
) -> Routes:
    """Find the channels of every point's readers.

    Args:
        view: of the model's graph.
        proto: the model.
        folder: where external data lie.
        every: point -> its way; see `find_ways`.
        batch: one batch, for the shapes that a graph computes.
    """
    left = {name: reason for name, way in every.items() if (reason := _why_not(view, way))}
    ways = {name: way for name, way in every.items() if name not in left}
    shapes = _shapes(proto, folder, list(ways), batch)
    spans = _spans(view, ways, shapes, left)
    while spans:
        labeled = _run_labels(view, proto, folder, {name: ways[name] for name in spans}, spans, shapes, batch)
        mixed = _mixed(view, labeled, spans, left)
        if not mixed:
            size = max(span.first + span.channels for span in spans.values())
            return Routes(spans, {key: ConsumerChannels(key, labels[0]) for key, labels in labeled.items()}, size, left)
        spans = {name: span for name, span in spans.items() if name not in mixed}
    return Routes({}, {}, 2, left)


def _why_not(view: GraphView, way: PointConsumers) -> str:
    """Why a division of a point cannot be made up for, "" where it can."""
    if way.others:
        node = way.others[0].node
        return f"{node.op} {node.name} reads it, which has no weights to make up for a division"
    if way.given_out:
        return f"{way.given_out[0]} is given out"
    if not way.ends:
        return "no weighted operator reads it"
    odd = next((use.node for use in way.ends if not readable(view, use.node)), None)
    return "" if odd is None else f"{odd.op} {odd.name} has a weight whose channels cannot be told"


def _shapes(
    proto: onnx.ModelProto, folder: Path | None, names: list[str], batch: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    if not names:
        return {}
    return {name: value.shape for name, value in OrtActivations(proto, folder, names).run(batch)}


def _spans(
    view: GraphView, ways: Mapping[str, PointConsumers], shapes: Mapping[str, tuple[int, ...]], left: dict[str, str]
) -> dict[str, ChannelRange]:
    spans: dict[str, ChannelRange] = {}
    first = UNIT + 1
    for name, way in ways.items():
        shape = shapes.get(name, ())
        axes = {input_axis(use.node, len(shape)) for use in way.ends} if not way.moves else {_channel_axis(shape, way)}
        if len(axes) != 1 or len(shape) < 2:
            left[name] = "its readers do not agree on an axis of channels"
            continue
        axis = axes.pop()
        spans[name] = ChannelRange(name, axis, len(shape), first, shape[axis])
        first += shape[axis]
    return spans


def _channel_axis(shape: tuple[int, ...], way: PointConsumers) -> int:
    """Behind operators that move values: the second axis for convolutions and pictures, else the last."""
    pictures = len(shape) == 4 or any(use.node.op in ("Conv", "ConvTranspose") for use in way.ends)
    return 1 if pictures else len(shape) - 1


def _run_labels(
    view: GraphView,
    proto: onnx.ModelProto,
    folder: Path | None,
    ways: Mapping[str, PointConsumers],
    spans: Mapping[str, ChannelRange],
    shapes: Mapping[str, tuple[int, ...]],
    batch: Mapping[str, Array],
) -> dict[str, list[Int64]]:
    """First output of a reader -> the labels of its input: [one per channel, or 0], [all labels met where mixed]."""
    graph, wanted = _label_graph(view, proto, ways, spans)
    feeds = dict(batch)
    for name, span in spans.items():
        shape = [1] * span.rank
        shape[span.axis] = span.channels
        numbers = np.arange(span.first, span.first + span.channels, dtype=np.float32).reshape(shape)
        feeds[_label(name)] = np.ascontiguousarray(np.broadcast_to(numbers, shapes[name]))
    known = {value.name for value in graph.graph.input}
    feeds = {name: value for name, value in feeds.items() if name in known}
    found = dict(OrtActivations(graph, folder, sorted(set(wanted.values()))).run(feeds))
    ends = {use.node.key: use for way in ways.values() for use in way.ends}
    return {key: _per_channel(found[wanted[key]], ends[key].node) for key in wanted}


def _label(name: str) -> str:
    return f"{name}\0label"


def _label_graph(
    view: GraphView, proto: onnx.ModelProto, ways: Mapping[str, PointConsumers], spans: Mapping[str, ChannelRange]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model of the moving operators alone, fed with labels; and the tensor in it that each reader would read."""
    moves = {id(node): node for way in ways.values() for node in way.moves}
    order = sorted(moves.values(), key=lambda node: (node.level, node.index))
    carried = set(spans)
    for node in order:
        carried.update(filter(None, node.outputs))
    nodes: list[onnx.NodeProto] = []
    needed: list[str] = []
    for node in order:
        copy = onnx.NodeProto()
        copy.CopyFrom(node.proto)
        for index, name in enumerate(node.inputs):
            root = view.root(name)
            if index in value_inputs(node):
                if root in carried:
                    copy.input[index] = _label(root)
                else:
                    nodes.extend(_units(name))
                    copy.input[index] = f"{name}\0unit"
                    needed.append(name)
            elif name:
                needed.append(name)
        for index, name in enumerate(node.outputs):
            copy.output[index] = _label(name) if name else ""
        nodes.append(copy)
    model = _model_of(view, proto, nodes, needed, spans)
    ends = {use.node.key: use for way in ways.values() for use in way.ends}
    return model, {key: _label(view.root(use.node.inputs[use.index])) for key, use in ends.items()}


def _units(name: str) -> Iterator[onnx.NodeProto]:
    """A tensor of the label UNIT in the shape of another one (which holds no NaN or Inf where it is calibrated)."""
    yield onnx.helper.make_node("Sub", [name, name], [f"{name}\0zero"])
    yield onnx.helper.make_node("Exp", [f"{name}\0zero"], [f"{name}\0unit"])


def _model_of(
    view: GraphView,
    proto: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    tensors: Iterable[str],
    spans: Mapping[str, ChannelRange],
) -> onnx.ModelProto:
    """The label operators with what computes their other inputs: shapes, sizes, indices."""
    model = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    model.graph.name = "labels"
    above, names = needed(view.every, tensors)
    model.graph.node.extend(node.proto for node in above)
    unique = {tuple(node.output): node for node in nodes}
    model.graph.node.extend(unique.values())
    model.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in names)
    model.graph.input.extend(value for value in proto.graph.input if value.name in names)
    for name, span in spans.items():
        kind = onnx.TensorProto.FLOAT
        model.graph.input.append(onnx.helper.make_tensor_value_info(_label(name), kind, [None] * span.rank))
    return model


def _per_channel(found: npt.NDArray[np.float32], node: Node) -> list[Int64]:
    """One label per channel of what an operator reads (0 where it holds nothing but padding); all of them if mixed."""
    axis = input_axis(node, found.ndim)
    rows = np.moveaxis(found, axis, 0).reshape(found.shape[axis], -1)
    high = rows.max(axis=1)
    low = np.where(rows > PAD, rows, np.float32(np.inf)).min(axis=1)
    labels = [high.astype(np.int64)]
    if ((low != high) & (high > PAD)).any() or (high != np.rint(high)).any():
        labels.append(np.unique(rows).astype(np.int64))
    return labels


def _mixed(
    view: GraphView, labeled: Mapping[str, list[Int64]], spans: Mapping[str, ChannelRange], left: dict[str, str]
) -> set[str]:
    """Tensors whose channels come together in one input channel of a reader, or are lost on the way."""
    mixed: set[str] = set()
    for key, found in labeled.items():
        if len(found) > 1:
            for name, span in spans.items():
                if ((found[1] >= span.first) & (found[1] < span.first + span.channels)).any():
                    left[name] = f"its channels are mixed before {view.producers[key].name}"
                    mixed.add(name)
    return mixed
