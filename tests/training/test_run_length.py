# SPDX-License-Identifier: Apache-2.0
"""How many steps there are, of how many batches, and how often is measured. The clock is the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.training import run_length
from qdqtool.training.options import Length, RunOptions
from qdqtool.training.run_length import MOST_STEPS, choose_length, with_steps


class Data:
    def __init__(self, held: int = 4, count: int = 10000, batch: int = 1, *, changes: bool = False) -> None:
        self.count, self.batch, self.changes = count, batch, changes
        self.held = [{"x": np.zeros(1, np.float32)}] * held

    def from_batch(self, first: int) -> Iterator[dict[str, np.ndarray]]:
        return itertools.repeat(self.held[0])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CPU seconds, which pass in `Slow.compute` alone."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(run_length, "time", SimpleNamespace(process_time=lambda: now.seconds))
    return now


def chosen(clock: SimpleNamespace, data: Data, run: RunOptions, seconds: float = 0.0, start: float = 0.0) -> Length:
    """The length where a batch takes so many CPU seconds, the first one some more."""
    extra = itertools.chain([start], itertools.repeat(0.0))

    def compute(batch: Any, values: Any) -> None:
        clock.seconds += seconds + next(extra)

    training: Any = SimpleNamespace(student=SimpleNamespace(compute=compute), values=dict)
    return choose_length(training, data, run)  # type: ignore[arg-type]


def minutes(seconds: float | None, **more: Any) -> RunOptions:
    return RunOptions(max_minutes=None if seconds is None else seconds / 60, **more)


def test_steps_that_are_asked_for_are_taken_and_nothing_is_timed(clock: SimpleNamespace) -> None:
    assert chosen(clock, Data(), RunOptions(steps=7), 9.0) == Length(7, 1, 20)
    assert clock.seconds == 0


def test_steps_fill_most_of_the_time_and_the_first_batch_is_not_counted(clock: SimpleNamespace) -> None:
    found = chosen(clock, Data(), minutes(1.0), 0.01, start=5.0)
    assert (found.steps, found.grad_accum) == (80, 1)
    assert clock.seconds == pytest.approx(5.03)
    assert chosen(clock, Data(), minutes(1.0, grad_accum=2), 0.01).steps == 40


@pytest.mark.parametrize(("left", "steps"), [(1e9, MOST_STEPS), (1e-9, 20)])
def test_there_are_neither_too_many_nor_too_few(clock: SimpleNamespace, left: float, steps: int) -> None:
    assert chosen(clock, Data(), minutes(left, grad_accum=1)).steps == steps


@pytest.mark.parametrize(
    ("count", "batch", "grad_accum", "steps"), [(13, 1, 1, 520), (3, 1, 1, 200), (100, 4, 1, 1000), (100, 4, 4, 250)]
)
def test_few_samples_are_not_shown_too_often(
    clock: SimpleNamespace, count: int, batch: int, grad_accum: int, steps: int
) -> None:
    found = chosen(clock, Data(count=count, batch=batch), minutes(1e9, grad_accum=grad_accum))
    assert (found.steps, found.grad_accum) == (steps, grad_accum)


@pytest.mark.parametrize(("epochs", "steps"), [(1000, 25000), (2, 200)])
def test_how_often_samples_are_shown_may_be_said(clock: SimpleNamespace, epochs: int, steps: int) -> None:
    found = chosen(clock, Data(count=100, batch=4), minutes(1e9, grad_accum=1, most_epochs=epochs))
    assert found.steps == steps, "in place of the most steps, few steps are taken all the same"
    assert chosen(clock, Data(count=100, batch=4), RunOptions(steps=7, most_epochs=epochs)).steps == 7


@pytest.mark.parametrize(("seconds", "averaged"), [(0.5, 1), (6.0, 2), (1e6, 4)])
def test_time_that_is_left_goes_into_larger_updates(clock: SimpleNamespace, seconds: float, averaged: int) -> None:
    """Ten milliseconds a batch and 200 updates at most: two seconds would do."""
    assert chosen(clock, Data(count=3), minutes(seconds), 0.01).grad_accum == averaged


def test_samples_that_change_are_good_for_more(clock: SimpleNamespace) -> None:
    assert chosen(clock, Data(count=13, changes=True), minutes(1e9, grad_accum=1)).steps == 1040


@pytest.mark.parametrize(
    ("steps", "held", "grad_accum", "asked", "every"),
    [
        (1000, 4, 1, None, 50),
        (100, 4, 1, None, 20),
        (2000, 64, 1, None, 320),
        (2000, 64, 8, None, 100),
        (1, 1, 9, None, 1),
        (1000, 4, 1, 3, 3),
    ],
)
def test_about_twenty_measurements_where_they_cost_no_more_than_a_tenth(
    steps: int, held: int, grad_accum: int, asked: int | None, every: int
) -> None:
    found = with_steps(steps, grad_accum, Data(held), RunOptions(evaluate_every=asked))  # type: ignore[arg-type]
    assert found == Length(steps, grad_accum, every)


@pytest.mark.parametrize(("workers", "steps"), [(1, 84), (2, 42), (3, 28)])
def test_epochs_are_steps_of_so_many_samples(clock: SimpleNamespace, workers: int, steps: int) -> None:
    run = RunOptions(epochs=5, grad_accum=3)
    assert run.seconds is None
    assert choose_length(None, Data(count=100, batch=2), run, workers).steps == steps  # type: ignore[arg-type]
