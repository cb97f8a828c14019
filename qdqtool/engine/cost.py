# SPDX-License-Identifier: Apache-2.0
"""What predicted layers cost: how many there are, what only converts, the bytes that they move. No time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtool.engine.predict import REFORMATS, Port, PredictedLayer
from qdqtool.graph.shapes import Shape, shapes_of
from qdqtool.graph.view import GraphView

FP16_BYTES, FP32_BYTES = 2, 4


@dataclass(frozen=True)
class Forecast:
    """The cost of a list of layers.

    A convolution of today's networks is bound by memory on a GPU, so bytes rank two placements of Q/DQ pairs on one
    network; they are no latency.

    Attributes:
        layers: how many.
        int8_layers: those that compute with integers.
        conversions: those that only turn INT8 into float or back, or copy.
        float_residuals: fused Adds whose other branch comes in as float.
        bytes_moved: read and written by all layers, weights included; None where a shape is not known.
    """

    layers: int
    int8_layers: int
    conversions: int
    float_residuals: int
    bytes_moved: int | None

    def cost(self) -> tuple[float, int]:
        """What orders placements of one network, the cheapest first: bytes moved, then layers."""
        return (math.inf if self.bytes_moved is None else self.bytes_moved, self.layers)


def forecast(view: GraphView, layers: Sequence[PredictedLayer]) -> Forecast:
    """The cost of the layers that were predicted for a graph.

    An INT8 value is one byte, a float two as in an FP16 build; the network's own inputs and outputs are FP32. Weights
    count one byte each where the layer computes in INT8, else two. A batch that is free counts as one sample.

    Args:
        view: the graph.
        layers: from `predict_layers` on it.
    """
    shapes = shapes_of(view)
    ends = frozenset((*view.inputs, *view.outputs))
    moved: list[int | None] = [
        _port_bytes(port, shapes, ends) for layer in layers for port in (*layer.inputs, *layer.outputs)
    ]
    moved += [_weight_bytes(layer, shapes) for layer in layers]
    known = [count for count in moved if count is not None]
    return Forecast(
        len(layers),
        sum(layer.compute == "int8" for layer in layers),
        sum(layer.kind in REFORMATS for layer in layers),
        sum(layer.residual is not None and layer.residual.precision == "float" and _int8(layer) for layer in layers),
        sum(known) if len(known) == len(moved) else None,
    )


def _int8(layer: PredictedLayer) -> bool:
    return layer.compute == "int8"


def _port_bytes(port: Port, shapes: Mapping[str, Shape], ends: frozenset[str]) -> int | None:
    axes = shapes.get(port.tensor)
    if axes is None or None in axes[1:]:
        return None
    width = 1 if port.precision == "int8" else FP32_BYTES if port.tensor in ends else FP16_BYTES
    return math.prod(axis or 1 for axis in axes) * width


def _weight_bytes(layer: PredictedLayer, shapes: Mapping[str, Shape]) -> int:
    width = 1 if layer.compute == "int8" else FP16_BYTES
    sizes = [shapes.get(name, ()) for name in layer.weights]
    return sum(math.prod(axis or 1 for axis in axes) * width for axes in sizes)
