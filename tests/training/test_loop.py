# SPDX-License-Identifier: Apache-2.0
"""The loop on a parabola: it gets there, keeps the best, goes back when it breaks, and is taken up again to the bit."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.log import COLUMNS
from qdqtool.training.loop import Loop, Progress
from qdqtool.training.optimizers import AdamW, Sgd
from qdqtool.training.options import Length, RunOptions, TrainingOptions, UpdateOptions
from qdqtool.training.parameters import Parameters
from qdqtool.training.schedules import Schedule
from qdqtool.training.training_run import Computed, TrainingRun, Values

F = np.float32
GOAL = np.array([1.0, -2.0, 3.0], F)
CONSTANT = Schedule("constant", warmup=0)


class Numbers:
    """Batches of one sample, its number."""

    samples_per_batch = 1

    def from_batch(self, first: int, rank: int = 0, size: int = 1) -> Iterator[Batch]:
        return ({"x": np.array([number], F)} for number in itertools.count(first + rank, size))


class Parabola:
    """The loss |w - goal|^2, moved about by the number of the sample; what it was fed is kept."""

    def __init__(self, broken: Callable[[float], bool] = lambda number: False) -> None:
        self.fed: list[float] = []
        self.broken = broken

    def compute(self, batch: Batch, values: Values) -> Computed:
        number = float(batch["x"][0])
        self.fed.append(number)
        noise = F(0.1) * np.sin(np.arange(3, dtype=F) + F(number))
        away = values["w"] - GOAL + noise
        loss = math.nan if self.broken(number) else float(away @ away)
        return Computed(loss, {"all": loss}, {"w": 2 * away}, (number,))


class Heard:
    def __init__(self) -> None:
        self.steps: list[Mapping[str, Any]] = []
        self.events: list[Mapping[str, Any]] = []

    def step(self, facts: Mapping[str, Any]) -> None:
        self.steps.append(facts)

    def event(self, facts: Mapping[str, Any]) -> None:
        self.events.append(facts)


def distance(values: Values) -> float:
    return float(np.sum((values["w"] - GOAL) ** 2)) + 1e-6


def run_of(student: Any = None, measure: Callable[[Values], float] = distance, **more: Any) -> TrainingRun:
    parameters = Parameters({"w": np.zeros(3, F)})
    ones = np.ones(3, F)
    return TrainingRun(parameters, student or Parabola(), Numbers(), measure, AdamW(3), ones, ones.copy(), **more)


def loop_of(training: TrainingRun | None = None, keep: Any = None, **more: Any) -> Loop:
    """A loop of 200 steps, measured at every 20th, at a rate of 0.1 without average; `more` are options by name."""
    length = Length(more.pop("steps", 200), more.pop("grad_accum", 1), more.pop("evaluate_every", 20))
    run = {"steps": length.steps, "schedule": Schedule(warmup=0), "patience": 6}
    update = {"lr": 0.1, "ema_decay": 0.0}
    for name, value in more.items():
        (run if hasattr(RunOptions(), name) else update)[name] = value
    options = TrainingOptions(update=UpdateOptions(**update), run=RunOptions(**run))  # type: ignore[arg-type]
    return Loop(training or run_of(), options, length, Heard(), keep)


def test_it_gets_there() -> None:
    loop = loop_of()
    progress = loop.run()
    assert progress.start == pytest.approx(14, rel=1e-3)
    assert progress.best < 0.02
    assert "all steps" in progress.reason
    assert np.allclose(loop.best_values()["w"], GOAL, atol=0.15)


def test_the_best_is_kept_and_not_the_last() -> None:
    """The measure is best at step 40 and worse from there on; the first half of the run has patience."""
    calls = itertools.count()
    seen: list[np.ndarray] = []

    def measure(values: Values) -> float:
        seen.append(values["w"].copy())
        return [5.0, 4.0, 3.0, 3.5, 3.6, 3.7][min(next(calls), 5)]

    loop = loop_of(run_of(measure=measure), patience=3)
    progress = loop.run()
    assert (progress.best, progress.best_step, progress.step) == (3.0, 40, 140)
    assert progress.reason == "3 measurements without improvement"
    assert np.array_equal(loop.best_values()["w"], seen[2])


def test_where_nothing_is_better_the_start_is_handed_out() -> None:
    loop = loop_of(run_of(measure=lambda values: 1.0 + float(np.abs(values["w"]).sum()) / 100), patience=2)
    progress = loop.run()
    assert (progress.best_step, progress.best, progress.step) == (0, 1.0, 120)
    assert loop.best_values()["w"].tolist() == [0, 0, 0]


def test_every_step_is_reported() -> None:
    loop = loop_of(steps=4, evaluate_every=2, grad_accum=3)
    loop.run()
    heard: Any = loop._listener
    assert [one["step"] for one in heard.steps] == [1, 2, 3, 4]
    assert set(heard.steps[0]) >= {"loss", "parts", "rate", "norm", "images_per_second", "seconds", "cpu_seconds"}
    assert set(heard.steps[0]) <= set(COLUMNS) | {"parts"}
    parts = [heard.steps[0][f"{part}_seconds"] for part in ("data", "gradient", "exchange", "update")]
    assert sum(parts) == pytest.approx(3 / heard.steps[0]["images_per_second"])
    assert [one["step"] for one in heard.events if one["event"] == "measure"] == [0, 2, 4]
    assert heard.steps[0]["rate"] > heard.steps[3]["rate"]


def test_gradients_of_several_batches_are_averaged() -> None:
    student = Parabola()
    whole = replace(run_of(student), optimizer=Sgd(3, 0.0))
    loop_of(whole, steps=1, grad_accum=4, schedule=CONSTANT, grad_clip=0.0).run()
    assert student.fed == [0, 1, 2, 3]
    noise = np.mean([0.1 * np.sin(np.arange(3) + k) for k in range(4)], 0)
    assert np.allclose(whole.parameters.vector, 0.2 * (GOAL - noise), atol=1e-6)


def test_a_gradient_is_clipped() -> None:
    training = replace(run_of(), optimizer=Sgd(3, 0.0))
    loop_of(training, steps=1, schedule=CONSTANT, grad_clip=1.0).run()
    assert np.linalg.norm(training.parameters.vector) == pytest.approx(0.1, rel=1e-5)


def test_decay_shrinks_what_is_decayed_and_l1_pulls_to_zero() -> None:
    flat = type("Flat", (), {"compute": lambda self, b, v: Computed(0.0, {}, {"w": np.zeros(3, F)})})()
    for more in ({"weight_decay": 0.5}, {"l1": 0.5}):
        training = replace(run_of(flat), optimizer=Sgd(3, 0.0), decayed=np.array([1, 1, 0], F))
        training.parameters.vector[...] = [2, -2, 2]
        loop_of(training, steps=1, schedule=CONSTANT, grad_clip=0.0, **more).run()
        shrunk = [1.9, -1.9] if "weight_decay" in more else [1.95, -1.95]
        assert np.allclose(training.parameters.vector, [*shrunk, 2])


def test_l2_adds_the_gradient_of_its_penalty() -> None:
    """The step of a zero loss is -rate d/dw (l2 sum w^2), by central differences; what is not decayed stays."""
    flat = type("Flat", (), {"compute": lambda self, b, v: Computed(0.0, {}, {"w": np.zeros(3, F)})})()
    training = replace(run_of(flat), optimizer=Sgd(3, 0.0), decayed=np.array([1, 1, 0], F))
    training.parameters.vector[...] = start = np.array([2, -3, 2], F)
    loop_of(training, steps=1, schedule=CONSTANT, grad_clip=0.0, l2=0.25).run()

    def penalty(weights: Any) -> float:
        return 0.25 * float(np.sum(np.square(weights[:2])))

    steps = 1e-3 * np.eye(3)
    slope = [(penalty(start + one) - penalty(start - one)) / 2e-3 for one in steps]
    assert np.allclose(training.parameters.vector, start - 0.1 * np.array(slope), atol=1e-5)


def test_the_multiplier_of_the_rate_is_each_elements_own() -> None:
    training = replace(run_of(), lr_multiplier=np.array([1, 0, 0.5], F))
    loop_of(training, steps=1, schedule=CONSTANT).run()
    assert np.allclose(training.parameters.vector, [0.1, 0, 0.05], rtol=1e-4)


def test_the_average_is_what_is_measured_and_handed_out() -> None:
    loop = loop_of(ema_decay=0.99)
    loop.run()
    last = loop._run.parameters.vector
    best = loop.best_values()["w"]
    assert not np.array_equal(best, last)
    assert np.allclose(best, GOAL, atol=1.0)


def test_a_gain_that_is_hardly_one_does_not_keep_it_going() -> None:
    """The measure falls by a ten-thousandth each time: that is kept as the best, but counts as none."""
    measures = itertools.count()
    loop = loop_of(run_of(measure=lambda values: 1.0 - next(measures) * 1e-4), patience=3)
    progress = loop.run()
    assert (progress.step, progress.best_step) == (140, 140)


# ------------------------------------------------------------------------------------------------------- going back


def test_a_nan_halves_the_rate_and_goes_back_to_the_best() -> None:
    loop = loop_of(run_of(Parabola(lambda number: number == 30)))
    progress = loop.run()
    heard: Any = loop._listener
    assert progress.halvings == 1
    assert re.search("not a number .* 31$", progress.broken)
    assert progress.step == 200
    assert progress.best < 0.05
    rates = {one["step"]: one["rate"] for one in heard.steps}
    assert rates[32] == pytest.approx(rates[30] / 2, rel=0.05)
    assert 31 not in rates


def test_averages_and_moving_scales_go_back_too() -> None:
    """At step 41 it breaks; what is measured at 60 began anew from what was best at 40."""

    class Steep(Parabola):
        def compute(self, batch: Batch, values: Values) -> Computed:
            found = super().compute(batch, values)
            return replace(found, largest=(1e6,)) if 40 <= batch["x"][0] < 45 else found

    fresh = [run_of(Steep(lambda number: number == 45), maxima=moving()) for _ in range(2)]
    loop = loop_of(fresh[0], steps=46, evaluate_every=40, ema_decay=0.9, schedule=CONSTANT)
    loop.run()
    still = loop_of(fresh[1], steps=40, evaluate_every=40, ema_decay=0.9, schedule=CONSTANT)
    still.run()
    assert loop.progress.halvings == 1
    assert fresh[0].maxima.amax.tobytes() == fresh[1].maxima.amax.tobytes()  # type: ignore[union-attr]
    assert loop.arrays()["average"].tobytes() == still.arrays()["average"].tobytes()


def test_three_nans_end_it_with_the_best_so_far() -> None:
    loop = loop_of(run_of(Parabola(lambda number: number > 25)))
    progress = loop.run()
    assert (progress.halvings, progress.step, progress.best_step) == (3, 29, 20)
    assert re.search("halved 3 times, .*not a number .* 29$", progress.reason)
    assert np.isfinite(loop.best_values()["w"]).all()


def test_a_gradient_that_is_no_number_never_reaches_the_weights() -> None:
    nan = type("Nan", (), {"compute": lambda self, b, v: Computed(1.0, {}, {"w": np.full(3, np.nan, F)})})()
    loop = loop_of(run_of(nan))
    assert loop.run().broken.startswith("a gradient ")
    assert np.isfinite(loop._run.parameters.vector).all()


def test_a_measure_that_rises_goes_back() -> None:
    """A rate that throws the weights about: measured at 20, 40, 60, each time far above the start."""
    loop = loop_of(lr=1e4, schedule=CONSTANT)
    progress = loop.run()
    assert progress.halvings == 3
    assert "rose" in progress.broken
    assert progress.best_step == 0
    assert loop.best_values()["w"].tolist() == [0, 0, 0]


def test_a_start_that_cannot_be_measured_is_refused() -> None:
    with pytest.raises(QdqError, match="is nan before"):
        loop_of(run_of(measure=lambda values: math.nan)).run()


def test_time_ends_it() -> None:
    progress = loop_of(max_minutes=0.0).run()
    assert progress.step == 1 and "time limit" in progress.reason
    assert progress.best < progress.start


# ---------------------------------------------------------------------------------------------------- taken up again


class Kept:
    """Checkpoints in memory; from the n-th on the process is gone."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.count = last, 0
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def __call__(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        if self.last is not None and self.count > self.last:
            raise KilledError
        self.count += 1
        self.facts, self.arrays = dict(facts), {name: array.copy() for name, array in arrays.items()}


class KilledError(Exception):
    pass


def moving() -> MovingMaxima:
    return MovingMaxima({"s": np.array(0.1, F)}, {"s": 127})


VARIANTS: list[dict[str, Any]] = [{}, {"ema_decay": 0.9}, {"grad_accum": 2}, {"weight_decay": 0.1}]


@pytest.mark.parametrize("more", VARIANTS)
@pytest.mark.parametrize("last", [0, 1, 5, 27])
def test_it_is_taken_up_again_to_the_bit(more: dict[str, Any], last: int) -> None:
    """Killed after any checkpoint, also after a step that broke; moving scales come along."""

    def fresh() -> TrainingRun:
        return run_of(Parabola(lambda number: number == 33), maxima=moving())

    whole = loop_of(fresh(), **more)
    wanted = whole.run()
    kept = Kept(last)
    with pytest.raises(KilledError):
        loop_of(fresh(), kept, checkpoint_every=7, **more).run()
    again = loop_of(fresh(), Kept(), checkpoint_every=7, **more)
    again.restore(kept.facts, kept.arrays)
    found = again.run()
    assert replace(found, seconds=0.0) == replace(wanted, seconds=0.0)
    ours, theirs = again.best_values(), whole.best_values()
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}
    assert set(ours) == {"w", "s"}
    assert again._run.parameters.vector.tobytes() == whole._run.parameters.vector.tobytes()


def test_a_finished_run_is_finished() -> None:
    kept = Kept()
    first = loop_of(keep=kept)
    first.run()
    student = Parabola()
    again = loop_of(run_of(student), Kept())
    again.restore(kept.facts, kept.arrays)
    assert "all steps" in again.run().reason
    assert student.fed == []
    assert again.best_values()["w"].tobytes() == first.best_values()["w"].tobytes()


def test_a_checkpoint_of_other_weights_is_refused() -> None:
    with pytest.raises(QdqError, match="other weights"):
        loop_of().restore(asdict(Progress()), {"vector": np.zeros(4, F)})


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_work_and_interrupts(number: int) -> None:
    class Stopped(Parabola):
        def compute(self, batch: Batch, values: Values) -> Computed:
            if batch["x"][0] == 10:
                os.kill(os.getpid(), number)
            return super().compute(batch, values)

    kept = Kept()
    with pytest.raises(KeyboardInterrupt, match=r"same command .*--resume"):
        loop_of(run_of(Stopped()), kept).run()
    assert kept.facts["step"] == 11
    again = loop_of(keep=Kept())
    again.restore(kept.facts, kept.arrays)
    again.run()
    whole = loop_of()
    whole.run()
    assert again.best_values()["w"].tobytes() == whole.best_values()["w"].tobytes()


# ------------------------------------------------------------------------------------------- a rate that is searched


def test_a_rate_that_destroys_is_quartered_until_it_serves() -> None:
    """400 times too high: found after few steps each time, and what comes of it is better than the start."""
    loop = loop_of(lr=40.0, rise=1.05, steps=400, evaluate_every=200, schedule=CONSTANT)
    progress = loop.run()
    heard: Any = loop._listener
    halved = [one["step"] for one in heard.events if one["event"] == "halved"]
    assert len(halved) >= 2 and progress.halvings == 2 * len(halved)
    assert halved[-1] < 200, "long before the first measurement of the plan"
    assert progress.best < 0.1 * progress.start and progress.step == 400


def test_a_rate_that_is_searched_is_looked_at_early() -> None:
    for rise, early in ((1.5, [6, 24, 96]), (None, [])):
        loop = loop_of(rise=rise, steps=200, evaluate_every=150)
        loop.run()
        heard: Any = loop._listener
        measured = [one["step"] for one in heard.events if one["event"] == "measure"]
        assert measured == [0, *early, 150, 200]


def test_after_going_back_a_searched_rate_rises_anew_and_so_does_the_average() -> None:
    """At step 31 it breaks: one warm-up of ten steps from there, to a quarter of the rate."""
    course = Schedule("constant", warmup=0.1)
    training = run_of(Parabola(lambda number: number == 30))
    loop = loop_of(training, rise=50.0, steps=100, ema_decay=0.98, schedule=course)
    loop.run()
    heard: Any = loop._listener
    rates = {one["step"]: one["rate"] for one in heard.steps}
    assert rates[30] == pytest.approx(0.1)
    assert rates[32] == pytest.approx(0.1 / 4 / 10) and rates[41] == pytest.approx(0.1 / 4)
    assert loop.progress.began == 31


def test_a_search_that_finds_no_rate_ends_with_the_start() -> None:
    measures = itertools.chain([1.0], itertools.repeat(9.0))
    loop = loop_of(run_of(measure=lambda values: next(measures)), rise=1.5, steps=10_000)
    progress = loop.run()
    assert progress.best_step == 0 and "halved 12 times" in progress.reason
    assert loop.best_values()["w"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("goes_back", [False, True])
@pytest.mark.parametrize(("step", "most"), [(6, 2.0), (24, 1.25), (96, 1.1), (100, 1.05)])
def test_a_searched_rate_may_spoil_more_at_first(step: int, most: float, goes_back: bool) -> None:
    risen = most + (0.01 if goes_back else -0.01)
    place = {0: 0, 6: 1, 24: 2, 96: 3, 100: 4}[step]
    measures = [risen if one == place else 1.0 - one / 100 for one in range(5)]
    found = itertools.chain(measures, itertools.repeat(0.9))
    loop = loop_of(run_of(measure=lambda values: next(found)), rise=1.05, steps=100, evaluate_every=100, patience=0)
    assert (loop.run().halvings > 0) == goes_back
