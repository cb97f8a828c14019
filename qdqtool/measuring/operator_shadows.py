# SPDX-License-Identifier: Apache-2.0
"""The shadow of one weighted operator in a copy of its graph: what is added, and the sums that come out of it.

It computes with int8 weights on the float input quantized with every scale, beside each other along the first axis.
Where the copy runs, and on what, is said elsewhere (shadow_losses.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.formats import INT8
from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import output_axis, weight_index
from qdqtool.measuring.thinning import SPATIAL, Thinned, steps_of
from qdqtool.runtime.activations import RoundedWeight
from qdqtool.simulation.rounding import fake_quantize, weight_steps
from qdqtool.simulation.shadow_copy import ShadowCopy

Float64 = npt.NDArray[np.float64]

# Values of an operator's input with all of its scales beside each other; where there are more, some after the others.
_BESIDE_BYTES = 4 << 20
FLOAT_BYTES = 4
# Below this opset operators do not broadcast as written here; below the other one no position can be left out.
_OLDEST, _SLICES = 7, 10


@dataclass(frozen=True)
class Trial:
    """A weighted operator, the scales its input is tried with, and the axis of its weight with one scale per channel.

    Attributes:
        node: first output of the operator.
        scales: float32 scales of the input.
        axis: of the weight; None for one scale.
        int8: whether its weight is quantized; a float head that reads an INT8 tensor has a float one.
        macs: multiply-adds of the operator for one sample, where they are known.
        read: values that it reads for one sample, where that is known.
    """

    node: str
    scales: tuple[np.float32, ...]
    axis: int | None
    int8: bool = True
    macs: int = 0
    read: int = 0


@dataclass(frozen=True)
class LayerError:
    """What an operator loses with each scale, summed over all samples.

    Attributes:
        error: float64[scales], sum of (output with int8 - float output)^2.
        shift: float64[scales], the part of it that is a constant per channel: elements per channel * mean^2, summed.
        signal: sum over channels of (float output - its mean)^2.
    """

    error: Float64
    shift: Float64
    signal: float

    @property
    def is_valid(self) -> bool:
        """Whether there was something to lose, and it could be summed: not where values beyond float32 came out."""
        return self.signal > 0 and bool(np.isfinite([self.signal, *self.error, *self.shift]).all())


@dataclass(frozen=True)
class ShadowNames:
    """What one shadow gives out: the sums per scale and per channel, the float output's, its number of elements.

    `errors` and `means` are of some scales each, in their order.
    """

    errors: tuple[str, ...]
    means: tuple[str, ...]
    square: str
    mean: str
    size: str

    def every(self) -> tuple[str, ...]:
        """The tensors."""
        return (*self.errors, *self.means, self.square, self.mean, self.size)


class ShadowSums:
    """What shadows gave out, summed over samples."""

    def __init__(self, shadows: Mapping[str, ShadowNames]) -> None:
        self._shadows = shadows
        self._sums: dict[str, Float64] = {}

    def add(self, given: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add one sample."""
        for names in self._shadows.values():
            got = {name: np.asarray(given[name], np.float64) for name in names.every()}
            many = float(got[names.size]) / got[names.mean].size
            got.update({name: got[name] * many for name in (*names.means, names.mean)})
            for name, value in got.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value

    def errors(self) -> dict[str, LayerError]:
        """First output of each operator -> what it loses; {} without samples."""
        return {node: _error_of(self._sums, names) for node, names in self._shadows.items()} if self._sums else {}


def _error_of(sums: Mapping[str, Float64], names: ShadowNames) -> LayerError:
    channel = sums[names.mean].reshape(-1)
    many = float(sums[names.size]) / channel.size
    signal = float(sums[names.square].sum()) - float((channel**2).sum()) / many
    means = np.concatenate([sums[name].reshape(-1, channel.size) for name in names.means])
    with np.errstate(over="ignore", invalid="ignore"):  # of a model whose values have no end
        shift = ((means - channel) ** 2).sum(axis=1) / many
    error = np.concatenate([sums[name].reshape(-1) for name in names.errors])
    return LayerError(error, shift, max(signal, 0.0))


def add_shadows(
    copy: ShadowCopy,
    view: GraphView,
    trials: Sequence[Trial],
    thinning: int,
    rounded: dict[RoundedWeight, npt.NDArray[Any]] | None = None,
) -> dict[str, ShadowNames]:
    """Add the shadows of some operators to a copy of their graph."""
    weights = {} if rounded is None else rounded
    found = {trial.node: _add(copy, view, trial, thinning, weights) for trial in trials}
    return {node: names for node, names in found.items() if names is not None}


def _add(
    copy: ShadowCopy, view: GraphView, trial: Trial, thinning: int, rounded: dict[RoundedWeight, npt.NDArray[Any]]
) -> ShadowNames | None:
    """The twin of one operator and its sums; None where its weight or its form does not allow one."""
    node = view.producers[trial.node]
    index = weight_index(view, node)
    weight = None if index is None else view.array(node.inputs[index])
    if index is None or weight is None or weight.dtype != np.float32 or attribute(node, "transA", 0):
        return None
    channels = _channels(node, index, weight)
    if copy.opset < _OLDEST or not channels:
        return None
    shapes = known_shapes(view)
    before, sides = ((shapes.get(name) or ())[2:] for name in (node.inputs[1 - index], node.outputs[0]))
    positions = trial.macs // max(weight.size, 1)
    steps = steps_of(node, weight.ndim - 2, positions, sides, thinning if copy.opset >= _SLICES else 1)
    heights = (before[0], sides[0]) if before and sides and before[0] and sides[0] else None
    thinned = Thinned.of(copy, node, index, weight, steps, heights)
    inputs: dict[int, str] = {}
    if trial.int8:
        values = weight.astype(np.float32, copy=False)
        scales = weight_steps(values, trial.axis)
        int8 = fake_quantize(values, scales, "even", INT8.weight_codes)
        inputs[index] = made = copy.weight(node.inputs[index], int8)
        axis = None if trial.axis is None else trial.axis % values.ndim
        rounded[node.inputs[index], scales.tobytes(), axis] = copy.weights.get(made, int8)
    source, plain = thinned.source, thinned.plain
    if node.op == "MatMul":
        source, several = copy.on_new_axis(source), False
    else:
        several = (shapes.get(node.inputs[1 - index]) or (None,))[0] != 1
    channel, sums = _ChannelMeans(channels, node.op in SPATIAL, several), []
    for some in _beside(trial.scales, trial.read // thinned.left):
        inputs[1 - index] = _tried(copy, source, some, several=several)
        tried = copy.twin(node, inputs, **thinned.changed)
        sums.append((_errors(copy, tried, plain, len(some)), channel.means(copy, tried, len(some))))
    # What leaves the graph, with that of the float output
    errors, means = zip(*sums, strict=True)
    square = copy.with_axes("ReduceSumSquare", copy.reshaped(plain, (1, -1)), [1], keepdims=1)
    return ShadowNames(errors, means, square, channel.means(copy, plain, 1), copy.size(plain))


def _beside(scales: tuple[np.float32, ...], read: int) -> Iterator[tuple[np.float32, ...]]:
    """The scales, in parts whose tensors, of so many values each, are held beside each other."""
    most = max(1, _BESIDE_BYTES // max(FLOAT_BYTES * read, 1))
    for first in range(0, len(scales), most):
        yield scales[first : first + most]


def _tried(copy: ShadowCopy, tensor: str, scales: tuple[np.float32, ...], *, several: bool) -> str:
    """The tensor quantized with every scale, side by side along the first axis, which may have several indices."""
    if several:
        return copy.append("Concat", [copy.quantized(tensor, scale) for scale in scales], axis=0)
    return copy.quantized_beside(tensor, scales)


def _errors(copy: ShadowCopy, tried: str, plain: str, count: int) -> str:
    """Sums over elements per scale of what was tried beside what is float."""
    gap = copy.append("Sub", [copy.reshaped(tried, (count, -1)), copy.reshaped(plain, (1, -1))])
    return copy.with_axes("ReduceSumSquare", gap, [1], keepdims=1)


@dataclass(frozen=True)
class _ChannelMeans:
    """How the means per channel of an operator's output are taken."""

    channels: int
    spatial: bool
    several: bool

    def means(self, copy: ShadowCopy, name: str, count: int) -> str:
        """Means per channel of `count` tensors beside each other."""
        if self.spatial and not self.several:
            return copy.with_axes("ReduceMean", copy.reshaped(name, (count, self.channels, -1)), [2], keepdims=1)
        if self.spatial:
            name = copy.with_axes("ReduceMean", copy.reshaped(name, (0, self.channels, -1)), [2], keepdims=1)
        rows = copy.reshaped(name, (count, -1, self.channels))
        return copy.with_axes("ReduceMean", rows, [1], keepdims=1)


def _channels(node: Node, index: int, weight: npt.NDArray[np.generic]) -> int:
    """Size of the output's channel axis: the second of Conv and kin, the last of products; 0 where there is none."""
    if node.op == "Einsum":
        return _einsum_channels(node, index, weight)
    if node.op == "MatMul" and (index == 0 or weight.ndim != 2):
        return 0
    groups = attribute(node, "group", 1) if node.op == "ConvTranspose" else 1
    return int(weight.shape[output_axis(node, index, weight.ndim)]) * (groups if isinstance(groups, int) else 1)


def _einsum_channels(node: Node, index: int, weight: npt.NDArray[np.generic]) -> int:
    """Channels of an Einsum that multiplies the last axis of its input alone; 0 of any other."""
    product = EinsumProduct.of(node)
    axis = None if product is None else product.channel_axis(index)
    if product is None or axis is None or "." in product.output:
        return 0
    lead = product.operands[1 - index][:-1]
    return int(weight.shape[axis]) if lead and product.output == lead + product.free(index) else 0
