# SPDX-License-Identifier: Apache-2.0
"""The loop with its checkpoint, log and bar: from a prepared run to the best values. Not what is prepared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.display import counted
from qdqtool.training.batches import Batches
from qdqtool.training.log import reporting
from qdqtool.training.loop import Loop, Progress
from qdqtool.training.options import RunOptions, TrainingOptions
from qdqtool.training.reducers import Reducer
from qdqtool.training.run_length import asked_steps, choose_length, with_steps
from qdqtool.training.state import Saved, TrainingIdentity, keep_state, newest_state, open_state, write_state
from qdqtool.training.step_gradients import StepGradients
from qdqtool.training.training_run import TrainingRun
from qdqtool.training.weight_update import WeightUpdate


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of it.

    Attributes:
        progress: how far it came, and why it ended.
        best: parameter or moving scale that goes into the file -> the value that measured best.
        planned: updates that were planned.
        notes: sentences for the user.
    """

    progress: Progress
    best: Mapping[str, npt.NDArray[np.float32]]
    planned: int
    notes: tuple[str, ...] = ()


def train(
    training: TrainingRun,
    batches: Batches,
    options: TrainingOptions,
    identity: TrainingIdentity | None,
    reducer: Reducer | None = None,
) -> Trained:
    """Run the loop, from a checkpoint where there is one; all ranks of a reducer get what rank 0 makes.

    Raises:
        QdqError: a checkpoint of another run; what the loop refuses; a worker is lost.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    if reducer is None:
        return _trained(training, batches, options, identity, None)
    if reducer.rank:
        return _served(training, reducer, options)
    done = _trained(training, batches, options, identity, reducer)
    _share(reducer, {"progress": asdict(done.progress), "planned": done.planned, "notes": done.notes})
    for value in done.best.values():
        reducer.broadcast(value)
    return done


def _trained(
    training: TrainingRun,
    batches: Batches,
    options: TrainingOptions,
    identity: TrainingIdentity | None,
    reducer: Reducer | None,
) -> Trained:
    """What one process does, or rank 0 of several."""
    run, workers, notes = options.run, 1 if reducer is None else reducer.size, list[str]()
    exchange = "all-reduce" if workers > 1 and run.all_reduce else "gather"
    path = run.checkpoint
    there = newest_state(path) if path is not None and run.keep is not None else path
    saved = None if there is None or identity is None else open_state(there, identity, resume=run.resume)
    if saved:
        steps, before = int(saved.facts["steps"]), int(saved.facts.get("workers", 1))
        asked = steps if before != workers else asked_steps(batches, run, workers) or steps
        length = with_steps(asked, int(saved.facts["accumulate"]), batches, run, workers)
        if asked != steps:
            notes.append(f"the checkpoint is of {steps} steps: the run now ends at {asked}, as does its learning rate")
        if before != workers:
            count = length.grad_accum * workers
            notes.append(f"the checkpoint is of {counted(before, 'worker')}: an update now averages {count} batches")
        elif (other := saved.facts.get("exchange", "gather")) != exchange:
            notes.append(f"the checkpoint is of exchange by {other}: the rest of the run is by {exchange}")
    else:
        length = choose_length(training, batches, run, workers)
    plan: dict[str, Any] = {"steps": length.steps, "accumulate": length.grad_accum}
    plan |= {"workers": workers} if workers > 1 else {}
    plan |= {"exchange": exchange} if workers > 1 and run.all_reduce else {}
    keep = None if path is None or identity is None else partial(_keep, run, identity, plan)
    done = int(saved.facts["progress"]["step"]) if saved else 0
    if reducer is not None:
        _share(reducer, {"accumulate": length.grad_accum})
    gradients = StepGradients(training, length.grad_accum, reducer, all_reduce=run.all_reduce)
    with reporting(run.log, done, length.steps, run.progress) as reporter:
        loop = Loop(training, options, length, reporter, keep, gradients)
        if saved:
            facts = dict(saved.facts["progress"])
            if length.steps > steps:
                facts |= {"reason": "", "stale": 0}  # a run that had ended goes on
            loop.restore(facts, saved.arrays)
        progress = loop.run()
    gradients.stop()
    best = {name: value for name, value in loop.best_values().items() if name in frozenset(training.exported)}
    return Trained(progress, best, length.steps, tuple(notes))


def _served(training: TrainingRun, reducer: Reducer, options: TrainingOptions) -> Trained:
    """What the other ranks do."""
    accumulated = int(_share(reducer)["accumulate"])
    gradients = StepGradients(training, accumulated, reducer, all_reduce=options.run.all_reduce)
    gradients.serve(WeightUpdate(training, options.update))
    facts = _share(reducer)
    exported = frozenset(training.exported)
    best = {name: np.array(value) for name, value in training.values().items() if name in exported}
    for value in best.values():
        reducer.broadcast(value)
    return Trained(Progress(**facts["progress"]), best, int(facts["planned"]), tuple(facts["notes"]))


def _share(reducer: Reducer, facts: Mapping[str, Any] | None = None) -> Any:
    """The facts of rank 0, as JSON, on all ranks."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8).copy()
    size = np.array([text.size])
    reducer.broadcast(size)
    if reducer.rank:
        text = np.empty(int(size[0]), np.uint8)
    reducer.broadcast(text)
    return json.loads(text.tobytes())


def _keep(
    run: RunOptions,
    identity: TrainingIdentity,
    plan: Mapping[str, Any],
    progress: Mapping[str, Any],
    arrays: Mapping[str, Any],
) -> None:
    saved = Saved(identity, {**plan, "progress": dict(progress)}, arrays)
    assert run.checkpoint is not None
    if run.keep is None:
        write_state(saved, run.checkpoint)
    else:
        keep_state(saved, run.checkpoint, int(progress["step"]), run.keep)
