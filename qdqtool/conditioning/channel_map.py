# SPDX-License-Identifier: Apache-2.0
"""From each quantized tensor to the weights that read it: which input channel of which operator holds which channel.

Shapes, and sizes that a graph computes, come from one run; where channels go is read off the operators between
(`graph/channels/couplings.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.point_consumers import PointConsumers
from qdqtool.graph.channels.atoms import PINNED, ChannelAtoms, ChannelRow
from qdqtool.graph.channels.couplings import couple
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Use
from qdqtool.passes.condition.layout import input_axis, readable
from qdqtool.runtime.executor import Executor, out_of_reach

Int64 = npt.NDArray[np.int64]
Array = npt.NDArray[np.generic]

UNIT = PINNED  # the label of a value that is not divided; NONE is that of a zero that was filled in


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
        consumers: first output of a weighted operator -> its input channels.
        size: number of labels, the two reserved ones among them.
        left: tensor -> why it cannot be divided.
    """

    spans: Mapping[str, ChannelRange]
    consumers: Mapping[str, ConsumerChannels]
    size: int
    left: Mapping[str, str]


def find_routes(
    model: Model, every: Mapping[str, PointConsumers], batch: Mapping[str, Array], *, alone: bool = True
) -> Routes:
    """Find the channels of every point's consumers."""
    view = model.view
    left = {name: reason for name, way in every.items() if (reason := why_shared(view, way))} if alone else {}
    ways = {name: _readable(view, way) for name, way in every.items() if name not in left}
    seen = _run_ways(model, ways, batch)
    marked = _spans(ways, {name: value.shape for name, value in seen.items()}, left)
    spans = dict(marked)
    while spans:
        atoms = _follow(view, ways, marked, spans, seen)
        rows = {use.node.key: _row(atoms, use) for name in spans for use in ways[name].ends}
        lost = _lost(view, atoms, ways, rows, spans, left)
        if not lost:
            size = max(span.first + span.channels for span in spans.values())
            found = {key: ConsumerChannels(key, row.atoms) for key, row in rows.items() if row is not None}
            return Routes(spans, found, size, left)
        spans = {name: span for name, span in spans.items() if name not in lost}
    return Routes({}, {}, 2, left)


def why_shared(view: GraphView, way: PointConsumers) -> str:
    """Why a division of a point alone cannot be made up for by those that read it, "" where it can."""
    if way.others:
        node = way.others[0].node
        return f"{node.op} {node.name} reads it, which has no weights that could compensate a division"
    if way.given_out:
        return f"{way.given_out[0]} is given out"
    if not way.ends:
        return "no operator with weights reads it"
    odd = next((use.node for use in way.ends if not readable(view, use.node)), None)
    return "" if odd is None else f"{odd.op} {odd.name} has a weight whose channels cannot be determined"


def _readable(view: GraphView, way: PointConsumers) -> PointConsumers:
    return replace(way, ends=tuple(use for use in way.ends if readable(view, use.node)))


def _run_ways(model: Model, ways: Mapping[str, PointConsumers], batch: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor on the ways of one batch, and what is computed of the sizes and indices of their operators."""
    view = model.view
    moves = [node for way in ways.values() for node in way.moves]
    read = [name for node in moves for name in node.inputs if name and not view.is_constant(name)]
    made = [name for node in moves for name in node.outputs if name]
    ends = [use.node.inputs[use.index] for way in ways.values() for use in way.ends]
    wanted = dict.fromkeys(map(view.root, (*ways, *read, *made, *ends)))
    if not wanted:
        return {}
    lacking = out_of_reach(model)
    return Executor(model, [name for name in wanted if name not in lacking]).run(batch)


def _spans(
    ways: Mapping[str, PointConsumers], shapes: Mapping[str, tuple[int, ...]], left: dict[str, str]
) -> dict[str, ChannelRange]:
    spans: dict[str, ChannelRange] = {}
    first = UNIT + 1
    for name, way in ways.items():
        shape = shapes.get(name, ())
        direct = bool(way.ends) and not way.moves
        axes = {input_axis(use.node, len(shape)) for use in way.ends} if direct else {_channel_axis(shape, way)}
        if len(axes) != 1 or len(shape) < 2:
            left[name] = "its consumers do not agree on the channel axis"
            continue
        axis = axes.pop()
        spans[name] = ChannelRange(name, axis, len(shape), first, shape[axis])
        first += shape[axis]
    return spans


def _channel_axis(shape: tuple[int, ...], way: PointConsumers) -> int:
    """Behind operators that move values: the second axis for convolutions and pictures, else the last."""
    pictures = len(shape) == 4 or any(use.node.op in ("Conv", "ConvTranspose") for use in way.ends)
    return 1 if pictures else len(shape) - 1


def _follow(
    view: GraphView,
    ways: Mapping[str, PointConsumers],
    marked: Mapping[str, ChannelRange],
    spans: Mapping[str, ChannelRange],
    seen: Mapping[str, Array],
) -> ChannelAtoms:
    """The atoms of the tensors on the ways; channels are numbered as in `marked`, and those left alone are PINNED."""

    def value(name: str) -> Array | None:
        return view.array(name) if view.is_constant(name) else seen.get(view.root(name))

    atoms = ChannelAtoms(view, {name: array.shape for name, array in seen.items()}, value)
    for name, span in marked.items():
        atoms.mark(name, span.axis)
        if name not in spans:
            atoms.set(name, np.full((1,) * span.rank, PINNED))
    moves = {id(node): node for name in spans for node in ways[name].moves}
    couple(atoms, sorted(moves.values(), key=lambda node: (node.level, node.index)))
    return atoms


def _row(atoms: ChannelAtoms, use: Use) -> ChannelRow | None:
    """The atom of each input channel of what a weighted operator reads."""
    name = use.node.inputs[use.index]
    shape = atoms.shape(name)
    return None if shape is None else atoms.row(name, input_axis(use.node, len(shape)))


def _lost(
    view: GraphView,
    atoms: ChannelAtoms,
    ways: Mapping[str, PointConsumers],
    rows: Mapping[str, ChannelRow | None],
    spans: Mapping[str, ChannelRange],
    left: dict[str, str],
) -> set[str]:
    """Tensors whose channels come together in one input channel of a consumer, or cannot be followed to it."""
    lost: set[str] = set()
    for name, span in spans.items():
        own = np.arange(span.first, span.first + span.channels)
        mixed = [key for key, row in rows.items() if row is not None and np.isin(own, row.mixed).any()]
        if mixed:
            left[name] = f"its channels are mixed before {view.producers[mixed[-1]].name}"
        elif atoms.pinned(own).any() or any(rows[use.node.key] is None for use in ways[name].ends):
            left[name] = "an operator that moves its channels cannot be followed"
        else:
            continue
        lost.add(name)
    return lost
