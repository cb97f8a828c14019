# SPDX-License-Identifier: Apache-2.0
"""The time of a pruned network by the cost model over predicted layers. A forecast: nothing is built or measured.

A layer takes as long as its multiply-adds or its bytes take, whichever is more, and one launch. Tensor Cores work on
whole blocks of channels (32 in INT8, 8 in FP16), and activations lie in blocks as wide, so that sizes are rounded up to
them: a channel less pays only where a block becomes empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtool.engine.layer_work import LayerWork, Unit, product_of
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.forecasting.layer_time import BLOCKS, LayerTimes
from qdqtool.graph.view import GraphView, Node
from qdqtool.pruning.channel_groups import ChannelMap
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.weight_axes import ChannelAxis, is_depthwise
from qdqtool.trtversion import TrtVersion

_VECTOR = 4  # channels that an INT8 input of few channels is padded to


@dataclass(frozen=True, eq=False)
class _Product:
    """A weighted operator: what it reads and makes."""

    node: Node
    made: ChannelAxis


@dataclass(frozen=True, eq=False)
class _LayerWork:
    """A predicted layer: tensors that it moves, products that it computes, and in which of the two types."""

    tensors: tuple[str, ...]
    products: tuple[_Product, ...]
    unit: Unit


class LatencyForecast:
    """The forecast of a graph without some channels."""

    def __init__(
        self, channels: ChannelMap, times: LayerTimes, version: TrtVersion | None = None, *, half: bool = False
    ) -> None:
        """Predict the layers of the whole graph; they stay the same when channels go.

        With Q/DQ each layer counts as it is predicted: INT8 or FP16.
        """
        view = channels.view
        self.source = f"forecast for {times.device.name} by predicted layers, not measured"
        self._times = times
        made = {axis.use.node.key: axis for axis in channels.axes if axis.role == "made"}
        unit: Unit | None = None if view.pairs else "half" if half else "int8"
        self._layers = [_work(view, layer, made, unit) for layer in predict_layers(view, version)]
        self._touched: dict[str, list[int]] = {}
        for place, layer in enumerate(self._layers):
            for name in layer.tensors:
                self._touched.setdefault(name, []).append(place)

    def microseconds(self, cut: Cut) -> float:
        """The time of the whole network."""
        return sum(self.layer_times(cut))

    def layer_times(self, cut: Cut, places: Sequence[int] | None = None) -> list[float]:
        """The time of each layer, or of those at some places, in microseconds."""
        chosen = self._layers if places is None else [self._layers[place] for place in places]
        return [self._time(layer, cut) for layer in chosen]

    def touched(self, cut: Cut) -> list[int]:
        """The layers that read or write what a cut makes smaller."""
        return sorted({place for name, places in self._touched.items() if cut.kept(name) for place in places})

    def _time(self, layer: _LayerWork, cut: Cut) -> float:
        block, size = BLOCKS[layer.unit], 1 if layer.unit == "int8" else 2
        tensors = {name: _blocked(cut.shape(name), block) * size for name in layer.tensors}
        products, weights = [], 0
        for one in layer.products:
            weight, node = cut.weight_shape(one.made), one.node
            products.append(product_of(cut.channels.view, node, cut.shape(node.inputs[0]), weight, cut.shape(node.key)))
            weights += _blocked_weight(cut, one, block) * size
        return self._times.of(LayerWork("", "", (), layer.unit, tuple(products), tensors, {}, weights))


def _work(view: GraphView, layer: PredictedLayer, made: Mapping[str, ChannelAxis], unit: Unit | None) -> _LayerWork:
    names = {name: None for port in (*layer.inputs, *layer.outputs) for name in [view.root(port.tensor)]}
    products = [_Product(axis.use.node, axis) for axis in made.values() if axis.use.node.name in layer.nodes]
    return _LayerWork(tuple(names), tuple(products), unit or ("int8" if layer.compute == "int8" else "half"))


def _blocked_weight(cut: Cut, product: _Product, block: int) -> int:
    """Elements of a weight in memory: what is made and what is summed up in whole blocks."""
    weight, node = list(cut.weight_shape(product.made)), product.node
    if node.op in ("Conv", "ConvTranspose") and is_depthwise(cut.channels.view, node):
        return math.prod([_up(weight[0], block), *weight[1:]])
    return math.prod([_up(size, block if size > _VECTOR else _VECTOR) for size in weight[:2]] + weight[2:])


def _up(size: int, block: int) -> int:
    return -(-size // block) * block


def _blocked(shape: Sequence[int], block: int) -> int:
    """Elements of a tensor in memory: its channels in whole blocks, few of them in vectors of 4."""
    if len(shape) < 2:
        return math.prod(shape)
    axis = 1 if len(shape) != 3 else 2
    unit = block if shape[axis] > _VECTOR else _VECTOR
    return math.prod(size if place != axis else _up(size, unit) for place, size in enumerate(shape))
