# SPDX-License-Identifier: Apache-2.0
"""The time of a layer on a device: products or bytes, whichever take longer, and a launch. A forecast, no measurement.

Tensor Cores compute whole blocks of channels, and a multiprocessor a tile of the result at a time: small products leave
some of both idle. Tensors that fit into the second-level cache are read from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from qdqtool.engine.layer_work import LayerWork, Product, Unit
from qdqtool.forecasting.devices import CostConstants, Device, load_constants

BLOCKS: dict[Unit, int] = {"int8": 32, "fp8": 32, "fp4": 64, "half": 8, "single": 4}
"""Channels that Tensor Cores take at a time (NVIDIA, Deep Learning Performance Guide)."""

_VECTOR = 4  # channels that an input of few channels is padded to
_WEIGHTS_STAY = 0.5  # of the cache: weights of a network that take no more stay there from one inference to the next
_TENSOR_STAYS = 0.5  # likewise of a tensor until the next layer reads it


class LayerTimes:
    """Times of layers on one device."""

    def __init__(self, device: Device, constants: CostConstants | None = None, factor: float = 1.0) -> None:
        """Take the constants of rules/devices.toml unless others are given; `factor` is of all times."""
        self.device, self._factor = device, factor
        self.constants = constants or load_constants()
        self._l2 = self.constants.l2 * device.units * device.clock * 1e3  # bytes per microsecond
        self._memory = self.constants.memory * device.memory * 1e3
        self._known: dict[tuple[object, ...], float] = {}  # networks repeat layers, and a ratio asks twice for each

    def total(self, layers: Iterable[LayerWork]) -> float:
        """Microseconds of layers that run one after the other."""
        return math.fsum(self.of_each(layers))

    def of_each(self, layers: Iterable[LayerWork]) -> list[float]:
        """Microseconds of each layer of a network."""
        layers = list(layers)
        cached = sum(layer.weights for layer in layers) <= _WEIGHTS_STAY * self.device.l2
        return [self.of(layer, cached=cached) for layer in layers]

    def scaled(self, factor: float) -> LayerTimes:
        """The same with all times multiplied, so that an engine's are as measured; their interval is narrower."""
        constants = replace(self.constants, spread=min(self.constants.spread, self.constants.ratio_spread))
        return LayerTimes(self.device, constants, self._factor * factor)

    def of(self, layer: LayerWork, *, cached: bool = False) -> float:
        """Microseconds of one layer; `cached` where the weights of the network stay in the second-level cache."""
        alike = (layer.kind, layer.unit, layer.products, layer.activations, layer.weights, cached)
        if alike not in self._known:
            work = max(self.computing(layer), self.moving(layer, cached=cached))
            self._known[alike] = (work + self.constants.launch / self.device.clock) * self._factor
        return self._known[alike]

    @property
    def launch(self) -> float:
        """Microseconds of a kernel beside its work."""
        return self.constants.launch / self.device.clock * self._factor

    def computing(self, layer: LayerWork) -> float:
        """Microseconds of the products of a layer."""
        share = self.constants.attention if layer.kind == "attention" else 1.0
        return (
            math.fsum(
                self._product(product, layer.unit, convolves=layer.kind == "convolution") for product in layer.products
            )
            / share
        )

    def moving(self, layer: LayerWork, *, cached: bool = False) -> float:
        """Microseconds of what a layer reads and writes."""
        fitting = [size for size in layer.activations if size <= _TENSOR_STAYS * self.device.l2]
        near = sum(fitting) + (layer.weights if cached else 0)
        far = sum(layer.activations) + layer.weights - near
        return far / self._memory + near / max(self._l2, self._memory)

    def _product(self, product: Product, unit: Unit, *, convolves: bool) -> float:
        unit = unit if self.device.rates[unit] else "half"
        if product.is_depthwise:
            return product.macs / (self.device.per_microsecond("vector") * self.constants.vector)
        block, units = BLOCKS[unit], self.device.units
        channels = product.depth // product.kernel
        depth = product.kernel * (_up(channels, block) if channels > _VECTOR else _VECTOR)
        columns = _up(product.columns, block)
        tiles = max(1.0, product.count * product.rows * columns / self.constants.tile)
        parts = max(1.0, min(units / tiles, depth / (8 * block)))  # depth is split up where tiles are too few
        busy = min(1.0, tiles * parts / units)
        share = self.constants.tensor * busy
        if unit in ("int8", "fp8") and not convolves:
            share *= self.constants.quantized_product
        elif unit == "fp8":
            share *= self.constants.fp8_convolution
        return product.count * product.rows * columns * depth / (self.device.per_microsecond(unit) * share)


def _up(size: int, block: int) -> int:
    return -(-size // block) * block
