# SPDX-License-Identifier: Apache-2.0
"""What quantizing does to the output of each weighted operator, by itself: mean and size of its error per channel.

Each operator runs twice on the float activations, as it is and with its input and weight rounded, in one session whose
outputs are sums per channel. Errors do not travel from one operator to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.view import Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.restrict_plan import share_scales
from qdqtool.measures import ExactSum
from qdqtool.passes.condition.layout import as_cube, from_cube, output_channels, readable
from qdqtool.runtime.activations import OrtActivations
from qdqtool.scales import Float32, Scale, ScaleTable
from qdqtool.simulation.shadow_copy import ShadowCopy

Float64 = npt.NDArray[np.float64]
Batch = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Loss:
    """The error of one operator's output, per output channel, over all samples and places.

    Attributes:
        key: first output of the operator.
        mean: float64 [channels], mean of exact - quantized.
        square: float64 [channels], mean of its square.
        signal: float64 [channels], mean of exact^2.
        chance: float64 [channels], variance of `mean` from one choice of samples to another; inf for a single sample.
    """

    key: str
    mean: Float64
    square: Float64
    signal: Float64
    chance: Float64

    def noise(self, addition: Float64 | float = 0.0) -> float:
        """Noise over signal of the whole output, once `addition` has been added to the quantized one."""
        noise = np.maximum(self.square - 2 * self.mean * addition + np.square(addition), 0.0).sum()
        return float(noise) / max(float(self.signal.sum()), 1e-30)


def measure_losses(context: ConditionContext, table: ScaleTable, loader: Iterable[Batch]) -> list[Loss]:
    """Run data through a model in which each operator that reads a point has a quantized twin.

    Raises:
        QdqError: a point without a scale; what `OrtActivations` refuses.
    """
    twins = _twins(context, table)
    if not twins:
        return []
    copy = ShadowCopy(context.model.proto)
    names = [_add(copy, twin) for twin in twins]
    errors = {four.error for four in names}
    wanted = [name for four in names for name in vars(four).values()]
    activations = OrtActivations(replace(context.model, proto=copy.model), wanted)
    sums: dict[str, ExactSum] = {}
    spreads: dict[str, ExactSum] = {}
    keys = {name: twin.node.key for twin, four in zip(twins, names, strict=True) for name in vars(four).values()}
    runs = 0
    for sample in loader:
        runs += 1
        for name, value in activations.run(sample):
            if not np.isfinite(value).all():
                problem = "it holds NaN or Inf, or values whose squares are beyond float32"
                raise QdqError(keys[name], problem, "leave that sample out, or look at the weights")
            sums.setdefault(name, ExactSum(value.size)).add(value.reshape(-1))
            if name in errors:
                spreads.setdefault(name, ExactSum(value.size)).add(np.square(value.reshape(-1), dtype=np.float64))
    return [
        _loss(twin, [sums[name].total() for name in vars(four).values()], spreads[four.error].total(), runs)
        for twin, four in zip(twins, names, strict=True)
    ]


def _loss(twin: _Twin, totals: list[Float64], spread: Float64, runs: int) -> Loss:
    error, square, signal, size = totals
    places = max(float(size[0]) / twin.channels, 1.0)
    mean = error / places
    if runs < 2:
        return Loss(twin.node.key, mean, square / places, signal / places, np.full(mean.size, np.inf))
    # Samples are independent, places of one are not: the variance of a mean comes from the sums of the samples.
    between = np.maximum(spread / runs - np.square(error / runs), 0.0)
    chance = between / (runs - 1) / np.square(places / runs)
    return Loss(twin.node.key, mean, square / places, signal / places, chance)


@dataclass(frozen=True, eq=False)
class _Twin:
    """A weighted operator, the scale of what it reads and its rounded weight (None where it stays in float)."""

    node: Node
    scale: Scale
    weight: Float32 | None
    weight_at: int
    rank: int
    channels: int


def _twins(context: ConditionContext, table: ScaleTable) -> list[_Twin]:
    points = {read.node: point for point in context.plan.weights for read in point.reads}
    twins = []
    for key, (node, scale) in read_scales(context, table).items():
        index = weight_index(context.view, node)
        weight = None if index is None else context.view.array(node.inputs[index])
        if index is None or weight is None or not readable(context.view, node):
            continue
        point = points.get(key)
        rounded = None if point is None else rounded_weight(node, weight, point.axis, point.format)
        rank = weight.ndim if node.op in ("Conv", "ConvTranspose") else 0
        twins.append(_Twin(node, scale, rounded, index, rank, output_channels(node, weight.shape)))
    return sorted(twins, key=lambda twin: (twin.node.level, twin.node.key))


def read_scales(context: ConditionContext, table: ScaleTable) -> dict[str, tuple[Node, Scale]]:
    """First output of each weighted operator that reads a point -> the operator, and the scale of what it reads.

    Raises:
        QdqError: a point without a scale.
    """
    plan = context.plan
    shared = share_scales(plan, table.scales, table.all_zero)
    missing = [point.tensor for point in plan.activations if point.tensor not in shared]
    if missing:
        raise QdqError(missing[0], "is quantized and the table has no scale for it", "calibrate this model")
    largest = {
        first: max((shared[name] for name in names), key=lambda scale: float(scale.bits))
        for first, names in plan.shared_scales().items()
    }
    return {
        use.node.key: (use.node, largest[point.shared_scale].in_format(point.format))
        for point in plan.activations
        for use in context.ways[point.tensor].ends
    }


def rounded_weight(
    node: Node, weight: npt.NDArray[np.generic], axis: int | None, number_format: NumberFormat = INT8
) -> Float32:
    """A weight as a format holds it, by its largest magnitude per output channel (axis not None) or as a whole."""
    cube = as_cube(node, weight.astype(np.float32, copy=False))
    axes = (2, 3) if axis is not None else (0, 1, 2, 3)
    step = np.abs(cube).max(axis=axes, keepdims=True) / number_format.largest
    step[step == 0] = 1.0
    made = number_format.nearest(cube / step) * step
    return np.ascontiguousarray(from_cube(node, made, weight.shape), np.float32)


@dataclass(frozen=True)
class _SumNames:
    """What one twin gives out: sums per channel of the error, its square and the signal's, and the number of values."""

    error: str
    square: str
    signal: str
    size: str


def _add(copy: ShadowCopy, twin: _Twin) -> _SumNames:
    node = twin.node
    inputs = {
        1 - twin.weight_at: copy.quantized(
            node.inputs[1 - twin.weight_at], np.float32(twin.scale.bits), twin.scale.format
        )
    }
    if twin.weight is not None:
        inputs[twin.weight_at] = copy.weight(node.inputs[twin.weight_at], twin.weight)
    exact = node.outputs[0]
    error = copy.append("Sub", [exact, copy.twin(node, inputs)])
    square, signal = (copy.append("Mul", [name, name]) for name in (error, exact))
    return _SumNames(_sum(copy, error, twin), _sum(copy, square, twin), _sum(copy, signal, twin), copy.size(exact))


def _sum(copy: ShadowCopy, name: str, twin: _Twin) -> str:
    """Everything but the channels added up; they are the second axis of a convolution, else the last."""
    if twin.rank:
        return copy.with_axes("ReduceSum", name, [0, *range(2, twin.rank)], keepdims=0)
    return copy.with_axes("ReduceSum", copy.reshaped(name, (-1, twin.channels)), [0], keepdims=0)
