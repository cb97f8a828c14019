# SPDX-License-Identifier: Apache-2.0
"""How many steps there are, how often is measured, what integers hold. The rest: tests/verbs/test_finetune.py."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.training.options import RunOptions
from qdqtool.training.parameters import Parameters
from qdqtool.training.prepare import MOST_STEPS, _highest, measured_every, steps_of


class Batches:
    def __init__(self, held: int = 4, count: int = 10000, *, changes: bool = False) -> None:
        self.count, self.changes = count, changes
        self.held = [{"x": np.zeros(1, np.float32)}] * held

    def from_sample(self, first: int) -> Iterator[dict[str, np.ndarray]]:
        return itertools.repeat(self.held[0])


class Slow:
    """A student that takes so many CPU seconds a batch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def compute(self, batch: Any, values: Any) -> None:
        until = time.process_time() + self.seconds
        while time.process_time() < until:
            pass


def prepared(seconds: float = 0.0) -> Any:
    parameters = Parameters({"w": np.zeros(1, np.float32)})
    return SimpleNamespace(parameters=parameters, student=Slow(seconds), maxima=None)


def test_steps_that_are_asked_for_are_taken() -> None:
    assert steps_of(prepared(9.0), Batches(), 1, RunOptions(steps=7), 1.0) == (7, 1)  # type: ignore[arg-type]


def test_steps_fill_most_of_the_time_that_is_left() -> None:
    found, _ = steps_of(prepared(0.01), Batches(), 1, RunOptions(), 1.0)  # type: ignore[arg-type]
    assert 70 <= found <= 80
    assert 35 <= steps_of(prepared(0.01), Batches(), 1, RunOptions(accumulate=2), 1.0)[0] <= 40  # type: ignore[arg-type]


@pytest.mark.parametrize(("left", "steps"), [(None, MOST_STEPS), (1e9, MOST_STEPS), (1e-9, 20)])
def test_there_are_neither_too_many_nor_too_few(left: float | None, steps: int) -> None:
    assert steps_of(prepared(), Batches(), 1, RunOptions(accumulate=1), left) == (steps, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "size", "accumulate", "steps"), [(13, 1, 1, 520), (3, 1, 1, 200), (100, 4, 1, 1000), (100, 4, 4, 250)]
)
def test_few_samples_are_not_shown_too_often(count: int, size: int, accumulate: int, steps: int) -> None:
    run = RunOptions(accumulate=accumulate)
    assert steps_of(prepared(), Batches(count=count), size, run, None) == (steps, accumulate)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "averaged"), [(0.5, 1), (6.0, 2), (1e6, 4)])
def test_time_that_is_left_goes_into_larger_updates(seconds: float, averaged: int) -> None:
    """Ten milliseconds a batch and 200 updates at most: two seconds would do."""
    found = steps_of(prepared(0.01), Batches(count=3), 1, RunOptions(), seconds)  # type: ignore[arg-type]
    assert found[1] == averaged


def test_samples_that_change_are_good_for_more() -> None:
    batches = Batches(count=13, changes=True)
    assert steps_of(prepared(), batches, 1, RunOptions(), None) == (1040, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "held", "more", "every"),
    [
        (1000, 4, {}, 50),
        (100, 4, {}, 20),
        (2000, 64, {}, 320),
        (2000, 64, {"accumulate": 8}, 100),
        (1, 1, {"accumulate": 9}, 1),
        (1000, 4, {"every": 3}, 3),
    ],
)
def test_about_twenty_measurements_where_they_cost_no_more_than_a_tenth(
    steps: int, held: int, more: dict[str, Any], every: int
) -> None:
    assert measured_every(steps, RunOptions(**more), Batches(held)) == every  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "zero", "levels"),
    [
        (TensorProto.INT8, 0, 127),
        (TensorProto.UINT8, 0, 255),
        (TensorProto.UINT8, 128, 127),
        (TensorProto.INT16, 0, 32767),
        (TensorProto.INT4, 0, 7),
    ],
)
def test_levels_above_the_zero_point(kind: int, zero: int, levels: int) -> None:
    tensor: onnx.TensorProto = helper.make_tensor("z", kind, [], [zero])
    assert _highest(tensor) == levels
