# SPDX-License-Identifier: Apache-2.0
"""How many updates there are, of how many batches, and how often is measured: as asked, or as data and time allow."""

from __future__ import annotations

import time

import numpy as np

from qdqtool.training.batches import Batches
from qdqtool.training.options import Length, RunOptions
from qdqtool.training.training_run import TrainingRun

MOST_STEPS = 2000
_LEAST_STEPS = 20
_EPOCHS, _CHANGED_EPOCHS = 40, 80  # after which nothing more was won on other images, measured on 13; augmented ones
_FEW_STEPS = 200  # that are taken all the same
_MOST_AVERAGED = 4  # batches in an update, where time is left over; 3 won .3 dB of a face detector's scores
_TIMED = 3  # batches that are timed, the first one left out
_SHARE = 0.8  # of the time that is left goes into steps; the rest into measuring and what the estimate misses
_MEASURED = 20  # times at most
_DEAR = 5  # steps per held-out batch, so that measuring takes a tenth at most: no gradients, half the price


def choose_length(training: TrainingRun, batches: Batches, run: RunOptions, workers: int = 1) -> Length:
    """The length of a run that begins now; where it has a limit of time, a few batches are timed."""
    steps, grad_accum = _steps(training, batches, run, workers)
    return with_steps(steps, grad_accum, batches, run, workers)


def with_steps(steps: int, grad_accum: int, batches: Batches, run: RunOptions, workers: int = 1) -> Length:
    """A length of so many updates: about twenty measurements, which take a tenth of the time at most."""
    if run.evaluate_every is not None:
        return Length(steps, grad_accum, run.evaluate_every)
    seldom = max(-(-steps // _MEASURED), -(-_DEAR * len(batches.held) // (grad_accum * workers)), 1)
    return Length(steps, grad_accum, seldom)


def asked_steps(batches: Batches, run: RunOptions, workers: int = 1) -> int | None:
    """The updates that the user asks for, by number or epochs; None where data and time decide."""
    if run.steps is not None or run.epochs is None:
        return run.steps
    return -(-run.epochs * batches.count // (batches.batch * (run.grad_accum or 1) * workers))


def _steps(training: TrainingRun, batches: Batches, run: RunOptions, workers: int) -> tuple[int, int]:
    """Updates, and batches in one: what data are good for and time allows, where the user does not say."""
    asked = run.grad_accum or 1
    steps = asked_steps(batches, run, workers)
    if steps is not None:
        return steps, asked
    most = _most_steps(batches, run, batches.batch * asked * workers)
    if run.seconds is None:
        return most, asked
    each = _seconds_per_batch(training, batches)
    seconds = _SHARE * run.seconds
    averaged = run.grad_accum or int(np.clip(seconds / (each * most), 1, _MOST_AVERAGED))
    return int(min(max(seconds / (each * averaged), _LEAST_STEPS), most)), averaged


def _most_steps(batches: Batches, run: RunOptions, samples: int) -> int:
    """Updates of so many samples after which nothing more is won, however much time is left."""
    if run.most_epochs is not None:
        return max(_FEW_STEPS, run.most_epochs * batches.count // samples)
    epochs = _CHANGED_EPOCHS if batches.changes else _EPOCHS
    return min(MOST_STEPS, max(_FEW_STEPS, epochs * batches.count // samples))


def _seconds_per_batch(training: TrainingRun, batches: Batches) -> float:
    """CPU seconds of one batch; the first one, which pays for the start, is not counted."""
    values = training.values()
    taken = []
    for _, batch in zip(range(_TIMED), batches.from_batch(0), strict=False):
        start = time.process_time()
        training.student.compute(batch, values)
        taken.append(time.process_time() - start)
    return max(min(taken[1:]), 1e-4)
