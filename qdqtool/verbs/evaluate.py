# SPDX-License-Identifier: Apache-2.0
"""evaluate: a model and labeled data to its task's figures, beside its FP32 original. No metric is defined here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.evaluation.agreement import agreement
from qdqtool.evaluation.chance import chance_warning
from qdqtool.evaluation.class_names import Names, parse_names, refuse_too_many
from qdqtool.evaluation.classification import COMPARE, classified, ranks, scores_of
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.detection_ap import coco, voc
from qdqtool.evaluation.detections import FINDS_NOTHING, Array, Decoder, Detections
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.evaluation.known_preprocess import apply_known, resize_note
from qdqtool.evaluation.labels import are_boxes, are_classes, box_labels, class_labels
from qdqtool.evaluation.labels_classes import ClassLabels, Int64
from qdqtool.evaluation.metrics import MeasuredModel, judge
from qdqtool.evaluation.postprocess import ScriptDecoder, script_decoder
from qdqtool.evaluation.samples import Chunk, LabeledSamples, open_samples
from qdqtool.graph.io import ModelSource
from qdqtool.progress import bar
from qdqtool.runtime.executor import RunsBatches, rows_of_run
from qdqtool.verbs.evaluate_options import EvaluateOptions, Metric
from qdqtool.verbs.evaluation_result import Evaluation
from qdqtool.verbs.judged_model import Int8Request, JudgedModel, open_judged


def evaluate(
    model: ModelSource,
    data: Data,
    labels: str | Path | None = None,
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
        labels: the truth; None where the data tells it, or for agreement.
        options: baseline, metric, decoder, names.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: labels that do not fit, no decoder, no task metric for this model and data, a preprocessing that feeds
            other values than the model was made for; what `open_judged` and `open_samples` refuse.
        MissingPackageError: onnxruntime, Pillow (for images) or pycocotools (for COCO's figures) is not installed.
    """
    options = options or EvaluateOptions()
    names = _names(options.names)
    opened = [open_judged(model, options.provider, Int8Request(options.cache, options.target, options.trt_version))]
    if options.baseline is not None:
        opened.append(open_judged(options.baseline, options.provider))
    _check_alike(opened, opened[0].inputs)
    known = [one.known for one in opened]
    reading, said = apply_known(opened[0].name, data, data_options or DataOptions(), known)
    samples = open_samples(data, opened[0].inputs, reading)
    samples = replace(samples, notes=(*said, *samples.notes))
    if labels is None and samples.boxes and options.metric != "agreement":
        labels = str(samples.where)
    metric = options.metric or _metric_of(opened[0].name, labels, samples, options)
    job = _EvaluationJob(opened, [one.start() for one in opened], samples, names, options, reading)
    return _classify(job, labels) if metric == "top1" else _detect(job, metric, labels)


def _names(text: str | None) -> Names | None:
    """The classes of `--names`; COCO's need not be listed."""
    if text not in ("coco", "coco90"):
        return None if text is None else parse_names(text)
    shown = shown_names(text)
    return Names(shown, {word: number for number, word in enumerate(shown) if word})


@dataclass(frozen=True)
class _EvaluationJob:
    """What every task needs: the models (the baseline last), the samples, the names."""

    opened: Sequence[JudgedModel]
    runs: Sequence[RunsBatches]
    samples: LabeledSamples
    names: Names | None
    options: EvaluateOptions
    reading: DataOptions

    @property
    def paired(self) -> bool:
        return len(self.opened) == 2

    def walk(self) -> Iterator[tuple[Chunk, list[dict[str, Array]]]]:
        """Each run with the outputs of each model."""
        for chunk in _shown(self.samples, self.options.progress):
            yield chunk, [run.run(chunk.batch) for run in self.runs]


def _check_alike(opened: Sequence[JudgedModel], inputs: Sequence[Input]) -> None:
    for other in opened[1:]:
        theirs = {one.name for one in other.inputs}
        if theirs != {one.name for one in inputs}:
            mine = ", ".join(one.name for one in inputs)
            reason = f"takes {', '.join(sorted(theirs))}, the model takes {mine}"
            raise QdqError(other.name, reason, "give the FP32 original of the same model")


def _metric_of(model: str, labels: str | Path | None, samples: LabeledSamples, options: EvaluateOptions) -> Metric:
    """What the labels are for; without any, agreement."""
    if labels is not None:
        return "coco" if are_boxes(labels) else "top1"
    if are_classes(samples):
        return "top1"
    if options.baseline is not None:
        return "agreement"
    reason = "cannot be measured on a task: there are no --labels, and no --baseline to compare detections with"
    raise QdqError(model, reason, COMPARE)


def _shown(samples: LabeledSamples, progress: bool | None) -> Iterator[Chunk]:
    """The runs, with a bar on stderr while they pass."""
    with bar("evaluate", "sample", samples.count, progress) as drawn:
        for chunk in samples.chunks():
            yield chunk
            drawn.advance(len(chunk.geometries))


# --------------------------------------------------------------------------------------------------- classification


def _classify(job: _EvaluationJob, labels: str | Path | None) -> Evaluation:
    truth = class_labels(labels, job.samples, job.names)
    found: list[list[Int64]] = [[] for _ in job.runs]
    seen = classes = 0
    for chunk, outputs in job.walk():
        count = len(chunk.geometries)
        right = truth.numbers[seen : seen + count] + job.options.label_offset
        if len(right) < count:
            raise QdqError("--labels", f"hold {len(truth.numbers)} classes, the data has more samples")
        for held, one, given in zip(found, job.opened, outputs, strict=True):
            scores = scores_of(one.name, given, count)
            classes = scores.shape[1]
            refuse_too_many(len(job.names.shown) if job.names else 0, classes)
            held.append(ranks(one.name, scores, right))
        seen += count
    measured = [classified(held) for held in found]
    hits = int(sum((one == 0).sum() for one in found[-1]))  # of the baseline, where there is one: the other is INT8
    doubt = chance_warning(job.opened[-1].name, hits, seen, classes)
    made = _evaluation(job, "top1", measured, shown=truth.shown, labels=_describe_labels(job, truth))
    return replace(made, reference_warning=doubt, notes=(*made.notes, *filter(None, [doubt])))


def _describe_labels(job: _EvaluationJob, truth: ClassLabels) -> str:
    offset = job.options.label_offset
    return truth.form + (f", {offset:+d}" if offset else "")


# -------------------------------------------------------------------------------------------------------- detection


def _detect(job: _EvaluationJob, metric: Metric, labels: str | Path | None) -> Evaluation:
    if metric == "agreement":
        return _agree(job)
    form = box_labels(labels, job.samples, job.names)
    truths: list[Truth] = []
    found, means = _boxes(job, lambda chunk: truths.extend(_truths(form, chunk, len(truths))))
    measured = [(coco if metric == "coco" else voc)(one, truths) for one in found]
    notes = (*_strangers(found[0], form.shown), *_finds_nothing(job, found), *_stretched(job, means))
    return _evaluation(job, metric, measured, form.shown, means, form.form, notes)


def _truths(form: Any, chunk: Chunk, first: int) -> list[Truth]:
    return [form.truth(first + index, g.width, g.height) for index, g in enumerate(chunk.geometries)]


def _agree(job: _EvaluationJob) -> Evaluation:
    if not job.paired:
        raise QdqError(job.opened[0].name, "needs --baseline to compare with", "give its FP32 original")
    found, means = _boxes(job, lambda chunk: None)
    measured = agreement(*found)
    shown = job.names.shown if job.names else ()
    return _evaluation(
        job, "agreement", [measured], shown, means, notes=(*_finds_nothing(job, found), *_stretched(job, means))
    )


def _boxes(job: _EvaluationJob, also: Callable[[Chunk], None]) -> tuple[list[list[Detections]], str]:
    """The detections of each model, image by image, and how they were had; `also` sees every run."""
    decoder: Decoder | None = None
    means = ""
    found: list[list[Detections]] = [[] for _ in job.runs]
    for chunk, outputs in job.walk():
        if decoder is None:  # what the baseline gives is the clearer: INT8 may have blurred what tells heads apart
            decoder, means = _decoder(job, outputs[-1], chunk)
        also(chunk)
        for held, given in zip(found, outputs, strict=True):
            held.extend(decoder(given, chunk.geometries))
    return found, means


def _decoder(job: _EvaluationJob, outputs: Mapping[str, Array], chunk: Chunk) -> tuple[Decoder, str]:
    options = job.options
    if options.postprocess is not None:
        if callable(options.postprocess):
            scripted = ScriptDecoder(Path("postprocess"), options.postprocess, options.selection)
        else:
            scripted = script_decoder(options.postprocess, options.selection)
        return scripted, scripted.description
    size = chunk.geometries[0].input_size
    if not all(size):
        raise QdqError(job.opened[0].name, "takes no images, so no decoder fits", f"{COMPARE}; --postprocess")
    try:
        found = find_decoder(options.decoder, outputs, size, options.selection, rows_of_run(job.runs[-1]))
    except QdqError as error:
        if options.decoder != "auto":
            raise
        reason = f"cannot be measured on a task: {error.reason}"
        raise QdqError(job.opened[0].name, reason, f"{error.todo}; {COMPARE}") from error
    refuse_too_many(len(job.names.shown) if job.names else 0, found.head.classes)
    return found, found.description


def _strangers(found: Sequence[Detections], shown: Sequence[str]) -> tuple[str, ...]:
    """A word where the model tells classes that the labels do not know."""
    if not shown:
        return ()
    outside = sum(int((one.labels >= len(shown)).sum()) for one in found)
    if not outside:
        return ()
    total = sum(map(len, found))
    return (f"{outside} of {total} detections are of classes beyond the {len(shown)} classes of the labels: ignored",)


def _stretched(job: _EvaluationJob, means: str) -> tuple[str, ...]:
    """A sentence where images are stretched for a family that is trained on letterboxed ones, if nobody said so."""
    family = means.partition(":")[0]  # how a decoder's description begins
    where = job.samples.where
    return resize_note(job.reading.preprocess, family, where) if isinstance(where, (str, Path)) else ()


def _finds_nothing(job: _EvaluationJob, found: Sequence[Sequence[Detections]]) -> tuple[str, ...]:
    """A sentence for each model that finds nothing anywhere: a wrong preprocessing or decoder is likelier than that."""
    empty = zip(job.opened, found, strict=True)
    return tuple(f"{one.name} {FINDS_NOTHING}" for one, boxes in empty if not any(map(len, boxes)))


# ---------------------------------------------------------------------------------------------------------- figures


def _evaluation(
    job: _EvaluationJob,
    metric: Metric,
    measured: Sequence[MeasuredModel],
    shown: tuple[str, ...] = (),
    means: str = "",
    labels: str = "",
    notes: tuple[str, ...] = (),
) -> Evaluation:
    mine = measured[0]
    verdict = judge(mine, measured[1] if len(measured) == 2 else None, seed=job.options.seed)
    return Evaluation(
        metric,
        job.opened[0].name,
        job.opened[-1].name if job.paired else "",
        mine.images,
        verdict.figures,
        verdict.baseline,
        verdict.losses,
        mine.classes,
        shown,
        means,
        labels,
        mine.facts,
        (*job.samples.notes, *notes),
        job.opened[0].how,
    )
