# SPDX-License-Identifier: Apache-2.0
"""What predicted layers cost: how many there are, what only converts, the bytes that they move. No time is predicted.

In a strongly typed network bytes and multiply-adds go by the types of the file (`layer_types.py`), else by FP16.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import TensorProto

from qdqtool.engine.layer_types import layer_types
from qdqtool.engine.macs import multiply_adds
from qdqtool.engine.predict import REFORMATS, PredictedLayer
from qdqtool.engine.products import INT8, count_products
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import sample_shapes
from qdqtool.graph.tensors import BITS
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.precision.element_types import type_name

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
        bytes_by_type: "INT8", "FP16", "FP32" ... -> those of them that are of this type, the most first; empty where a
            shape is not known, or where the network is not strongly typed.
        macs_by_type: the same of the multiply-adds of products; empty likewise.
        products_by_type: how many products there are of each type, as `count_products` counts them; empty where the
            network is not strongly typed.
    """

    layers: int
    int8_layers: int
    conversions: int
    float_residuals: int
    bytes_moved: int | None
    bytes_by_type: Mapping[str, int] = field(default_factory=dict)
    macs_by_type: Mapping[str, int] = field(default_factory=dict)
    products_by_type: Mapping[str, int] = field(default_factory=dict)

    def cost(self) -> tuple[float, int]:
        """What orders placements of one network, the cheapest first: bytes moved, then layers."""
        return (math.inf if self.bytes_moved is None else self.bytes_moved, self.layers)


def forecast(
    view: GraphView,
    layers: Sequence[PredictedLayer],
    types: Mapping[str, int] | None = None,
    file: GraphView | None = None,
) -> Forecast:
    """The cost of the layers that were predicted for a graph.

    An INT8 value is one byte. A float is as wide in a strongly typed network as it lies in memory there, the same for
    the layer that writes it and those that read it (`layer_types`); else two bytes as in
    an FP16 build, and the network's own inputs and outputs are FP32. Weights count one byte each where the layer
    computes in INT8, else as a float. A batch that is free counts as one sample.
    """
    shapes = sample_shapes(view)
    widths = _Widths(view, layers, types, file)
    moved = [item for place, layer in enumerate(layers) for item in _moved(place, layer, shapes, widths)]
    known = [(kind, count) for kind, count in moved if count is not None]
    whole = len(known) == len(moved)
    kinds = None if types is None else _FloatTypes(view, widths, file or view)
    products = [] if kinds is None else list(_typed_products(view, layers, shapes, kinds))
    return Forecast(
        len(layers),
        sum(layer.compute == "int8" for layer in layers),
        sum(layer.kind in REFORMATS for layer in layers),
        sum(layer.residual is not None and layer.residual.precision == "float" and _int8(layer) for layer in layers),
        sum(count for _, count in known) if whole else None,
        _summed(known) if whole and types is not None else {},
        _macs_by_type(products),
        {} if kinds is None else count_products(view, kinds.of, types),
    )


@dataclass(frozen=True)
class LayerWork:
    """What one layer computes and moves for one sample.

    Attributes:
        macs: multiply-adds of its products.
        moved: bytes that it reads and writes, weights included.
        int8: whether it computes in INT8.
    """

    macs: int
    moved: int
    int8: bool


def layer_work(
    view: GraphView,
    layers: Sequence[PredictedLayer],
    types: Mapping[str, int] | None = None,
    file: GraphView | None = None,
) -> list[LayerWork] | None:
    """The work of each layer, counted as `forecast` counts it; None where a shape is not known."""
    shapes = sample_shapes(view)
    widths = _Widths(view, layers, types, file)
    macs = {node.name: count or 0 for node, count in product_macs(view, shapes)}
    found = []
    for place, layer in enumerate(layers):
        moved = [count for _, count in _moved(place, layer, shapes, widths)]
        known = [count for count in moved if count is not None]
        if len(known) < len(moved):
            return None
        found.append(LayerWork(sum(macs.get(name, 0) for name in layer.nodes), sum(known), _int8(layer)))
    return found


class _Widths:
    """What a value of a tensor is in memory."""

    def __init__(
        self,
        view: GraphView,
        layers: Sequence[PredictedLayer],
        types: Mapping[str, int] | None,
        file: GraphView | None,
    ) -> None:
        self._types, self._ends = types, frozenset((*view.inputs, *view.outputs))
        self._ports = None if types is None else layer_types(file or view, layers, types)

    def of(self, tensor: str, *, int8: bool = False) -> tuple[str, int]:
        """A tensor's type in the file as people write it, and bits of a value."""
        if int8:
            return "INT8", 8
        if self._types is None:
            return ("FP32", 8 * FP32_BYTES) if tensor in self._ends else ("FP16", 8 * FP16_BYTES)
        return _named(self._types.get(tensor, int(TensorProto.FLOAT)))

    def of_ports(self, place: int, layer: PredictedLayer) -> list[tuple[str, int]]:
        """The same of all that a layer reads and writes, as it lies in memory there."""
        if self._ports is None:
            return [self.of(port.tensor, int8=port.precision == "int8") for port in (*layer.inputs, *layer.outputs)]
        return [_named(code) for code in (*self._ports[place].inputs, *self._ports[place].outputs)]


def _named(code: int) -> tuple[str, int]:
    return type_name(code), BITS.get(code, 8 * FP32_BYTES)


def _summed(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Type -> sum, the largest first."""
    sums: Counter[str] = Counter()
    for kind, count in items:
        sums[kind] += count
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _int8(layer: PredictedLayer) -> bool:
    return layer.compute == "int8"


def _moved(
    place: int, layer: PredictedLayer, shapes: Mapping[str, Shape], widths: _Widths
) -> Iterator[tuple[str, int | None]]:
    """Type and bytes of everything that a layer reads and writes; None for bytes that are not known."""
    for port, (kind, bits) in zip((*layer.inputs, *layer.outputs), widths.of_ports(place, layer), strict=True):
        axes = shapes.get(port.tensor)
        known = axes is not None and None not in axes[1:]
        yield kind, _bytes(axes, bits) if known and axes is not None else None
    for name in layer.weights:
        kind, bits = widths.of(name, int8=_int8(layer))
        yield kind, _bytes(shapes.get(name, ()), bits)


def _bytes(axes: Shape, bits: int) -> int:
    return (math.prod(axis or 1 for axis in axes) * bits + 7) // 8


def _macs_by_type(products: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """The shares of a network, or none at all: of some of its products they would be those of another network."""
    known = [(kind, count) for kind, count in products if count is not None]
    return _summed(known) if len(known) == len(products) else {}


class _FloatTypes:
    """The type in which a product multiplies floats."""

    def __init__(self, view: GraphView, widths: _Widths, file: GraphView) -> None:
        self._view, self._widths = view, widths
        self._written = {node.name: node for node in file.every}

    def of(self, node: Node) -> str:
        """As people write it."""
        twin = self._written.get(node.name, node)  # as the file has it, with the Cast that it reads
        named_otherwise = twin.op != node.op  # after an output that a Cast makes in the file; or in a body
        operand = (node if named_otherwise else twin).inputs[weight_index(self._view, node) or 0]
        return self._widths.of(operand)[0]


def _typed_products(
    view: GraphView, layers: Sequence[PredictedLayer], shapes: Mapping[str, Shape], kinds: _FloatTypes
) -> Iterator[tuple[str, int | None]]:
    """The type in which each product multiplies, and its multiply-adds."""
    int8 = {name for layer in layers if _int8(layer) for name in layer.nodes}
    for node, count in product_macs(view, shapes):
        yield INT8 if node.name in int8 else kinds.of(node), count


def product_macs(view: GraphView, shapes: Mapping[str, Shape]) -> Iterator[tuple[Node, int | None]]:
    """Each product with its multiply-adds, a free batch counted as 1; None where another side is not known."""
    for node in view.every:
        if not is_product(node) or len(node.inputs) < 2:
            continue
        found = [shapes.get(name) for name in (*node.inputs[:2], node.outputs[0])]
        first, second, output = (None if axes is None or None in axes[1:] else axes for axes in found)
        known = first is not None and second is not None and output is not None
        yield node, multiply_adds(node, *map(_sized, (first, second, output))) if known else None


def _sized(axes: Shape | None) -> list[int]:
    return [axis or 1 for axis in axes or ()]
