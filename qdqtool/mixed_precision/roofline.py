# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds and bytes of weighted operators, and by a roofline what one costs more in FP16 than in INT8.

The constants of a device are data (`rules/devices.toml`). What comes out orders operators; it is no measurement.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.data.loader import Batch
from qdqtool.engine.macs import multiply_adds
from qdqtool.errors import QdqError
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_dims, weight_index
from qdqtool.rule_files import rules_folder
from qdqtool.runtime.activations import ObservableModel, OrtActivations

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from qdqtool.engine.cost import LayerWork


@dataclass(frozen=True)
class Device:
    """What a device does per second; see rules/devices.toml for the units."""

    name: str
    int8: float
    half: float
    memory: float
    launch: float

    def layer_microseconds(self, macs: int, moved: int, *, int8: bool) -> float:
        """The time of one layer by a roofline: multiplication or traffic, whichever is longer, and a launch."""
        rate = self.int8 if int8 else self.half
        return max(macs / (rate * 1e6), moved / (self.memory * 1e3)) + self.launch

    def microseconds(self, work: Iterable[LayerWork]) -> float:
        """The time of layers that run one after the other; a forecast, no measurement."""
        return sum(self.layer_microseconds(one.macs, one.moved, int8=one.int8) for one in work)


@dataclass(frozen=True)
class OperatorWork:
    """What one weighted operator does for one batch.

    Attributes:
        macs: multiply-adds.
        read: elements of its input.
        written: elements of its output.
        weights: elements of its weight.
        grid: sizes of its output without the batch and the channels: height and width of a convolution's.
    """

    macs: int
    read: int
    written: int
    weights: int
    grid: tuple[int, ...] = ()

    def extra_microseconds(self, device: Device) -> float:
        """What FP16 costs more than INT8: multiplication or traffic, whichever is longer, and one cast of the input."""
        moved = self.read + self.written + self.weights
        quick = max(self.macs / (device.int8 * 1e6), moved / (device.memory * 1e3))
        slow = max(self.macs / (device.half * 1e6), 2 * moved / (device.memory * 1e3))
        return slow - quick + device.launch


def known_devices() -> tuple[str, ...]:
    """The names of the devices of rules/devices.toml."""
    document = tomllib.loads((rules_folder() / "devices.toml").read_text(encoding="utf-8"))
    return tuple(entry["name"] for entry in document["device"])


def load_device(name: str | None = None, folder: Path | None = None) -> Device:
    """A device of rules/devices.toml; its default where no name is given.

    Raises:
        QdqError: no such device; the known ones are named.
    """
    document = tomllib.loads(((folder or rules_folder()) / "devices.toml").read_text(encoding="utf-8"))
    known = {entry["name"]: entry for entry in document["device"]}
    entry = known.get(name or document["default"])
    if entry is None:
        raise QdqError(str(name), "no such device", f"one of {', '.join(sorted(known))}")
    return Device(entry["name"], *(float(entry[key]) for key in ("int8", "half", "memory", "launch")))


def work_of(model: ObservableModel, sample: Batch, operators: Collection[str]) -> dict[str, OperatorWork]:
    """What weighted operators do for one batch: from the shapes that inference finds, or else from those of a run."""
    view = model.view
    nodes = [view.producers[key] for key in operators]
    wanted = {name for node in nodes for name in (node.outputs[0], _input(view, node)) if name}
    inferred = known_shapes(view)
    shapes = {name: tuple(dim for dim in inferred.get(name, (None,)) if dim) for name in wanted}
    unknown = sorted(name for name, shape in shapes.items() if len(shape) != len(inferred.get(name, (None,))))
    if unknown:
        run = OrtActivations.of(model, model.chosen(unknown), few_runs=True).run(sample)
        shapes |= {name: array.shape for name, array in run}
    return {node.key: _work(view, node, shapes) for node in nodes}


def _input(view: GraphView, node: Node) -> str:
    index = weight_index(view, node)
    return "" if index is None else view.root(node.inputs[1 - index])


def _work(view: GraphView, node: Node, shapes: dict[str, tuple[int, ...]]) -> OperatorWork:
    index = weight_index(view, node)
    dims = weight_dims(view, node.inputs[index if index is not None else 1])
    data, output = shapes.get(_input(view, node), (0,)), shapes.get(node.outputs[0], ())
    first, second = (dims, data) if index == 0 else (data, dims)
    grid = output[2:] if node.op in ("Conv", "ConvTranspose") else output[1:-1]
    macs = multiply_adds(node, first, second, output)
    return OperatorWork(macs, math.prod(data), math.prod(output), math.prod(dims), grid)
