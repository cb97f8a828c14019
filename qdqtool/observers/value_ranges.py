# SPDX-License-Identifier: Apache-2.0
"""Counted histograms to the range of every tensor. Nothing is run or counted here."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.amax.histogram import Histogram
from qdqtool.observers.pre_batchnorm_range import AffineRange
from qdqtool.observers.state_file import State
from qdqtool.precision.value_ranges import ValueRange, ValueRanges, range_of_histogram


def read_ranges(state: State, input_shapes: Mapping[str, tuple[int, ...]]) -> ValueRanges:
    """The range of every tensor of a calibration, infinities left out.

    A tensor that was not counted, since an activation cuts it, has the range of what the activation lets through.
    """
    plan, observation = state.plan, state.observation
    counted = observation.of_all(plan)["mergeable"]
    samples = observation.samples
    found = {name: range_of_histogram(one, samples) for name, one in counted.items() if isinstance(one, Histogram)}
    found.update((name, _of_affine(one)) for name, one in observation.ranges.items())
    found.update((name, found[after]) for name, after in plan.follows.items() if after in found)
    return ValueRanges(found, "data", samples, input_shapes)


def _of_affine(bounds: AffineRange) -> ValueRange:
    return ValueRange(0.0, 0.0) if bounds.is_empty else ValueRange(min(bounds.low, 0.0), max(bounds.high, 0.0))
