# SPDX-License-Identifier: Apache-2.0
"""Counted histograms to a table of scales, and to the range of every tensor. Nothing is run or counted here."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from qdqtool.amax.before_silu import amax_mse_before_silu
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.histogram_kinds import AnyHistogram
from qdqtool.amax.method_table import Method, parse_method
from qdqtool.amax.methods import choose_amax, predicted_sqnr, scale_from_amax
from qdqtool.decisions import PredictedNoise
from qdqtool.errors import QdqError
from qdqtool.observers.observer_state import mergeable_of
from qdqtool.observers.pre_batchnorm_range import METHOD, AffineRange
from qdqtool.observers.state_file import State
from qdqtool.precision.value_ranges import ValueRange, ValueRanges, range_of_histogram
from qdqtool.scales import ALL_ZERO, Scale, ScaleTable

BEHIND_SILU = "mse after the SiLU:"  # and what it makes: the method of a scale


def read_table(state: State, method: Method, *, beside: str = "", points: Collection[str] = ()) -> ScaleTable:
    """The scale of every tensor of a calibration.

    Raises:
        QdqError: Inf in one of `points`, or no elements.
    """
    plan, observation = state.plan, state.observation
    counted = observation.of_all(plan)
    kind = method.row.histogram
    histograms = counted[kind]
    unscaled = {name: f"after {operator}, which onnxruntime cannot run" for name, operator in plan.behind.items()}
    everything: dict[str, AnyHistogram | AffineRange] = {**histograms, **observation.ranges}
    everything.update((name, everything[after]) for name, after in plan.follows.items())
    unscaled.update((name, reason) for name in plan.names if (reason := _fault(everything[name])))
    for name in plan.names:
        if name in points and unscaled.get(name, ALL_ZERO) != ALL_ZERO:
            reason = f"is quantized, but {unscaled[name]} in {observation.samples} samples of the data"
            raise QdqError(name, reason, "give other data, or keep its operators in float")
    known: dict[str, Scale] = {}  # by the tensor that the histogram is of: the search for a clipping value is long
    scales = {}
    for name in plan.names:
        if name not in unscaled:
            source = plan.source_of(kind, name)
            if source not in known:
                known[source] = _scale(name, everything[name], method, observation.samples)
            scales[name] = known[source]
    if method.row.behind_silu:
        scales |= scales_before_silu(plan.silu, scales, histograms)
    for name, after in plan.follows.items():
        if name in scales:
            scales[name] = replace(scales[name], origin="derived", method=f"as {after}")
    for name, read in plan.gates(kind).items():
        if name in scales:
            scales[name] = replace(scales[name], origin="derived", method=f"{method} of the Sigmoid of {read}")
    run = replace(
        state.provenance,
        method=str(method),
        samples=observation.samples,
        behind=tuple(plan.behind),
        predicted=_predicted(parse_method(beside), scales, mergeable_of(counted)) if beside else None,
    )
    seen = {name: everything[name] for name in plan.names if name not in plan.follows}
    largest = {name: float(one.amax) for name, one in seen.items() if isinstance(one, Histogram | AffineRange)}
    largest = {name: value for name, value in largest.items() if math.isfinite(value)}
    return ScaleTable(scales, unscaled, provenance=run, largest=largest)


def _predicted(beside: Method, scales: dict[str, Scale], spectra: dict[str, Histogram]) -> PredictedNoise:
    """Signal to noise, in dB, that rounding to int8 leaves each tensor: [with its scale, with the other method's]."""
    decibel = {
        name: (
            _finite(predicted_sqnr(spectra[name], scale.format.amax_of(scale.bits))),
            _finite(predicted_sqnr(spectra[name], choose_amax(beside, spectra[name]))),
        )
        for name, scale in scales.items()
        if name in spectra
    }
    return PredictedNoise(str(beside), decibel)


def _finite(decibel: float) -> float:
    return round(min(decibel, 999.0), 2)


def scales_before_silu(
    silu: Mapping[str, str], scales: Mapping[str, Scale], histograms: Mapping[str, AnyHistogram]
) -> dict[str, Scale]:
    """The scale of each tensor that only a SiLU reads, by the error after it."""
    found = {}
    for name, made in silu.items():
        hist = histograms.get(name)
        if name in scales and isinstance(hist, Histogram) and not hist.all_zero:
            behind = scales[made].format.amax_of(scales[made].bits) if made in scales else math.inf
            bits = Scale.of(scale_from_amax(amax_mse_before_silu(hist, behind), name)).bits
            found[name] = replace(scales[name], bits=bits, method=f"{BEHIND_SILU} {made}")
    return found


def _scale(name: str, counted: AnyHistogram | AffineRange, method: Method, samples: int) -> Scale:
    if isinstance(counted, AffineRange):
        return Scale.of(scale_from_amax(counted.amax, name), origin="derived", method=METHOD, samples=samples)
    return Scale.of(
        scale_from_amax(choose_amax(method, counted), name), origin="ptq", method=str(method), samples=samples
    )


def _fault(histogram: AnyHistogram | AffineRange) -> str:
    """Why no scale follows from a histogram, "" where one does."""
    if histogram.has_inf:
        return "holds Inf"
    if histogram.is_empty:
        return "has no elements"
    return ALL_ZERO if histogram.all_zero else ""


def read_ranges(state: State, input_shapes: Mapping[str, tuple[int, ...]]) -> ValueRanges:
    """The range of every tensor of a calibration, infinities left out.

    A tensor that was not counted, since an activation cuts it, has the range of what the activation lets through.
    """
    plan, observation = state.plan, state.observation
    counted = mergeable_of(observation.of_all(plan))
    samples = observation.samples
    found = {name: range_of_histogram(one, samples) for name, one in counted.items()}
    for name, one in observation.ranges.items():
        found[name] = ValueRange(0.0, 0.0) if one.is_empty else ValueRange(min(one.low, 0.0), max(one.high, 0.0))
    found.update((name, found[after]) for name, after in plan.follows.items() if after in found)
    return ValueRanges(found, "data", samples, input_shapes)
