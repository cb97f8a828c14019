# SPDX-License-Identifier: Apache-2.0
"""One calibration up to its histograms: the plan, each pass over the data, the checkpoint. No scale yet."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import parse_method
from qdqtool.data.loader import Batch, DataLoader, Task
from qdqtool.decisions import Provenance
from qdqtool.graph.io import sha256_of_model
from qdqtool.graph.model import Model
from qdqtool.observers.checkpoint import Checkpoint, open_checkpoint
from qdqtool.observers.data_passes import DataPass, bytes_of, split_passes
from qdqtool.observers.interruption import Interruption
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import BatchSet, ObserverState
from qdqtool.observers.options import CalibrationOptions, with_method
from qdqtool.observers.state_file import State, StateIdentity, write_state
from qdqtool.observers.worker_pool import WorkerPool
from qdqtool.progress import bar
from qdqtool.runtime.activations import ObservableModel, OrtActivations, observable
from qdqtool.runtime.staged_activations import StagedActivations
from qdqtool.threads import check_threads

WHOLE = (0, 1)


def count_batches(
    model: Model | ObservableModel,
    loader: Iterable[Batch],
    options: CalibrationOptions,
    wanted: Iterable[str] | None = None,
    shard: tuple[int, int] = WHOLE,
    points: Collection[str] = (),
) -> State:
    """Count all batches, or one shard of them: every n-th batch, from the shard's number on.

    Args:
        model: external data not loaded; made ready for onnxruntime, or not.
        loader: the batches.
        options: see `CalibrationOptions`.
        wanted: tensors to observe; None for every float32 one.
        shard: (number from 0, of how many).
        points: tensors that need a histogram even where their range follows from another.

    Raises:
        QdqError: see `calibrate_scales`.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    options = with_method(options)
    check_threads("--workers", options.workers)
    ready = observable(model, options.provider, options.where)
    plan, passes, session = _split(ready, _plan(ready, options, wanted, points), loader, options)
    provider = f"{options.provider}, onnxruntime {ready.runtime.__version__}"
    identity = StateIdentity("", "", provider, tuple(map(len, passes)))
    if options.checkpoint is not None or shard != WHOLE:
        digest = sha256_of_model(ready.model.proto)  # costs a walk over the bytes, and so does that of the data
        data = loader.fingerprint if isinstance(loader, DataLoader) else ""
        identity = replace(identity, model=digest, data=data)
    provenance = Provenance(data=loader.facts() if isinstance(loader, DataLoader) else None)
    state = State(identity, plan, ObserverState(plan), shard, complete=False, provenance=provenance)
    checkpoint = None
    if options.checkpoint is not None:
        state = replace(state, observation=open_checkpoint(options.checkpoint, state, resume=options.resume))
        checkpoint = Checkpoint(options.checkpoint, state)

    def walk(number: int) -> DataPass:  # nobody else holds its session: the memory of one is free before the next one
        activations = session or OrtActivations.of(ready, passes[number])
        batches = pending(loader, shard, state.observation.done.copy())
        return DataPass(activations, batches, plan, options.workers, checkpoint, on_batch)

    with _progress_bar(loader, state, options) as on_batch:
        for number in range(state.observation.passed, len(passes)):
            state.observation.begin_pass(number)
            _observe(walk(number), state.observation)
    done = replace(state, complete=True)
    if options.checkpoint is not None:
        write_state(done, options.checkpoint, compress=False)
    return done


def _observe(walk: DataPass, observed: ObserverState) -> None:
    """Count every batch of a walk; with a checkpoint, a signal ends it with the counts written."""
    if walk.checkpoint is None:
        _count(walk, observed, lambda: False)
        return
    with Interruption() as interruption:
        _count(walk, observed, lambda: interruption.requested)
        if interruption.requested:
            walk.checkpoint.write()
            raise KeyboardInterrupt("the progress is saved: run the same command with --resume to continue")


def _count(walk: DataPass, observed: ObserverState, stopping: Callable[[], bool]) -> None:
    if walk.workers > 1:
        WorkerPool(walk, observed).count(stopping)
        return
    counter = walk.counter(observed)
    for batch in walk.batches:
        counter.add(batch, walk.arrays(batch))
        walk.write_when_due()
        walk.on_batch()
        if stopping():
            return


def _plan(
    model: ObservableModel, options: CalibrationOptions, wanted: Iterable[str] | None, points: Collection[str]
) -> ObservationPlan:
    """Which tensors are counted, into which histograms; see `count_batches`."""
    method = parse_method(options.method).row
    kinds = [method.histogram]
    if options.beside and Histogram.kind not in kinds:  # predicted noise is read from it
        kinds.append(Histogram.kind)
    names = model.names if wanted is None else model.chosen(wanted)
    kept = points if options.inner else names
    return ObservationPlan.of(
        model.view, names, kinds, model.behind, derive=options.derive, kept=kept, activated=not method.keeps_range
    )


def _split(
    model: ObservableModel, plan: ObservationPlan, loader: Iterable[Batch], options: CalibrationOptions
) -> tuple[ObservationPlan, list[tuple[str, ...]], OrtActivations | StagedActivations | None]:
    """The plan without what proves to hold no float32, and the tensors that each pass over the data fetches."""
    if options.max_memory is None:
        session = StagedActivations.of(model, plan.fetched) or OrtActivations.of(model, plan.fetched)
        return plan.without(set(plan.fetched) - set(session.names)), [session.names], session
    sizes = bytes_of(model, plan.fetched, next(tasks_of(loader)).load())
    plan = plan.without(set(plan.fetched) - set(sizes))
    lengths = split_passes(sizes, options.workers, options.max_memory)
    if len(lengths) > 1 and options.progress is not False:
        sys.stderr.write(
            f"qdqtool: {len(lengths)} passes over the data, so that activations and histograms stay below "
            "--max-memory\n"
        )
    ends = itertools.accumulate(lengths)
    return plan, [plan.fetched[end - length : end] for end, length in zip(ends, lengths, strict=True)], None


def pending(loader: Iterable[Batch], shard: tuple[int, int], done: BatchSet) -> Iterator[Task]:
    """The batches of a shard that are still to be counted, in file order."""
    number, total = shard
    return (task for task in tasks_of(loader) if task.index % total == number and task.index not in done)


def tasks_of(loader: Iterable[Batch]) -> Iterator[Task]:
    """The batches of a loader, or of any iterable of dictionaries, as tasks."""
    if isinstance(loader, DataLoader):
        yield from loader.tasks()
        return
    first = 0
    for index, batch in enumerate(loader):
        array = next(iter(batch.values()))
        count = array.shape[0] if array.ndim else 1
        yield Task(index, first, count, partial(dict, batch))
        first += count


@contextmanager
def _progress_bar(loader: Iterable[Batch], state: State, options: CalibrationOptions) -> Iterator[Callable[[], object]]:
    """What is called for each batch: a bar on stderr moves on, where one is shown."""
    passes = len(state.identity.passes)
    batches = loader.batches if isinstance(loader, DataLoader) else None
    total = None if batches is None else passes * (-(-(batches - state.shard[0]) // state.shard[1]))
    before = len(state.observation.done) + (0 if total is None else state.observation.passed * total // passes)
    with bar("calibrate", "batch", total, options.progress, before) as drawn:
        yield drawn.advance
