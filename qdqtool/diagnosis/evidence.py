# SPDX-License-Identifier: Apache-2.0
"""What suspicions rest on: the Q/DQ model, its float model, what data give in both. Worked out once, judged nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import METHODS, REFERENCE
from qdqtool.amax.methods import amax_mse, predicted_sqnr
from qdqtool.calibration.engine import WantedScales, calibrate_scales
from qdqtool.conditioning.channel_histograms import ChannelSpectrum
from qdqtool.data.loader import Batch, DataLoader
from qdqtool.evaluation.metrics import Figure
from qdqtool.formats import FP8, INT8, NumberFormat
from qdqtool.graph.heads import Head
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import Node, Pair
from qdqtool.graph.weighted import weight_index
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.rule_index import RuleIndex
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.metadata import stored_table
from qdqtool.observers.options import CalibrationOptions
from qdqtool.passes.condition.layout import input_axis
from qdqtool.passes.typed_pairs import peel_model
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.scales import Scale


@dataclass(frozen=True)
class PairedTensor:
    """An activation that goes through pairs of one INT8 or FP8 scale without a zero point, and what it holds.

    Attributes:
        name: of the tensor.
        histogram: its values in the float model.
        amax: the clipping value that the pairs have.
        own: the clipping value of least error on the data: INT8's by method mse, FP8's by max.
        best: the largest of these of the tensors that share the scale.
        sqnr, best_sqnr: predicted signal to noise at `amax` and at `best`, in dB.
        format: of the pairs.
    """

    name: str
    histogram: Histogram
    amax: float
    own: float
    best: float
    sqnr: float
    best_sqnr: float
    format: NumberFormat = INT8

    @property
    def drop(self) -> float:
        """What the pair's range loses against the best one, in dB."""
        return self.best_sqnr - self.sqnr

    @property
    def excess(self) -> float:
        """The noise that the pair's range makes beyond that of the best one, as a part of the signal."""
        noise: float = 10 ** (-self.sqnr / 10) - 10 ** (-self.best_sqnr / 10)
        return noise

    @property
    def clipped(self) -> float:
        """The part of the values that lies beyond the clipping value."""
        counts, width = self.histogram.folded()
        first = int(np.ceil(self.amax / width))
        return float(counts[first:].sum()) / max(self.histogram.finite, 1)

    def figures(self) -> dict[str, float]:
        """What is known of it, as figures of a cause."""
        return {
            "amax": self.amax,
            "best_amax": self.best,
            "largest": float(self.histogram.amax),
            "sqnr_db": self.sqnr,
            "best_sqnr_db": self.best_sqnr,
            "clipped": self.clipped,
            "zeroed": self.zeroed,
        }

    @property
    def zeroed(self) -> float:
        """The part of the values other than zero that are rounded to zero."""
        counts, width = self.histogram.folded()
        end = int(float(self.format.scale_of(self.amax)) * self.format.smallest / 2 / width)
        return float(counts[:end].sum()) / max(int(counts.sum()), 1)


class EveryOther:
    """Every second batch of data, from the first or the second on; walked as often as is wanted."""

    def __init__(self, loader: DataLoader, first: int) -> None:
        """Nothing is read yet."""
        self._loader, self._first = loader, first

    def __iter__(self) -> Iterator[Batch]:
        """Walk the batches; those between are not read."""
        return (task.load() for task in islice(self._loader.tasks(), self._first, None, 2))


@dataclass(frozen=True)
class Evidence:
    """A Q/DQ model beside its float model.

    Attributes:
        context: the Q/DQ model, as lint looks at it.
        observed: the float model, ready to show its activations.
        loader: the data.
        calibrating: the half of the data that ranges are taken from; all of them where they are a single batch.
        reference: samples of the other half, and what the float model gives for them.
        figure: the loss of the Q/DQ model at its outputs, as it is run, FP16 and BF16 rounded.
        int8_loss: the same with everything but INT8 in FP32.
        histograms: tensor -> its values in the float model, on the half that ranges are taken from.
    """

    context: LintContext
    observed: ObservableModel
    loader: DataLoader
    calibrating: Iterable[Batch]
    reference: OutputReference
    figure: Figure
    int8_loss: float
    histograms: Mapping[str, Histogram]

    @property
    def loss(self) -> float:
        """`figure` without its interval."""
        return self.figure.value

    @property
    def model(self) -> Model:
        """The Q/DQ model in FP32."""
        return self.context.wide

    @property
    def plain(self) -> Model:
        """The float model."""
        return self.observed.model

    @cached_property
    def tensors(self) -> dict[str, PairedTensor]:
        """The activations whose range can be judged, in graph order: one scale, no zero point, values on the data."""
        found: dict[str, tuple[Histogram, NumberFormat, float, float]] = {}
        for name, pairs in self.context.activation_pairs.items():
            histogram, scale = self.histograms.get(name), self._scale(pairs)
            if histogram is None or scale is None or not histogram.amax > 0:
                continue
            own = float(amax_mse(histogram) if scale.format == INT8 else histogram.amax)
            found[name] = histogram, scale.format, scale.format.amax_of(scale.bits), own
        shared: dict[float, float] = {}
        for *_, amax, best in found.values():
            shared[amax] = max(best, shared.get(amax, 0.0))
        return {
            name: PairedTensor(
                name,
                histogram,
                amax,
                own,
                shared[amax],
                _sqnr(histogram, amax, row),
                _sqnr(histogram, shared[amax], row),
                row,
            )
            for name, (histogram, row, amax, own) in found.items()
        }

    @cached_property
    def coarse_weights(self) -> list[tuple[Node, int, Pair, int]]:
        """Weights of one scale that could have one for each channel: the operator, its input, the pair, the axis."""
        context = self.context
        rules = RuleIndex(context.rules.weights, context.rules)
        axes = {id(node): rule.axis for node, rule in rules.nodes(context.view)}
        found = list[tuple[Node, int, Pair, int]]()
        for node, index in context.weighted:
            pair, axis = context.weight_pair(node, index), axes.get(id(node))
            scale = None if pair is None else context.scale_of(pair)
            if pair is None or scale is None or scale.size != 1 or axis is None or context.format_of(pair) != INT8:
                continue
            shape = context.view.shape(pair.tensor)
            if node.inputs[index] == pair.dequantize.outputs[0] and shape is not None and shape[axis] != 1:
                found.append((node, index, pair, axis))
        return found

    @cached_property
    def quantized_heads(self) -> list[Head]:
        """The regression heads whose weights are INT8."""
        context = self.context
        known = {node.key: (node, index) for node, index in context.weighted}
        boxes = (one for one in context.heads if one.label in ("regression", "mixed") and one.key in known)
        return [one for one in boxes if context.has_int8_weight(*known[one.key])]

    @cached_property
    def methods(self) -> dict[str, str]:
        """Of the judged activations the calibration method of the scale, as the file names it."""
        table = stored_table(self.context.model.proto)
        if table is None:
            return {}
        run = table.provenance.method
        named = {name: run or table.scales[name].method for name in self.tensors if name in table.scales}
        return {name: method for name, method in named.items() if method.partition("=")[0] in METHODS}

    @cached_property
    def same_method(self) -> dict[str, PairedTensor]:
        """The activations whose method is known; `best` is the range that the same method gives on the data."""
        found = dict[str, float]()
        for method in dict.fromkeys(self.methods.values()):
            names = [name for name, one in self.methods.items() if one == method]
            if method == REFERENCE:
                found |= {name: float(amax_mse(self.tensors[name].histogram)) for name in names}
                continue
            how = CalibrationOptions(method=method, provider=self.observed.provider, progress=False, inner=False)
            table = calibrate_scales(self.observed, self.calibrating, how, WantedScales(names))
            found |= {name: float(table.scales[name].amax) for name in names if name in table.scales}
        shared = dict[float, float]()
        for name, amax in found.items():
            given = self.tensors[name].amax
            shared[given] = max(amax, shared.get(given, 0.0))
        ends = {name: (self.tensors[name], shared[self.tensors[name].amax]) for name in found}
        return {
            name: replace(one, best=amax, best_sqnr=_sqnr(one.histogram, amax, one.format))
            for name, (one, amax) in ends.items()
        }

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """Of the judged activations the nodes of the float model that multiply them with weights."""
        view = self.plain.view
        found = {
            name: [use.node for use in view.consumers(name) if weight_index(view, use.node) == 1 - use.index]
            for name in self.tensors
        }
        return {name: nodes for name, nodes in found.items() if nodes}

    @cached_property
    def channels(self) -> dict[str, ChannelSpectrum]:
        """The values of each channel on the samples, of the activations that have `readers`."""
        found: dict[str, ChannelSpectrum] = {}
        if not self.readers:
            return found
        activations = OrtActivations.of(self.observed, self.observed.chosen(self.readers), few_runs=True)
        for sample in self.reference.samples:
            for name, value in activations.run(sample):
                if value.ndim > 1:
                    axis = input_axis(self.readers[name][0], value.ndim)
                    found.setdefault(name, ChannelSpectrum(value.shape[axis], axis)).add(value)
        return found

    def _scale(self, pairs: list[Pair]) -> Scale | None:
        """The one scale of some pairs; None where they differ, or are no pairs in INT8 or FP8 without a zero point."""
        found = set[tuple[float, NumberFormat]]()
        for pair in pairs:
            scale, zero = self.context.scale_of(pair), self.context.zero_point(pair)
            row = next((one for one in (INT8, FP8) if one.has_zero_point(zero)), None)
            if row is None or pair.quantize is None or pair.between:
                return None
            if scale is None or scale.size != 1 or not np.isfinite(scale).all():
                return None
            found.add((float(scale.reshape(-1)[0]), row))
        value, row = found.pop() if len(found) == 1 else (0.0, None)
        return None if row is None or not value > 0 else Scale.of(value, format=row)


def _sqnr(histogram: Histogram, amax: float, row: NumberFormat) -> float:
    """Predicted signal to noise of rounding in a format at a clipping value, in dB: of FP8 at four points of a bin."""
    if row == INT8:
        return predicted_sqnr(histogram, amax)
    counts, width = histogram.folded()
    values = ((np.arange(4 * counts.size) + 0.5) * (width / 4)).astype(np.float32)
    scale = np.float32(row.scale_of(amax))
    weights = np.repeat(counts, 4).astype(np.float64)
    error, power = (
        weights @ np.square(one, dtype=np.float64) for one in (scale * row.nearest(values / scale) - values, values)
    )
    return float(10 * np.log10(power / error)) if error > 0 else np.inf


def without_pairs_of(model: Model) -> Model:
    """The float model of a Q/DQ model: its pairs taken out, whatever their integers are."""
    peeled = replace(model.copy(), kind=model.kind, path=model.path)
    return peel_model(
        peeled, on_conflict="max", on_asymmetric="widen", opset=opset_of(model.proto), drop_scales=True
    ).model
