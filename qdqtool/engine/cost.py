# SPDX-License-Identifier: Apache-2.0
"""What predicted layers cost: how many there are, what only converts, the bytes that they move. No time is predicted.

In a strongly typed network bytes and multiply-adds go by the types of the file (`layer_types.py`), else by FP16.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qdqtool.display import counted
from qdqtool.engine.layer_work import LayerWidths, LayerWork, find_products, moved_values
from qdqtool.engine.predict import FLOAT, REFORMATS, PredictedLayer
from qdqtool.engine.products import count_products
from qdqtool.formats import number_format
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import sample_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index


@dataclass(frozen=True)
class Forecast:
    """The cost of a list of layers.

    A convolution of today's networks is bound by memory on a GPU, so bytes rank two placements of Q/DQ pairs on one
    network; they are no latency.

    Attributes:
        layers: how many.
        layers_by_format: "INT8", "FP8" ... -> how many compute in it; a format that none computes in is left out.
        conversions: kernels that only turn codes into float or back, or copy.
        float_residuals: fused Adds whose other branch comes in as float.
        bytes_moved: read and written by all layers, weights included; None where a shape is not known.
        bytes_by_type: "INT8", "FP16", "FP32" ... -> those of them that are of this type, the most first; empty where a
            shape is not known, or where the network is not strongly typed.
        macs_by_type: the same of the multiply-adds of products; empty likewise.
        products_by_type: how many products there are of each type, as `count_products` counts them; empty where the
            network is not strongly typed.
        kernels: in how many the layers run: a fused attention is one, and so is what hangs together between products.
    """

    layers: int
    layers_by_format: Mapping[str, int]
    conversions: int
    float_residuals: int
    bytes_moved: int | None
    bytes_by_type: Mapping[str, int] = field(default_factory=dict)
    macs_by_type: Mapping[str, int] = field(default_factory=dict)
    products_by_type: Mapping[str, int] = field(default_factory=dict)
    kernels: int = 0

    def cost(self) -> tuple[float, int]:
        """What orders placements of one network, the cheapest first: bytes moved, then layers."""
        return (math.inf if self.bytes_moved is None else self.bytes_moved, self.layers)


def forecast(
    view: GraphView,
    layers: Sequence[PredictedLayer],
    types: Mapping[str, int] | None = None,
    file: GraphView | None = None,
    kernels: Sequence[LayerWork] | None = None,
) -> Forecast:
    """The cost of the layers that were predicted for a graph, each a kernel of its own where no kernels are given.

    A code has the bits of its format. A float is as wide in a strongly typed network as it lies in memory there, the
    same for the layer that writes it and those that read it (`layer_types`); else two bytes as in an FP16 build, and
    the network's own inputs and outputs are FP32. Weights count as codes where the layer computes in their format, else
    as a float. A batch that is free counts as one sample.
    """
    shapes = sample_shapes(view)
    widths = LayerWidths(view, layers, types, file)
    moved = [item for place, layer in enumerate(layers) for item in moved_values(place, layer, shapes, widths)]
    known = [(kind, count) for kind, count in moved if count is not None]
    whole = len(known) == len(moved)
    kinds = None if types is None else _FloatTypes(view, widths, file or view)
    products = [] if kinds is None else list(_typed_products(view, layers, shapes, kinds))
    return Forecast(
        len(layers),
        Counter(number_format(layer.compute).title for layer in layers if _quantized(layer)),
        sum(one.kind in REFORMATS for one in (layers if kernels is None else kernels)),
        sum(layer.residual is not None and layer.residual.precision == FLOAT and _quantized(layer) for layer in layers),
        sum(count for _, count in known) if whole else None,
        _summed(known) if whole and types is not None else {},
        _macs_by_type(products),
        {} if kinds is None else count_products(view, kinds.of, types),
        len(layers if kernels is None else kernels),
    )


def layers_in_kernels(layers: int, kernels: int | None) -> str:
    """`129 layers in 97 kernels`, or the layers alone where that says no more."""
    more = "" if kernels in (None, layers) else f" in {counted(kernels or 0, 'kernel')}"
    return f"{counted(layers, 'layer')}{more}"


def _summed(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Type -> sum, the largest first."""
    sums: Counter[str] = Counter()
    for kind, count in items:
        sums[kind] += count
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _quantized(layer: PredictedLayer) -> bool:
    return layer.compute != FLOAT


def _macs_by_type(products: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """The shares of a network, or none at all: of some of its products they would be those of another network."""
    known = [(kind, count) for kind, count in products if count is not None]
    return _summed(known) if len(known) == len(products) else {}


class _FloatTypes:
    """The type in which a product multiplies floats."""

    def __init__(self, view: GraphView, widths: LayerWidths, file: GraphView) -> None:
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
    formats = {
        name: number_format(layer.compute).title for layer in layers if _quantized(layer) for name in layer.nodes
    }
    for node, product in find_products(view, shapes):
        yield formats.get(node.name) or kinds.of(node), None if product is None else product.macs
