# SPDX-License-Identifier: Apache-2.0
"""The shadow pass: what each weighted operator loses with each candidate scale of its input, in one run per sample.

Beside every operator of the float graph a shadow of it computes with int8 weights on the float input quantized with
every candidate, the candidates side by side along the first axis. A few sums leave the graph, no tensor does. What the
sums are good for is decided elsewhere (choose.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.data.loader import Batch
from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import output_axis, weight_index
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.memory import parts_within
from qdqtool.runtime.session import lent_weights
from qdqtool.simulation.rounding import weight_through_int8
from qdqtool.simulation.shadow_copy import ShadowCopy

Float64 = npt.NDArray[np.float64]

# Shadow weights held at a time; a larger model is run in several parts.
_PART_BYTES = 256 << 20
_SPATIAL = ("Conv", "ConvTranspose")
# Below this opset operators do not broadcast as written here; below the other one no position can be left out.
_OLDEST, _SLICES = 7, 10
# Samples that remain where all of them cost more than the budget, and positions of each output that are always summed.
FEW_SAMPLES, _FEW_POSITIONS = 2, 16
# Multiply-adds that a pass may always cost, about two seconds of one core, for a network of up to `_SMALL` a sample:
# 107 samples of it or more. A larger network may always cost as much less, since its walk over a few samples is long
# enough to measure by. Beyond, a share of what the walk over the calibration data costs.
_ALWAYS, _SMALL, _WALK_SHARE = 64e9, 0.6e9, 0.2


@dataclass(frozen=True)
class Trial:
    """A weighted operator, the scales its input is tried with, and the axis of its weight with one scale per channel.

    Attributes:
        node: first output of the operator.
        scales: float32 scales of the input.
        axis: of the weight; None for one scale.
        int8: whether its weight is quantized; a float head that reads an INT8 tensor has a float one.
        macs: multiply-adds of the operator for one sample, where they are known.
    """

    node: str
    scales: tuple[np.float32, ...]
    axis: int | None
    int8: bool = True
    macs: int = 0


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
class ShadowBudget:
    """Multiply-adds that the twins of one pass may cost: counted, not timed, so that no result depends on a machine.

    Attributes:
        macs: at most.
    """

    macs: float

    @classmethod
    def beside_walk(cls, trials: Sequence[Trial], samples: int) -> ShadowBudget:
        """What goes with a calibration of so many samples."""
        return cls(allowed_beside(sum(trial.macs for trial in trials), samples, _WALK_SHARE))

    def samples(self, trials: Sequence[Trial], samples: Sequence[Batch]) -> Sequence[Batch]:
        """All samples, or the first `FEW_SAMPLES` where the twins of all cost more."""
        return samples if self._cost(trials, samples) <= self.macs else samples[:FEW_SAMPLES]

    def thinning(self, trials: Sequence[Trial], samples: Sequence[Batch]) -> int:
        """Of so many positions of an output one is computed."""
        return max(1, math.ceil(self._cost(trials, samples) / self.macs))

    @staticmethod
    def _cost(trials: Sequence[Trial], samples: Sequence[Batch]) -> int:
        return len(samples) * sum(trial.macs * len(trial.scales) for trial in trials)


def allowed_beside(macs: int, samples: int, share: float) -> float:
    """Multiply-adds that may be spent beside a walk over the calibration data.

    Args:
        macs: of the network for one sample.
        samples: of the walk.
        share: of what that costs, where it is more than what may always be spent.
    """
    return max(_ALWAYS * min(1.0, _SMALL / max(macs, 1)), share * samples * macs)


def shadow_pass(
    proto: onnx.ModelProto,
    folder: Path | None,
    samples: Sequence[Batch],
    trials: Sequence[Trial],
    provider: str = "cpu",
    where: object = "model",
    budget: ShadowBudget | None = None,
    model: ObservableModel | None = None,
) -> dict[str, LayerError]:
    """Try scales at the inputs of weighted operators; each sees float inputs whatever is tried elsewhere.

    Sums over samples run in their order, so give them in one that does not depend on where they come from.

    Args:
        proto: a plain model of any opset; not changed.
        folder: where its external data lie.
        samples: what to run.
        trials: which operators, with which scales.
        provider: what onnxruntime runs on.
        where: what messages call the model.
        budget: where the twins cost more, they compute evenly spread positions of their outputs; None for all.
        model: the same model, where it was made ready for onnxruntime already: its weights are read then.

    Returns:
        First output of the operator -> what it loses; without those that no shadow can be made of.

    Raises:
        QdqError: what `OrtActivations` refuses.
    """
    view = GraphView(proto.graph, folder) if model is None else model.view
    weights = lent_weights(proto, folder) if model is None else model.stripped[1]
    thinning = 1 if budget is None else budget.thinning(trials, samples)

    def run_part(part: list[Trial]) -> dict[str, LayerError]:
        copy = ShadowCopy(proto, weights)
        shadows = {trial.node: names for trial in part if (names := _add(copy, view, trial, thinning)) is not None}
        wanted = [name for names in shadows.values() for name in vars(names).values()]
        if not wanted:
            return {}
        copy.keep_needed(wanted)
        activations = OrtActivations(copy.model, folder, wanted, provider, where, copy.weights, few_runs=True)
        return _run(activations, samples, shadows)

    parts = parts_within(_PART_BYTES, trials, partial(_weight_bytes, view))
    return {node: error for part in parts for node, error in run_part(part).items()}


def _weight_bytes(view: GraphView, trial: Trial) -> int:
    node = view.producers[trial.node]
    index = weight_index(view, node)
    tensor = None if index is None else view.constant_tensor(node.inputs[index])
    return 0 if tensor is None else 4 * int(np.prod(tensor.dims, dtype=np.int64))


@dataclass(frozen=True)
class _Names:
    """What one shadow gives out: the sums per scale and per channel, the float output's, its number of elements."""

    error: str
    means: str
    square: str
    mean: str
    size: str


def _run(activations: OrtActivations, samples: Sequence[Batch], shadows: Mapping[str, _Names]) -> dict[str, LayerError]:
    sums: dict[str, Float64] = {}
    for sample in samples:
        got = {name: np.asarray(array, np.float64) for name, array in activations.run(sample)}
        for names in shadows.values():
            many = float(got[names.size]) / got[names.mean].size
            parts = {
                names.error: got[names.error],
                names.square: got[names.square],
                names.means: got[names.means] * many,
                names.mean: got[names.mean] * many,
                names.size: got[names.size],
            }
            for name, value in parts.items():
                sums[name] = sums[name] + value if name in sums else value
    return {node: _error_of(sums, names) for node, names in shadows.items()}


def _error_of(sums: Mapping[str, Float64], names: _Names) -> LayerError:
    channel = sums[names.mean].reshape(-1)
    many = float(sums[names.size]) / channel.size
    signal = float(sums[names.square].sum()) - float((channel**2).sum()) / many
    with np.errstate(over="ignore", invalid="ignore"):  # of a model whose values have no end
        shift = ((sums[names.means].reshape(-1, channel.size) - channel) ** 2).sum(axis=1) / many
    return LayerError(sums[names.error].reshape(-1), shift, max(signal, 0.0))


def _add(copy: ShadowCopy, view: GraphView, trial: Trial, thinning: int) -> _Names | None:
    """The twin of one operator and its sums; None where its weight or its form does not allow one."""
    node = view.producers[trial.node]
    index = weight_index(view, node)
    weight = None if index is None else view.array(node.inputs[index])
    if index is None or weight is None or weight.dtype != np.float32 or attribute(node, "transA", 0):
        return None
    channels = _channels(node, index, weight)
    if copy.opset < _OLDEST or not channels:
        return None
    step = _step(node, trial.macs // max(weight.size, 1), thinning) if copy.opset >= _SLICES else 1
    source, axes = node.inputs[1 - index], list(range(2, weight.ndim)) if node.op in _SPATIAL else [-2]
    changed: dict[str, list[int]] = {}
    if node.op not in _SPATIAL:
        source = copy.every(source, step, axes)
    elif step > 1:
        changed["strides"] = [step * stride for stride in _strides(node, len(axes))]
    inputs = {1 - index: _tried(copy, node, source, trial.scales)}
    if trial.int8:
        inputs[index] = copy.weight(
            node.inputs[index], weight_through_int8(weight.astype(np.float32, copy=False), trial.axis)
        )
    plain = copy.every(node.outputs[0], step, axes)
    return _sums(copy, node, (copy.twin(node, inputs, **changed), plain), len(trial.scales), channels)


def _step(node: Node, positions: int, thinning: int) -> int:
    """Of how many positions along each axis one is computed: a larger stride of a convolution, fewer rows of a product.

    Only where what is left are exactly some of the outputs: not with paddings that follow from the stride.
    """
    most = positions // _FEW_POSITIONS
    if node.op == "ConvTranspose" or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return 1
    if node.op == "Conv":
        return max(1, min(math.ceil(math.sqrt(thinning)), math.isqrt(most)))
    return max(1, min(thinning, most))


def _strides(node: Node, rank: int) -> list[int]:
    found = attribute(node, "strides", None)
    return [int(stride) for stride in found] if isinstance(found, (list, tuple)) else [1] * rank


def _tried(copy: ShadowCopy, node: Node, tensor: str, scales: tuple[np.float32, ...]) -> str:
    """The tensor quantized with every scale, side by side along the first axis; along a new one for MatMul."""
    rows = [copy.quantized(tensor, scale) for scale in scales]
    if node.op == "MatMul":
        rows = [copy.with_axes("Unsqueeze", row, [0]) for row in rows]
    return copy.append("Concat", rows, axis=0)


def _sums(copy: ShadowCopy, node: Node, outputs: tuple[str, str], count: int, channels: int) -> _Names:
    """What leaves the graph: sums over elements per scale, means per channel, of what was tried and what is float."""
    tried, plain = outputs
    gap = copy.append("Sub", [copy.reshaped(tried, (count, -1)), copy.reshaped(plain, (1, -1))])
    means = []
    for name, many in ((tried, count), (plain, 1)):
        if node.op in _SPATIAL:
            name = copy.with_axes("ReduceMean", copy.reshaped(name, (0, channels, -1)), [2], keepdims=1)
        rows = copy.reshaped(name, (many, -1, channels))
        means.append(copy.with_axes("ReduceMean", rows, [1], keepdims=1))
    square = copy.with_axes("ReduceSumSquare", copy.reshaped(plain, (1, -1)), [1], keepdims=1)
    error = copy.with_axes("ReduceSumSquare", gap, [1], keepdims=1)
    return _Names(error, means[0], square, means[1], copy.size(plain))


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
