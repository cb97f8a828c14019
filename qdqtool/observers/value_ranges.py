# SPDX-License-Identifier: Apache-2.0
"""Counted histograms to the range of every tensor. Nothing is run or counted here."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.observers.observer_state import mergeable_of
from qdqtool.observers.state_file import State
from qdqtool.precision.value_ranges import ValueRange, ValueRanges, range_of_histogram


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
