# SPDX-License-Identifier: Apache-2.0
"""The verb `finetune`: a Q/DQ model and data to the same model with better weights. No mechanics of training here."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import onnx

from qdqtool.artifacts import check_targets, files_of, output_path, path_of
from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.backends import make_backend
from qdqtool.conditioning.edits import CHANGING
from qdqtool.data.loader import Data, DataLoader, DataOptions, inputs_of, open_feed
from qdqtool.errors import QdqError
from qdqtool.graph.edit import edits_of, evened_tensors
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.view import GraphView
from qdqtool.passes.peel import has_qdq
from qdqtool.training.augment import open_augment
from qdqtool.training.batches import Batches, BatchOptions
from qdqtool.training.equalized_start import Start, evened_start
from qdqtool.training.finished_model import finished_model, output_gains
from qdqtool.training.label_data import label_inputs
from qdqtool.training.log import reporting
from qdqtool.training.loop import Loop, Progress
from qdqtool.training.prepare import Prepared, Wanted, measured_every, prepare, steps_of
from qdqtool.training.state import Saved, TrainingIdentity, open_state, write_state
from qdqtool.training.task import LoopOptions, TrainingProblem
from qdqtool.training.training_graph import TrainingGraph, make_form
from qdqtool.verbs.finetune_options import FinetuneOptions, FinetuneResult
from qdqtool.verbs.insert import plan
from qdqtool.verbs.task_judge import TaskJudge, check_judgeable

__all__ = ["FinetuneOptions", "FinetuneResult", "finetune"]


@overload
def finetune(
    model: onnx.ModelProto,
    data: Data,
    options: FinetuneOptions | None = ...,
    feed_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[onnx.ModelProto]: ...


@overload
def finetune(
    model: str | os.PathLike[str],
    data: Data,
    options: FinetuneOptions | None = ...,
    feed_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[Path]: ...


@overload
def finetune(
    model: ModelSource,
    data: Data,
    options: FinetuneOptions | None = ...,
    feed_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[Any]: ...


def finetune(
    model: ModelSource,
    data: Data,
    options: FinetuneOptions | None = None,
    feed_options: DataOptions | None = None,
    *,
    output: str | Path | None = None,
) -> FinetuneResult[Any]:
    """Train a Q/DQ model's weights so that it loses less in INT8; scales and graph stay unless asked otherwise.

    Args:
        model: a Q/DQ model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: samples of the inputs, and labels beside them where a loss wants some; see `open_feed`.
        options: see `FinetuneOptions`.
        feed_options: limit and preprocessing; the batch is an option of training.
        output: file to write; for a path the default is `<name>.finetuned.onnx` beside it.

    Raises:
        QdqError: options that mean nothing, a model without Q/DQ or with an operator without gradient, data or labels
            that do not fit, checks at the start that fail. Nothing is written then.
        MissingPackageError: onnxruntime, or what the back end needs, is not installed.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    options = options or FinetuneOptions()
    options.update.check()
    options.run.check()
    opened = open_model(model)
    target = output_path(opened, output, ".finetuned.onnx")
    _check_places(opened, data, options, target)
    job = _open_job(opened, data, options, feed_options or DataOptions())
    prepared = prepare(job.form, job.batches, job.backend, job.wanted, job.where)
    progress, best, planned = _trained(job, prepared)
    values = {name: value for name, value in best.items() if name in frozenset(prepared.exported)}
    tuned = job.form.write(values if progress.best_step else {})
    told = _facts(job, progress)
    facts = told if progress.best_step or job.start.evened else None
    proto, notes = finished_model(tuned, opened.folder, job.batches, facts)
    gains = output_gains(job.start.given, opened, tuned, job.batches) if _own_teacher(options) else ()
    given = give_back(proto, opened, target)
    if options.run.checkpoint is not None:  # its work is in the model now
        options.run.checkpoint.unlink(missing_ok=True)
    return FinetuneResult(
        model=given,
        measure="loss" if options.task is None else options.task.name,
        before=progress.start,
        after=progress.best,
        step=progress.best_step,
        steps=progress.step,
        planned=planned,
        seconds=progress.seconds,
        reason=progress.reason,
        trained=prepared.parameters.vector.size,
        samples=job.batches.count,
        held_samples=job.batches.held_samples,
        outputs=gains,
        checked=prepared.checked,
        backend=job.backend.name,
        notes=(*job.start.notes, *job.form.notes, *job.batches.notes, *prepared.notes, *_told(job, progress), *notes),
    )


def _told(job: _FinetuneJob, progress: Progress) -> tuple[str, ...]:
    """What went otherwise than hoped for."""
    notes = []
    if progress.halvings:
        notes.append(f"the rate was halved {progress.halvings} times, last because {progress.broken}")
    if not progress.best_step:
        whose = "the evened weights stay" if job.start.evened else "the input's weights come back"
        notes.append(f"nothing measured better than the start: {whose}")
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class _FinetuneJob:
    """One run: everything that was opened for it."""

    opened: Opened
    start: Start
    feed: DataLoader
    batches: Batches
    backend: GradientBackend
    wanted: Wanted
    options: FinetuneOptions
    where: object

    @property
    def form(self) -> TrainingGraph:
        """What is trained."""
        return self.start.form


def _check_places(opened: Opened, data: Data, options: FinetuneOptions, target: Path | None) -> None:
    """Refuse places that would do harm before anything is done."""
    outputs = {"the model": target, "--checkpoint": options.run.checkpoint, "--log": options.run.log}
    check_targets(outputs, [*opened.files, path_of(options.teacher), *files_of(data)])


def _open_job(opened: Opened, data: Data, options: FinetuneOptions, feed_options: DataOptions) -> _FinetuneJob:
    if not has_qdq(GraphView(opened.proto.graph, opened.folder)):
        raise QdqError(opened.name, "has no Q/DQ to train with", "qdqtool insert --data places them")
    if options.task is not None:
        check_judgeable(opened)
    moved = _check_teacher(opened, options)
    backend = make_backend(options.backend)
    make = partial(_make_form, opened, options, backend)
    form = make(opened.proto)
    inputs = inputs_of(opened.proto.graph)
    labeled = bool(options.loss.labels or options.loss.script)
    more = label_inputs(data, inputs, feed_options) if labeled else ()
    feed = open_feed(data, (*inputs, *more), replace(feed_options, batch=1))
    batch = _batch(feed, options.batch)
    steps = _augmentation(options, labeled)
    how = BatchOptions(batch, options.run.seed, options.memory, open_augment(steps, feed))
    teacher = None
    if options.teacher is not None:
        other = open_model(options.teacher)
        teacher = (other.proto, other.folder, other.name)
    wanted = Wanted(
        replace(options.loss, seed=options.run.seed),
        options.update,
        options.run,
        options.ranges,
        teacher,
        moved,
        options.provider,
    )
    batches = Batches(feed, how)
    evens = options.equalize and _own_teacher(options) and not options.freeze
    start = evened_start(opened, make, form, batches, options.run.progress) if evens else Start(form, form)
    return _FinetuneJob(opened, start, feed, batches, backend, wanted, options, feed.origin or "data")


def _make_form(
    opened: Opened, options: FinetuneOptions, backend: GradientBackend, proto: onnx.ModelProto
) -> TrainingGraph:
    """The training form of the model, or of the same with other weights."""
    places = None if options.ranges == "fixed" else plan(proto)
    return make_form(proto, opened.folder, options.ranges, options.bn, options.freeze, places, backend.operators())


def _check_teacher(opened: Opened, options: FinetuneOptions) -> bool:
    """Refuse to learn from a float function that `condition` moved so that INT8 comes out right: that would undo it.

    Returns:
        Whether it was moved, so that a script finds no teacher in it either.
    """
    moved = sorted({edit["step"] for edit in edits_of(opened.proto)} & CHANGING)
    if options.teacher is None and moved and options.loss.needs_teacher:
        reason = f"is no teacher of its own, condition changed its float function ({', '.join(moved)})"
        raise QdqError(opened.name, reason, "give the model from before as --teacher")
    return bool(moved)


def _augmentation(options: FinetuneOptions, labeled: bool) -> tuple[str, ...] | None:
    """What is done to samples: nothing where labels lie beside them, which would have to move with the picture."""
    if labeled and options.augment:
        raise QdqError("--augment", "changes pictures and not their labels", "leave it out; the loader may change both")
    return () if labeled else options.augment


def _batch(feed: DataLoader, asked: int | None) -> int:
    """Samples in one run; a model that fixes its batch gets that one."""
    fixed = next((one for one in feed.inputs if not one.batched), None)
    if fixed is None:
        if asked is not None and asked < 1:
            raise QdqError("--batch", f"{asked} is no number of samples", "give 1 or more")
        return asked or 1
    if asked not in (None, fixed.first):
        reason = f"{asked} cannot be, the input {fixed.name!r} takes {fixed.told()}"
        raise QdqError("--batch", reason, "leave it out; --grad-accum averages the gradients of several batches")
    return 1  # an item of the feed is a whole batch


# ------------------------------------------------------------------------------------------------------------ training


def _trained(job: _FinetuneJob, prepared: Prepared) -> tuple[Progress, dict[str, Any], int]:
    """Run the loop, from a checkpoint where there is one; how far it came, the best values, the updates planned."""
    options, run = job.options, job.options.run
    identity = _identity(job) if run.checkpoint is not None else None
    saved = (
        None if identity is None or run.checkpoint is None else open_state(run.checkpoint, identity, resume=run.resume)
    )
    if saved:
        steps, averaged = int(saved.facts["steps"]), int(saved.facts["accumulate"])
    else:
        steps, averaged = steps_of(prepared, job.batches, _each(job), run, run.seconds)
    run = replace(run, accumulate=averaged)
    update, batch = options.update, _size(job)
    how = LoopOptions(
        steps=steps,
        batch=batch,
        accumulate=averaged,
        rate=update.rate,
        schedule=run.schedule,
        clip=update.clip,
        l1=update.l1,
        weight_decay=update.weight_decay,
        average=update.average,
        every=measured_every(steps, run, job.batches),
        patience=run.patience or steps,
        keep_every=run.keep_every,
        seconds=run.seconds,
    )
    keep = (
        None
        if identity is None or run.checkpoint is None
        else partial(_keep, run.checkpoint, identity, {"steps": steps, "accumulate": averaged})
    )
    done = int(saved.facts["progress"]["step"]) if saved else 0
    judge = prepared.loss if options.task is None else TaskJudge(options.task, job.form, prepared.exported)
    optimizer = update.make(prepared.parameters.vector.size)
    subject = TrainingProblem(
        prepared.parameters,
        prepared.student,
        job.batches,
        judge,
        prepared.pace,
        prepared.decayed,
        optimizer,
        prepared.maxima,
        prepared.bounds,
    )
    with reporting(run.log, done, steps, run.progress) as reporter:
        loop = Loop(subject, how, reporter, keep)
        if saved:
            loop.restore(saved.facts["progress"], saved.arrays)
        return loop.run(), loop.best_values(), steps


def _each(job: _FinetuneJob) -> int:
    """Items of the feed in one batch."""
    return job.options.batch or 1 if all(one.batched for one in job.feed.inputs) else 1


def _size(job: _FinetuneJob) -> int:
    """Samples in one batch of the loop, whatever an item of the feed holds."""
    return job.feed.count(job.batches.held[0])


def _keep(
    path: Path,
    identity: TrainingIdentity,
    plan: Mapping[str, int],
    progress: Mapping[str, Any],
    arrays: Mapping[str, Any],
) -> None:
    write_state(Saved(identity, {**plan, "progress": dict(progress)}, arrays), path)


def _identity(job: _FinetuneJob) -> TrainingIdentity:
    """What a checkpoint is held against: how it is reported and kept is none of it."""
    digest = hashlib.sha256(job.opened.proto.SerializeToString(deterministic=True)).hexdigest()
    teacher = job.wanted.teacher
    other = "" if teacher is None else hashlib.sha256(teacher[0].SerializeToString(deterministic=True)).hexdigest()
    data = job.feed.fingerprint if job.feed.origin is not None else ""
    options, free = job.options, {"checkpoint", "keep_every", "resume", "log", "progress"}
    run = {name: value for name, value in asdict(options.run).items() if name not in free}
    rest = {name: getattr(options, name) for name in ("ranges", "bn", "freeze", "augment", "equalize")}
    more = {"batch": options.batch, "memory": options.memory, "backend": job.backend.name, "provider": options.provider}
    task = None if options.task is None else options.task.told()
    facts = {"loss": asdict(options.loss), "update": asdict(options.update), "run": run, **rest, **more, "task": task}
    return TrainingIdentity(digest, data, other, json.dumps(facts, sort_keys=True, default=str))


def _own_teacher(options: FinetuneOptions) -> bool:
    """Whether the model in float is what is learned, and nothing else."""
    loss = options.loss
    return options.teacher is None and not (loss.labels or loss.bindings or loss.script)


def _facts(job: _FinetuneJob, progress: Progress) -> dict[str, Any]:
    """What the file tells of its training."""
    options = job.options
    return {
        "equalized": sorted({*evened_tensors(job.opened.proto), *job.start.evened}),
        "steps": progress.best_step,
        "measure": "loss" if options.task is None else options.task.name,
        "before": progress.start,
        "after": progress.best,
        "ranges": options.ranges,
        "seed": options.run.seed,
    }
