# SPDX-License-Identifier: Apache-2.0
"""The verb `finetune`: a model, Q/DQ or pruned, and data to the same model with better weights. No mechanics here."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

import numpy as np
import onnx

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.backends import make_backend
from qdqtool.data.loader import Data, DataLoader, DataOptions, inputs_of, open_loader
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.evaluation.labels import are_boxes
from qdqtool.graph.edit import FINETUNED, equalized_tensors
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.io import ModelSource, give_back, open_model, sha256_of_model
from qdqtool.graph.model import Model
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.output_paths import check_targets, files_of, output_path
from qdqtool.passes.peel import has_qdq
from qdqtool.precision.casts import fp32_masters
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.training.augment import open_augment
from qdqtool.training.batches import Batches, BatchOptions, MeasuredBatches
from qdqtool.training.blocks.block_run import TrainedBlocks, train_blocks
from qdqtool.training.box_labels import with_box_labels
from qdqtool.training.class_labels import FOLDERS, with_class_labels
from qdqtool.training.equalized_start import Start, start_equalized
from qdqtool.training.finished_model import OutputGain, finished_model, output_gains
from qdqtool.training.label_data import label_inputs
from qdqtool.training.loop import Progress
from qdqtool.training.objective import changed_function, make_objective
from qdqtool.training.options import FLOAT_EPOCHS, FLOAT_RELATIVE_LR, FLOAT_RISE
from qdqtool.training.prepare import prepare
from qdqtool.training.reducers import Reducer, joined
from qdqtool.training.state import TrainingIdentity
from qdqtool.training.train import train
from qdqtool.training.training_graph import TrainingGraph, make_form
from qdqtool.verbs.finetune_options import FinetuneOptions, FinetuneResult
from qdqtool.verbs.insert import insert, plan
from qdqtool.verbs.insert_options import InsertOptions, InsertResult
from qdqtool.verbs.typed_file import give_typed
from qdqtool.verbs.validation_metric import (
    TaskMetric,
    ValidationMetric,
    check_judgeable,
    has_truth,
    task_gain,
)

__all__ = ["FinetuneOptions", "FinetuneResult", "finetune"]

_HELD_COPIES = 4  # changed pictures beside each that is held out: of 25 as they are, two decide what the measure is


@overload
def finetune(
    model: onnx.ModelProto,
    data: Data,
    options: FinetuneOptions | None = ...,
    data_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[onnx.ModelProto]: ...


@overload
def finetune(
    model: str | os.PathLike[str],
    data: Data,
    options: FinetuneOptions | None = ...,
    data_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[Path]: ...


@overload
def finetune(
    model: ModelSource,
    data: Data,
    options: FinetuneOptions | None = ...,
    data_options: DataOptions | None = ...,
    *,
    output: str | Path | None = ...,
) -> FinetuneResult[Any]: ...


def finetune(
    model: ModelSource,
    data: Data,
    options: FinetuneOptions | None = None,
    data_options: DataOptions | None = None,
    *,
    output: str | Path | None = None,
) -> FinetuneResult[Any]:
    """Train a Q/DQ model's weights so that it loses less in INT8; scales and graph stay unless asked otherwise.

    A model without Q/DQ gets them as by `insert` with its defaults, and learns from itself in float, or `labels`. With
    a teacher, or a loss on arrays of the data, it is trained in float, such as a pruned one.

    Args:
        model: a Q/DQ or a plain model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: samples of the inputs, and labels beside them where a loss wants some; see `open_loader`.
        options: see `FinetuneOptions`.
        data_options: limit and preprocessing; the batch is an option of training.
        output: file to write; for a path the default is `<name>.finetuned.onnx` beside it.

    Raises:
        QdqError: options that mean nothing, an operator without gradient, data or labels that do not fit, checks at
            the start that fail, what `insert` refuses. Nothing is written then.
        MissingPackageError: onnxruntime, or what the back end needs, is not installed.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    options = options or FinetuneOptions()
    options.check()
    with joined(options.run.reducer, options.run.workers, options.provider) as reducer:
        if reducer is not None and reducer.rank:
            options = replace(options, run=replace(options.run, progress=False))
        return _finetune(model, data, options, data_options or DataOptions(), output, reducer)


def _finetune(
    model: ModelSource,
    data: Data,
    options: FinetuneOptions,
    data_options: DataOptions,
    output: str | Path | None,
    reducer: Reducer | None,
) -> FinetuneResult[Any]:
    """Train on this rank; rank 0 writes."""
    source = open_model(model)
    require_finite(source.view)
    target = output_path(source, output, ".finetuned.onnx")
    _check_places(source, data, options, target)
    reading, said = apply_known(source.name, data, data_options, [known_preprocess(source.proto)])
    with ExitStack() as stack:
        plain = not has_qdq(source.graph)
        in_int8 = options.learns_float and (options.labels is None or not kept_of(source.proto))
        learned, samples, how = options, data, reading
        if options.labels is not None:  # labels that do not fit are refused before anything is calibrated
            given = source, data, options.labels, reading, options.loss
            if str(options.labels) != FOLDERS and are_boxes(options.labels):
                labeled = with_box_labels(*given, options.decoder, options.names)
                boxes = labeled.loss.boxes
                said = (*said, f"trained by {boxes.description}") if boxes is not None else said
            else:
                labeled = with_class_labels(*given)
            learned, samples, how = replace(options, loss=labeled.loss), labeled.data, labeled.reading
        if plain and in_int8:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="qdqtool-")))
            source, placed = _with_pairs(source, data, options, reading, folder)
            said = (*said, placed)
        elif options.relu6:
            todo = "insert --condition relu6 limits Relu before it places Q/DQ"
            raise QdqError("--relu6", "is for a model that gets its Q/DQ here", todo)
        result = _train_opened(source, samples, learned, how, target, said, reducer)
        return replace(result, was_plain=plain)


def _with_pairs(
    source: Model, data: Data, options: FinetuneOptions, reading: DataOptions, folder: Path
) -> tuple[Model, str]:
    """A model with the Q/DQ that `insert` places by its defaults, and a note of it; a file goes to `folder`."""
    calibration = CalibrationOptions(progress=options.run.progress)
    condition = "relu6" if options.relu6 else ""
    how = InsertOptions(data_options=reading, calibration=calibration, condition=condition)
    if source.path is None:
        found: InsertResult[Any] = insert(source.proto, data=data, options=how)
        made = replace(open_model(found.model), kind=source.kind)
    else:
        found = insert(source.path, data=data, options=how, output=folder / source.path.name)
        made = replace(open_model(found.model), path=source.path)
    count = counted(len(found.inserted.scales), "activation")
    return made, f"there was no Q/DQ: placed on {count}, as qdqtool insert does"


def _train_opened(
    source: Model,
    data: Data,
    options: FinetuneOptions,
    reading: DataOptions,
    target: Path | None,
    said: Sequence[str],
    reducer: Reducer | None,
) -> FinetuneResult[Any]:
    """Train a model that is open, and write it."""
    opened, types = fp32_masters(source)
    in_float = not has_qdq(opened.graph)
    if in_float:
        options = _in_float(options)
    job = replace(_open_job(opened, data, options, reading, in_float=in_float), reducer=reducer)
    found = _by_blocks(job) if options.blocks else _as_a_whole(job)
    tuned = job.form.write(found.done.best if found.done.progress.best_step else {})
    facts = _facts(job, found.done.progress, in_float=in_float)
    proto, notes = finished_model(tuned, job.batches, facts)
    gains = output_gains(job.start.given, opened, tuned, job.batches) if options.learns_float else ()
    if reducer is not None and reducer.rank:
        given: Any = proto if target is None else target
    elif types is None or facts is None:  # without facts the weights are those of the input
        given = give_back(proto if types is None else source.proto, opened, target)
    else:
        given = give_typed(proto, opened, target, types)
    owner = reducer is None or not reducer.rank
    kept = options.run.keep_checkpoint or options.run.keep is not None
    if options.run.checkpoint is not None and not kept and owner:  # its work is in the model now
        options.run.checkpoint.unlink(missing_ok=True)
    if reducer is not None:
        reducer.broadcast(np.zeros(1))  # the file is there on all ranks
    notes = (*said, *_notes(job, found.done.progress), *notes)
    if gains and all(one.before == math.inf for one in gains):
        why = "each output is the one of the model in float, which learns from itself"
        notes = (*notes, f"nothing is left to learn: {why}; give the original FP32 model as --teacher")
    if options.task is not None and job.measured is None and found.done.progress.best_step and owner:
        notes = (*notes, task_gain(options.task, opened.proto, tuned.proto))
    return _result(job, found, given, gains, notes, in_float=in_float)


def _result(
    job: _FinetuneJob,
    found: TrainedBlocks,
    model: Any,
    gains: tuple[OutputGain, ...],
    notes: tuple[str, ...],
    *,
    in_float: bool,
) -> FinetuneResult[Any]:
    """What is reported of a run whose model is given back."""
    done, progress = found.done, found.done.progress
    return FinetuneResult(
        model=model,
        measure=_measure(job),
        before=progress.start,
        after=progress.best,
        step=progress.best_step,
        steps=progress.step,
        planned=done.planned,
        seconds=progress.seconds,
        reason=progress.reason,
        trained=found.trained,
        samples=job.batches.count,
        held_samples=job.batches.held_samples,
        outputs=gains,
        checked=found.checked,
        backend=job.backend.name,
        notes=(*job.start.notes, *job.form.notes, *job.batches.notes, *found.notes, *notes),
        in_float=in_float,
    )


def _as_a_whole(job: _FinetuneJob) -> TrainedBlocks:
    """All weights at once, towards the loss that was asked for."""
    options = job.options
    objective = make_objective(job.form, job.batches, options, job.teacher, job.where)
    training = prepare(job.form, objective, job.batches, job.backend, options, job.measured)
    if options.task is not None and job.measured is None:
        training = replace(training, measure=ValidationMetric(options.task, job.form, training.exported))
    identity = _identity(job) if options.run.checkpoint is not None else None
    done = train(training, job.batches, options, identity, job.reducer)
    return TrainedBlocks(done, training.parameters.vector.size, training.checked, (*training.notes, *done.notes))


def _by_blocks(job: _FinetuneJob) -> TrainedBlocks:
    """Block by block towards the model in float."""
    return train_blocks(job.opened, job.form, job.batches, job.backend, job.options)


def _measure(job: _FinetuneJob) -> str:
    """What is measured on held-out samples."""
    if job.options.blocks:
        return "error of blocks"
    task = job.options.task
    return "loss" if task is None or job.measured is not None else task.name


def _notes(job: _FinetuneJob, progress: Progress) -> tuple[str, ...]:
    """What went otherwise than hoped for."""
    notes, update = list[str](), job.options.update
    if job.measured is not None:
        samples = counted(job.measured.samples, "sample")
        notes.append(f"--eval-data has no labels: the loss is measured on its {samples}")
    if progress.halvings and update.rise is not None:
        rate = update.rate * 0.5**progress.halvings
        notes.append(f"the learning rate was searched: {rate:.2g}; at four times that {progress.broken}")
    elif progress.halvings:
        notes.append(f"the learning rate was halved {progress.halvings} times, last because {progress.broken}")
    if not progress.best_step:
        whose = "the equalized weights are kept" if job.start.equalized else "the weights of the input are kept"
        notes.append(f"no measurement was better than the start: {whose}")
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class _FinetuneJob:
    """What was opened for one run, beside what was asked for."""

    opened: Model
    start: Start
    loader: DataLoader
    batches: Batches
    backend: GradientBackend
    teacher: Model | None
    options: FinetuneOptions
    where: object
    measured: MeasuredBatches | None = None
    reducer: Reducer | None = None

    @property
    def form(self) -> TrainingGraph:
        """What is trained."""
        return self.start.form


def _check_places(opened: Model, data: Data, options: FinetuneOptions, target: Path | None) -> None:
    """Refuse places that would do harm before anything is done."""
    checkpoint = None if options.run.keep is not None else options.run.checkpoint
    outputs = {"the model": target, "--checkpoint": checkpoint, "--log": options.run.log}
    named: list[object] = [data, options.teacher, options.loss.script, options.labels]
    if options.task is not None:
        named += [options.task.data, options.task.labels, options.task.options.names]
    check_targets(outputs, [*opened.files, *files_of(*named)])


def _open_job(
    opened: Model, data: Data, options: FinetuneOptions, data_options: DataOptions, *, in_float: bool
) -> _FinetuneJob:
    if options.task is not None and options.blocks:
        raise QdqError("--eval-data", "cannot be combined with --blocks", "each block is measured by its own error")
    _check_teacher(opened, options)
    half = options.update.precision != "fp32"
    if half and options.backend == "ort-training":
        reason = "has no gradients in half precision"
        raise QdqError("--backend ort-training", reason, "leave it out; --precision is for the builtin gradients")
    backend = make_backend("builtin" if half else options.backend)
    make = partial(_make_form, opened, options, backend)
    form = make(opened)
    inputs = inputs_of(opened.proto.graph)
    more = label_inputs(data, inputs, data_options) if options.labeled else ()
    loader = open_loader(data, (*inputs, *more), replace(data_options, batch=1))
    augment = open_augment(_augmentation(options), loader, options.loss.moving)
    copies = _HELD_COPIES if in_float and not options.labeled else 0
    batches = BatchOptions(_batch(loader, options.batch), options.run.seed, options.memory, augment, copies)
    teacher = None if options.teacher is None else open_model(options.teacher)
    samples = Batches(loader, batches)
    evens = options.equalize and options.learns_float and not options.freeze
    start = start_equalized(opened, make, form, samples, options.run.progress) if evens else Start(form, form)
    measured = None if options.task is None else _measured(opened, options.task, options, batches.batch)
    where = loader.origin or "data"
    return _FinetuneJob(opened, start, loader, samples, backend, teacher, options, where, measured)


def _measured(opened: Model, task: TaskMetric, options: FinetuneOptions, batch: int) -> MeasuredBatches | None:
    """What of `--eval-data` the loss is measured on; None where labels let the task be measured."""
    reading, _ = apply_known(opened.name, task.data, task.data_options, [known_preprocess(opened.proto)])
    inputs = inputs_of(opened.proto.graph)
    if has_truth(replace(task, data_options=reading), inputs):
        check_judgeable(opened)
        return None
    more = label_inputs(task.data, inputs, reading) if options.labeled else ()
    return MeasuredBatches(open_loader(task.data, (*inputs, *more), replace(reading, batch=1)), batch)


def _in_float(options: FinetuneOptions) -> FinetuneOptions:
    """What a model without Q/DQ is trained with beside a teacher or labels: a rate for weights without a grid."""
    update, run = options.update, options.run
    if update.lr is None and update.relative_lr is None:
        rise = None if options.labeled else FLOAT_RISE
        update = replace(update, relative_lr=FLOAT_RELATIVE_LR, rise=rise if update.rise is None else update.rise)
    if run.most_epochs is None:
        run = replace(run, most_epochs=FLOAT_EPOCHS)
    return replace(options, update=update, run=run)


def _make_form(opened: Model, options: FinetuneOptions, backend: GradientBackend, model: Model) -> TrainingGraph:
    """The training form of the model, or of the same with other weights."""
    places = None if options.ranges == "fixed" else _plan_of_pairs(model)
    return make_form(model, options.ranges, options.bn, options.freeze, places, backend.operators())


def _plan_of_pairs(model: Model) -> Plan:
    """The plan that the pairs of a file follow: a DLA's where most places that it adds to a GPU's have a pair."""
    gpu, dla = (plan(model.proto, PlanOptions(target)) for target in ("gpu", "dla"))
    added = {point.tensor for point in dla.activations} - {point.tensor for point in gpu.activations}
    return dla if 2 * len(added & model.view.pairs.keys()) > len(added) else gpu


def _check_teacher(opened: Model, options: FinetuneOptions) -> None:
    """Refuse to learn from a float function that was moved so that INT8 comes out right: that would undo it."""
    moved = changed_function(opened.proto)
    if options.teacher is None and moved and options.loss.needs_teacher:
        reason = f"cannot be its own teacher, as its FP32 results were changed ({', '.join(moved)})"
        todo = "give the original FP32 model as --teacher"
        if options.blocks and FINETUNED in moved:
            todo = "use --blocks on what insert wrote, before other training"
        elif options.blocks:
            todo = "insert with --condition equalize,smooth: blocks learn what clip and correct do"
        raise QdqError(opened.name, reason, todo)


def _augmentation(options: FinetuneOptions) -> tuple[str, ...] | None:
    """What is done to samples: nothing where labels lie beside them that do not go where the picture goes."""
    if options.loss.moving and not options.loss.script:
        return options.augment
    if options.labeled and options.augment:
        raise QdqError("--augment", "changes pictures and not their labels", "leave it out; the loader may change both")
    return () if options.labeled else options.augment


def _batch(loader: DataLoader, asked: int | None) -> int:
    """Samples in one run; a model that fixes its batch gets that one."""
    fixed = next((one for one in loader.inputs if not one.batched), None)
    if fixed is None:
        if asked is not None and asked < 1:
            raise QdqError("--batch", f"{asked} is not a number of samples", "give 1 or more")
        return asked or 1
    if asked not in (None, fixed.first):
        reason = f"{asked} cannot be, the input {fixed.name!r} takes {fixed.format_shape()}"
        raise QdqError("--batch", reason, "leave it out; --grad-accum averages the gradients of several batches")
    return 1  # an item of the data is a whole batch


def _identity(job: _FinetuneJob) -> TrainingIdentity:
    """What a checkpoint is held against: how it is reported and kept is none of it."""
    digest = sha256_of_model(job.opened.proto)
    teacher = job.teacher
    other = "" if teacher is None else sha256_of_model(teacher.proto)
    data = job.loader.fingerprint if job.loader.origin is not None else ""
    options, free = job.options, {"checkpoint", "checkpoint_every", "resume", "keep_checkpoint", "log", "progress"}
    free |= {"workers", "reducer", "keep", "steps", "epochs"}
    run = {name: value for name, value in asdict(options.run).items() if name not in free}
    rest = {name: getattr(options, name) for name in ("ranges", "bn", "freeze", "augment", "equalize")}
    more: dict[str, object] = {
        "batch": options.batch,
        "memory": options.memory,
        "backend": job.backend.name,
        "provider": options.provider,
    }
    task = None if options.task is None else options.task.summary()
    if options.labels is not None:
        more["labels"] = str(options.labels)
    loss = asdict(replace(options.loss, boxes=None))
    if options.loss.boxes is not None:
        more["boxes"] = (options.loss.boxes.description, options.decoder, str(options.names))
    facts = {"loss": loss, "update": asdict(options.update), "run": run, **rest, **more, "task": task}
    return TrainingIdentity(digest, data, other, json.dumps(facts, sort_keys=True, default=str))


def _facts(job: _FinetuneJob, progress: Progress, *, in_float: bool) -> dict[str, Any] | None:
    """What the file tells of its training; None where nothing about its weights changed."""
    options = job.options
    if not progress.best_step and not job.start.equalized:
        return None
    return {
        "equalized": sorted({*equalized_tensors(job.opened.proto), *job.start.equalized}),
        "steps": progress.best_step,
        "measure": _measure(job),
        **({"blocks": True} if options.blocks else {}),
        **({"in_float": True} if in_float else {}),
        "before": progress.start,
        "after": progress.best,
        "ranges": options.ranges,
        "seed": options.run.seed,
    }
