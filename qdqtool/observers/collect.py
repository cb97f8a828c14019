# SPDX-License-Identifier: Apache-2.0
"""One calibration up to its histograms: what is counted, in how many passes, by whom, from where on. No scale yet."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from qdqtool.amax.methods import needs_entropy_histogram, parse_method
from qdqtool.data.loader import Batch, DataLoader, Task
from qdqtool.decisions import Provenance
from qdqtool.observers.checkpoint import Checkpoint, open_checkpoint
from qdqtool.observers.data_passes import bytes_of, split_passes
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observe import Run, observe
from qdqtool.observers.observer_state import BatchSet, ObserverState
from qdqtool.observers.options import CalibrationOptions, with_method
from qdqtool.observers.state_file import State, StateIdentity
from qdqtool.progress import is_shown
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.threads import check_threads

WHOLE = (0, 1)


def count_batches(
    proto: onnx.ModelProto,
    folder: Path | None,
    loader: Iterable[Batch],
    options: CalibrationOptions,
    wanted: Iterable[str] | None = None,
    shard: tuple[int, int] = WHOLE,
    points: Collection[str] = (),
) -> State:
    """Count all batches, or one shard of them: every n-th batch, from the shard's number on.

    Args:
        proto: the model, external data not loaded.
        folder: where its external data lie.
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
    model = ObservableModel(proto, folder, options.provider, options.where)
    names = model.names if wanted is None else model.chosen(wanted)
    method = parse_method(options.method)
    own = points if options.inner else names
    cut = (
        method.name != "max"
    )  # the largest value of a tensor is reported as it is, also of what an activation cuts off
    plan = ObservationPlan.of(
        model.view, names, _kinds(options), model.behind, derive=options.derive, kept=own, activated=cut
    )
    plan, passes = _settled(model, plan, loader, options)
    state = State(
        identity=_identity(
            proto, model, loader, options, passes, kept=options.checkpoint is not None or shard != WHOLE
        ),
        plan=plan,
        observation=ObserverState(plan),
        shard=shard,
        complete=False,
        provenance=Provenance(data=loader.description if isinstance(loader, DataLoader) else None),
    )
    if options.checkpoint is not None:
        state = replace(state, observation=open_checkpoint(options.checkpoint, state, resume=options.resume))
    with _bar(loader, state, options) as on_batch:
        observation = _walked(_PassContext(loader, options, on_batch), passes, state)
    done = replace(state, complete=True, observation=observation)
    if options.checkpoint is not None:
        _checkpoint(options.checkpoint, done).keep(done.observation)
    return done


def _kinds(options: CalibrationOptions) -> list[str]:
    """The kinds of histogram that a method needs: the one it is read from first."""
    kinds = ["entropy"] if needs_entropy_histogram(parse_method(options.method)) else ["mergeable"]
    return [*kinds, "mergeable"] if options.beside and "mergeable" not in kinds else kinds


def _settled(
    model: ObservableModel, plan: ObservationPlan, loader: Iterable[Batch], options: CalibrationOptions
) -> tuple[ObservationPlan, list[_Pass]]:
    """The plan without what proves to hold no float32, and the walks over the data that fetch it."""
    if options.max_memory is None:
        activations = OrtActivations.of(model, plan.fetched)
        settled = plan.without(set(plan.fetched) - set(activations.names))
        return settled, [_Pass(activations.names, lambda: activations)]
    sizes = bytes_of(model, plan.fetched, next(tasks_of(loader)).load())
    settled = plan.without(set(plan.fetched) - set(sizes))
    lengths = split_passes(sizes, options.workers, options.max_memory)
    if len(lengths) > 1 and options.progress is not False:
        sys.stderr.write(
            f"qdqtool: {len(lengths)} passes over the data, so that arrays and histograms stay below --max-memory\n"
        )
    ends = itertools.accumulate(lengths)
    parts = [settled.fetched[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return settled, [_Pass(names, partial(OrtActivations.of, model, names)) for names in parts]


@dataclass(frozen=True)
class _Pass:
    """One walk over the data: the tensors it fetches, and what makes the session for them."""

    names: tuple[str, ...]
    open: Callable[[], OrtActivations]


def _identity(
    proto: onnx.ModelProto,
    model: ObservableModel,
    loader: Iterable[Batch],
    options: CalibrationOptions,
    passes: Sequence[_Pass],
    *,
    kept: bool,
) -> StateIdentity:
    """What a state file is held against; digests are made only where one is written."""
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest() if kept else ""
    data = loader.fingerprint if kept and isinstance(loader, DataLoader) else ""
    provider = f"{options.provider}, onnxruntime {model.runtime.__version__}"
    return StateIdentity(digest, data, provider, tuple(len(one.names) for one in passes))


@dataclass(frozen=True)
class _PassContext:
    """What every pass over the data needs."""

    loader: Iterable[Batch]
    options: CalibrationOptions
    on_batch: Callable[[], object]


def _walked(walk: _PassContext, passes: Sequence[_Pass], state: State) -> ObserverState:
    """The observation with what was not counted yet."""
    observation, options = state.observation, walk.options
    checkpointer = None if options.checkpoint is None else _checkpoint(options.checkpoint, state)
    for number, one in enumerate(passes):
        if number < observation.passed:
            continue
        if number > observation.passed:
            observation.passed, observation.done = number, BatchSet()
        tasks = pending(walk.loader, state.shard, BatchSet(observation.done.to_bytes()))
        observe(Run(one.open(), tasks, state.plan, options.workers, checkpointer, walk.on_batch), observation)
    return observation


def _checkpoint(path: Path, state: State) -> Checkpoint:
    return Checkpoint(path, lambda observation: replace(state, observation=observation))


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
def _bar(loader: Iterable[Batch], state: State, options: CalibrationOptions) -> Iterator[Callable[[], object]]:
    """Progress of each batch: a bar on stderr moves on."""
    if not is_shown(options.progress):
        yield lambda: None
        return
    from tqdm import tqdm

    passes = len(state.identity.passes)
    batches = loader.batches if isinstance(loader, DataLoader) else None
    total = None if batches is None else passes * (-(-(batches - state.shard[0]) // state.shard[1]))
    before = len(state.observation.done) + (0 if total is None else state.observation.passed * total // passes)
    with tqdm(desc="calibrate", total=total, initial=before, unit="batch", file=sys.stderr, leave=False) as bar:
        yield bar.update
