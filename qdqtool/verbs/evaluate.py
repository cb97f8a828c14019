# SPDX-License-Identifier: Apache-2.0
"""evaluate: a model and labeled data to its task's figures, beside its FP32 original. No metric is defined here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.command_lines import peel_any
from qdqtool.data.arrays import HeldArray
from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.model_inputs import Array, Input
from qdqtool.errors import QdqError
from qdqtool.evaluation.chance import reference_warning
from qdqtool.evaluation.classification import COMPARE
from qdqtool.evaluation.coco_names import model_names
from qdqtool.evaluation.detections import FINDS_NOTHING, Detections
from qdqtool.evaluation.known_preprocess import apply_known, resize_note
from qdqtool.evaluation.labels_classes import array_classes
from qdqtool.evaluation.metrics import judge
from qdqtool.evaluation.samples import LabeledSamples, open_samples, with_classes
from qdqtool.evaluation.tasks import (
    ChosenTask,
    LabeledBoxes,
    LabeledClasses,
    LabeledMaps,
    TaskOptions,
    asked_metric,
    choose_task,
)
from qdqtool.graph.io import ModelSource
from qdqtool.graph.model import Model
from qdqtool.passes.integer_operators import has_loose_integers
from qdqtool.progress import bar
from qdqtool.runtime.executor import rows_of_run
from qdqtool.trtversion import RELEASES
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.evaluation_result import Evaluation
from qdqtool.verbs.simulate_options import SimulateOptions
from qdqtool.verbs.target_model import TargetModel, target_model


def evaluate(
    model: ModelSource,
    data: Data,
    labels: str | Path | Array | Sequence[int] | None = None,
    options: EvaluateOptions | None = None,
    data_options: DataOptions | None = None,
) -> Evaluation:
    """Judge a model by its task: top-1 and top-5, average precision, or agreement with its FP32 original.

    Models run in onnxruntime with ORT_ENABLE_BASIC and session.disable_quant_qdq, Q/DQ computed as written; with a
    cache or a target INT8 is simulated as TensorRT rounds; an engine runs where its TensorRT is. Samples are streamed;
    only ranks and boxes are kept. Intervals come from a paired bootstrap over the samples.

    Images are preprocessed as the model's metadata say where `data_options` do not.

    Args:
        model: a path, an onnx.ModelProto, a gs.Graph or a callable returning one; plain or with Q/DQ; never changed. Or
            the file of an engine (.plan, .engine, .trt).
        data: what it is judged on; see `open_samples`.
        labels: the truth, as a file or as one class per sample, int[n]; None where the data tells it, or for agreement.
        options: baseline, metric, decoder, names.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: labels that do not fit, no decoder, no task metric for this model and data, a preprocessing that feeds
            other values than the model was made for; what `target_model` and `open_samples` refuse.
        MissingPackageError: onnxruntime, Pillow (for images) or pycocotools (for COCO's figures) is not installed.
    """
    options = options or EvaluateOptions()
    names = model_names(options.names)
    simulated = (options.cache, options.target, options.trt_version) != (None, None, None)
    on = SimulateOptions(options.target or "gpu", options.trt_version, cache=options.cache) if simulated else None
    opened = [target_model(model, on)]
    if options.baseline is not None:
        opened.append(target_model(options.baseline))
    _check_alike(opened, opened[0].inputs)
    known = [one.known for one in opened]
    reading, said = apply_known(opened[0].name, data, data_options or DataOptions(), known)
    samples = open_samples(data, opened[0].inputs, reading)
    samples = replace(samples, notes=(*said, *samples.notes))
    if labels is not None and not isinstance(labels, str | Path):
        samples, labels = with_classes(samples, array_classes("labels", HeldArray(np.asarray(labels)))), None
    if labels is None and samples.boxes and options.metric != "agreement":
        labels = str(samples.where)
    task = TaskOptions(
        labels,
        options.metric,
        options.decoder,
        names,
        options.postprocess,
        selection=options.selection,
        label_offset=options.label_offset,
    )
    if len(opened) == 1 and asked_metric(task, samples) == "agreement":
        if options.metric == "agreement":
            raise QdqError(opened[0].name, "needs --baseline to compare with", "give its FP32 original")
        reason = "cannot be measured on a task: there are no --labels, and no --baseline to compare with"
        raise QdqError(opened[0].name, reason, COMPARE)
    chosen, found = _read(opened, samples, task, options)
    return _evaluation(opened, samples, chosen, found, task, options, reading)


def _check_alike(opened: Sequence[TargetModel], inputs: Sequence[Input]) -> None:
    for other in opened[1:]:
        theirs = {one.name for one in other.inputs}
        if theirs != {one.name for one in inputs}:
            mine = ", ".join(one.name for one in inputs)
            reason = f"takes {', '.join(sorted(theirs))}, the model takes {mine}"
            raise QdqError(other.name, reason, "give the FP32 original of the same model")
        their_types = {one.name: one.dtype for one in other.inputs}
        for one in inputs:
            kind = their_types[one.name]
            if (one.dtype.kind == "f") != (kind.kind == "f"):
                reason = f"takes {kind} for {one.name}, the model takes {one.dtype}: no data fit both"
                raise QdqError(other.name, reason, _apart(opened[0] if kind.kind == "f" else other))


def _apart(of_integers: TargetModel) -> str:
    """What to do where one model takes integers and the other one floats."""
    todo = "evaluate each by itself, with its own --preprocess"
    if not isinstance(of_integers.model, Model) or not has_loose_integers(of_integers.model.view):
        return todo
    newest = max(one.version for one in RELEASES if one.version.has_caches)
    peel = peel_any(of_integers.name, newest.text)
    return (
        f"{todo}, or give it a float input: insert --requantize quantizes it anew, and this writes its floats: {peel}"
    )


def _read(
    opened: Sequence[TargetModel], samples: LabeledSamples, asked: TaskOptions, options: EvaluateOptions
) -> tuple[ChosenTask, list[list[Any]]]:
    """The task, chosen by the outputs of the reference, and what each model finds; one pass over the samples.

    The reference is the last model: INT8 may have blurred what tells heads apart.
    """
    runs = [one.start(provider=options.provider) for one in opened]
    found: list[list[Any]] = [[] for _ in runs]
    chosen: ChosenTask | None = None
    asked, first = replace(asked, rows=rows_of_run(runs[-1])), 0
    with bar("evaluate", "sample", samples.count, options.progress) as drawn:
        for chunk in samples.chunks():
            outputs = [run.run(chunk.batch) for run in runs]
            if chosen is None:
                chosen = choose_task(outputs[-1], chunk, samples, asked, opened[0].name)
                if chosen.unread is not None:
                    raise chosen.unread
            for one, own, given in zip(opened, found, outputs, strict=True):
                own += chosen.task.read(given, outputs[-1], chunk, first, one.name)
            first += len(chunk.geometries)
            drawn.advance(len(chunk.geometries))
    if chosen is None:
        raise QdqError(str(samples.where), "gives no sample to measure on", "give more")
    return chosen, found


def _evaluation(
    opened: Sequence[TargetModel],
    samples: LabeledSamples,
    chosen: ChosenTask,
    found: list[list[Any]],
    asked: TaskOptions,
    options: EvaluateOptions,
    reading: DataOptions,
) -> Evaluation:
    """The figures of all models by what each found, and what the first loses against the last."""
    task = chosen.task
    measured = [task.measure(one, found[-1]) for one in found]
    verdict = judge(measured[0], measured[1] if len(measured) == 2 else None, seed=options.seed)
    labels, doubt = "", ""
    shown = asked.names.shown if asked.names is not None else ()
    notes: tuple[str, ...] = ()
    if isinstance(task, LabeledBoxes | LabeledClasses | LabeledMaps):
        labels, shown = task.labels.form, task.labels.shown
    if isinstance(task, LabeledClasses):
        doubt = reference_warning(task, found[-1], opened[-1].name)
        notes = (doubt,) if doubt else ()
    if chosen.decoder is not None:
        boxes = [[one[0] for one in its] if chosen.labeled else its for its in found]
        if chosen.labeled:
            notes = _strangers(boxes[0], shown)
        pairs = zip(opened, boxes, strict=True)
        notes += tuple(f"{one.name} {FINDS_NOTHING}" for one, its in pairs if not any(map(len, its)))
        if isinstance(samples.where, str | Path):
            notes += resize_note(reading.preprocess, chosen.family, samples.where)
    return Evaluation(
        chosen.metric,
        opened[0].name,
        opened[-1].name if len(opened) == 2 else "",
        measured[0].images,
        verdict.figures,
        verdict.baseline,
        verdict.losses,
        measured[0].classes,
        shown,
        "" if chosen.decoder is None else chosen.decoder.description,
        labels,
        measured[0].facts,
        (*samples.notes, *notes),
        opened[0].how,
        doubt,
    )


def _strangers(found: Sequence[Detections], shown: Sequence[str]) -> tuple[str, ...]:
    """A word where the model tells classes that the labels do not know."""
    if not shown:
        return ()
    outside = sum(int((one.labels >= len(shown)).sum()) for one in found)
    if not outside:
        return ()
    total = sum(map(len, found))
    return (f"{outside} of {total} detections are of classes beyond the {len(shown)} classes of the labels: ignored",)
