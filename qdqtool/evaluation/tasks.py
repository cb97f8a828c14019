# SPDX-License-Identifier: Apache-2.0
"""The task that a model is judged by on given data: labels, agreement with the reference, or the signal at its outputs.

A task reads the outputs of each run and computes figures from all that it read. The reference is the FP32 model of the
user, or what `evaluate` takes for the baseline. `choose_task` is the only place that chooses a task.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.agreement import SURE, agreement
from qdqtool.evaluation.class_names import Names, refuse_too_many
from qdqtool.evaluation.classification import (
    COMPARE,
    class_agreement,
    classified,
    mean_nearness,
    nearness,
    ranks,
    scores_of,
)
from qdqtool.evaluation.classifier_output import classifier_of
from qdqtool.evaluation.decode.head import HeadDecoder, Size
from qdqtool.evaluation.decode_options import DecodeOptions, Metric, Selection
from qdqtool.evaluation.detection_ap import coco, voc
from qdqtool.evaluation.detections import Array, Decoder, Detections
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.evaluation.inference import decoder_for
from qdqtool.evaluation.labels import are_boxes, are_classes, box_labels, class_labels, map_labels
from qdqtool.evaluation.labels_boxes import BoxLabels
from qdqtool.evaluation.labels_classes import ClassLabels
from qdqtool.evaluation.labels_maps import MapLabels, are_maps
from qdqtool.evaluation.metrics import MeasuredModel
from qdqtool.evaluation.output_signal import compared_outputs, output_signal
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from qdqtool.evaluation.segmentation import MapReader, class_counts, map_reader, mean_iou
from qdqtool.graph.output_rows import OutputRows

Outputs = Mapping[str, Array]
_INSTALL = "pip install 'qdqtool[eval]'"


@dataclass(frozen=True)
class TaskOptions:
    """How outputs are judged.

    Attributes:
        labels: the truth; None for none.
        metric: top1, coco, voc or miou; None takes what the labels are for; agreement compares with the reference,
            whatever labels there are.
        decoder: see `find_decoder`.
        names: the model's classes.
        postprocess: ``script.py:function`` or a function that makes boxes, instead of a decoder.
        rows: what the graph says of the outputs, as `find_decoder` takes it.
        selection: which boxes a decoder keeps.
        label_offset: added to the class numbers of labels.
    """

    labels: str | Path | None = None
    metric: Metric | None = None
    decoder: str = "auto"
    names: Names | None = None
    postprocess: str | Callable[..., Any] | None = None
    rows: Mapping[str, OutputRows] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    label_offset: int = 0

    @property
    def is_automatic(self) -> bool:
        """Whether the outputs alone decide how they are read."""
        return self.decoder == "auto" and self.postprocess is None

    @property
    def reading(self) -> DecodeOptions:
        """How outputs are read."""
        return DecodeOptions(self.decoder, self.postprocess, self.selection)


class Task(Protocol):
    """What a model is judged by.

    Attributes:
        title: in words.
        compares: whether reading wants FP32's outputs of the same run.
    """

    @property
    def title(self) -> str:
        """What the figures are, in words."""
        ...

    @property
    def compares(self) -> bool:
        """Whether reading wants FP32's outputs of the same run."""
        ...

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """What a run found, sample by sample; `first` numbers its first sample, `name` is the model's in messages."""
        ...

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The figures of what was read, with what was read of FP32 beside it."""
        ...


@dataclass(frozen=True)
class LabeledBoxes:
    """Average precision by labels."""

    decoder: Decoder
    labels: BoxLabels
    voc: bool = False
    compares: bool = False

    @property
    def title(self) -> str:
        """Which average precision."""
        return "AP50 as VOC counts it" if self.voc else "mAP (0.5:0.95)"

    def read(
        self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model"
    ) -> list[tuple[Detections, Truth]]:
        """Boxes, and the true ones beside them."""
        found = self.decoder(outputs, chunk.geometries)
        places = enumerate(chunk.geometries)
        truths = [self.labels.truth(first + k, one.width, one.height) for k, one in places]
        return list(zip(found, truths, strict=True))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """Average precision over all images."""
        boxes, truths = zip(*found, strict=True)
        return (voc if self.voc else coco)(boxes, truths)


@dataclass(frozen=True)
class LabeledClasses:
    """Top-1 by labels, of so many classes; 0 where nobody says how many."""

    labels: ClassLabels
    title: str = "top-1"
    classes: int = 0
    compares: bool = False

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """The rank of the right class."""
        count = len(chunk.geometries)
        right = self.labels.numbers[first : first + count]
        if len(right) < count:
            raise QdqError("--labels", f"hold {len(self.labels.numbers)} classes, the data has more samples")
        return list(ranks(name, scores_of(name, outputs, count), right))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The share of samples whose best class is the right one."""
        return classified([np.asarray(found, np.int64)])


@dataclass(frozen=True)
class LabeledMaps:
    """Mean IoU by labels."""

    reader: MapReader
    labels: MapLabels
    title: str = "mean IoU"
    compares: bool = False

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """How many pixels of each class are right, found and true."""
        if self.reader.name not in outputs:
            raise QdqError(name, f"has no output {self.reader.name}", "give its FP32 original")
        return [
            class_counts(
                self.labels.where,
                self.labels.truth(first + row),
                self.reader(outputs, row, geometry),
                self.reader.classes,
            )
            for row, geometry in enumerate(chunk.geometries)
        ]

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The mean of the classes' IoU over the pixels of all pictures."""
        return mean_iou(found)


LABELED = (LabeledBoxes, LabeledClasses, LabeledMaps)  # the tasks whose figures are of a metric, by labels


@dataclass(frozen=True)
class ClassAgreement:
    """Top-1 with FP32's best class for the right one, and the share of the probability that lies where FP32 has it."""

    title: str = "top-1 agreement with FP32"
    compares: bool = True

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """The rank of FP32's best class, and how near the probabilities are, see `nearness`."""
        count = len(chunk.geometries)
        theirs, own = scores_of(name, reference, count), scores_of(name, outputs, count)
        right = theirs.argmax(1).astype(np.int64)
        return list(zip(ranks(name, own, right), nearness(own, theirs), strict=True))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The share of samples whose best class is FP32's, and the mean of what is near."""
        rank, near = zip(*found, strict=True)
        return class_agreement(np.asarray(rank, np.int64), np.asarray(near, np.float64))


@dataclass(frozen=True)
class ClassNearness:
    """How much of the probability lies where FP32 has it; finer than the best class alone."""

    title: str = "share of the probability that lies where FP32 has it"
    compares: bool = False

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """The scores of the classes."""
        return list(scores_of(name, outputs, len(chunk.geometries)))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """One less half the sum of the differences, over all samples."""
        return mean_nearness(nearness(np.stack(found), np.stack(reference)))


@dataclass(frozen=True)
class BoxAgreement:
    """Average precision with FP32's boxes for the truth."""

    decoder: Decoder
    title: str = "agreement with FP32 (AP 0.5:0.95)"
    compares: bool = False

    def read(
        self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model"
    ) -> list[Detections]:
        """Boxes."""
        return list(self.decoder(outputs, chunk.geometries))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """Average precision against FP32's boxes."""
        return agreement(found, reference)


@dataclass(frozen=True)
class OutputSignal:
    """What is kept of the signal at FP32's outputs; `rows` is what the graph says of them."""

    rows: Mapping[str, OutputRows] = field(default_factory=dict)
    title: str = "signal at the outputs"
    compares: bool = True

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int, name: str = "model") -> list[Any]:
        """FP32's outputs and the model's, sample by sample."""
        return list(compared_outputs(reference, outputs, len(chunk.geometries), first))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """One less the loss at the outputs."""
        return output_signal(found, [name for name, rows in self.rows.items() if rows == "features"])


@dataclass(frozen=True)
class ChosenTask:
    """A task, and why it is this one.

    Attributes:
        task: the task.
        notes: reasons, one sentence each.
        metric: what it measures; agreement without labels.
        unread: why outputs are read neither as boxes nor as classes, so that only their error is left to judge by.
    """

    task: Task
    notes: tuple[str, ...] = ()
    metric: Metric = "agreement"
    unread: QdqError | None = None

    @property
    def labeled(self) -> bool:
        """Whether figures are of the task's own metric, by labels."""
        return isinstance(self.task, LABELED)

    @property
    def decoder(self) -> Decoder | None:
        """What makes boxes; None where the task has none."""
        return self.task.decoder if isinstance(self.task, LabeledBoxes | BoxAgreement) else None

    @property
    def family(self) -> str:
        """Of the decoder that makes boxes, as `--decoder` names it; "" where there is none of ours."""
        return self.decoder.family if isinstance(self.decoder, HeadDecoder) else ""


def asked_metric(options: TaskOptions, samples: LabeledSamples) -> Metric:
    """The metric that was asked for, else what the labels are for; agreement without labels."""
    labels = options.labels
    if options.metric is not None:
        return options.metric
    if labels is not None and are_maps(labels):
        return "miou" if options.is_automatic else "coco"  # what reads outputs as boxes says which labels it needs
    if labels is not None or samples.boxes:
        return "coco" if are_boxes(str(samples.where) if labels is None else labels) else "top1"
    return "top1" if are_classes(samples) else "agreement"


def choose_task(
    outputs: Outputs, chunk: Chunk, samples: LabeledSamples, options: TaskOptions, name: str = "model"
) -> ChosenTask:
    """The task that a model is judged by.

    Args:
        outputs: of the reference, of the first run.
        chunk: that run.
        samples: the data.
        options: labels, metric, decoder.
        name: what messages call the model.

    Raises:
        QdqError: labels that do not fit, or a decoder that does not.
        MissingPackageError: labels of boxes, and pycocotools is not installed.
    """
    metric = asked_metric(options, samples)
    if metric == "agreement":
        return unlabeled_task(outputs, chunk.geometries[0].input_size, options, name)
    labels = str(samples.where) if options.labels is None and samples.boxes else options.labels
    if metric == "top1":
        scores = scores_of(name, outputs, len(chunk.geometries))
        refuse_too_many(len(options.names.shown) if options.names else 0, scores.shape[1])
        truth = class_labels(labels, samples, options.names)
        if options.label_offset:
            form = f"{truth.form}, {options.label_offset:+d}"
            truth = replace(truth, form=form, numbers=truth.numbers + options.label_offset)
        return ChosenTask(LabeledClasses(truth, classes=scores.shape[1]), metric=metric)
    if metric == "miou":
        reader = map_reader(name, outputs)
        refuse_too_many(len(options.names.shown) if options.names else 0, reader.classes or None)
        maps = replace(map_labels(labels, samples, options.names), offset=options.label_offset)
        return ChosenTask(LabeledMaps(reader, maps), metric=metric)
    try:
        decoder = decoder_for(options.reading, outputs, chunk.geometries[0].input_size, options.rows)
    except QdqError as error:
        if not options.is_automatic:
            raise
        raise _unread(name, error) from error
    _refuse_more_names(decoder, options)
    boxes = box_labels(labels, samples, options.names)
    if metric == "coco" and not _has_pycocotools():
        raise MissingPackageError("pycocotools", "is not installed, and mAP needs it", _INSTALL)
    return ChosenTask(LabeledBoxes(decoder, boxes, metric == "voc"), metric=metric)


def unlabeled_task(outputs: Outputs, size: Size, options: TaskOptions, name: str = "model") -> ChosenTask:
    """Agreement with the reference where its outputs can be read, else the signal at its outputs.

    Args:
        outputs: of the reference, of one run.
        size: (width, height) of the input; (0, 0) of a model that takes no images.
        options: how outputs are read.
        name: what messages call the model.

    Raises:
        QdqError: a decoder that was asked for and does not fit.
    """
    if options.is_automatic and classifier_of(outputs) is not None:
        return ChosenTask(ClassAgreement(), ("no labels: compared with the best class of FP32",))
    if options.is_automatic and not any(values.dtype.kind == "f" for values in outputs.values()):
        why = QdqError(name, "cannot be measured on a task: there are no labels and no float output", COMPARE)
        note = "no labels and no float output: compared by the share of equal values"
        return ChosenTask(OutputSignal(), (note,), unread=why)
    try:
        decoder = decoder_for(options.reading, outputs, size, options.rows)
    except QdqError as error:
        if not options.is_automatic:
            raise
        note = "no labels and no decoder that fits: compared by the loss at the outputs"
        return ChosenTask(OutputSignal(options.rows), (note,), unread=_unread(name, error))
    if not _has_pycocotools():
        missing = MissingPackageError("pycocotools", "is not installed, and agreement of boxes needs it", _INSTALL)
        note = f"no labels, and comparing boxes needs pycocotools ({_INSTALL}): compared by the loss at the outputs"
        return ChosenTask(OutputSignal(options.rows), (note,), unread=missing)
    _refuse_more_names(decoder, options)
    return ChosenTask(BoxAgreement(decoder), ("no labels: compared with the boxes of FP32",))


def _unread(name: str, error: QdqError) -> QdqError:
    return QdqError(name, f"cannot be measured on a task: {error.reason}", f"{error.todo}; {COMPARE}")


def task_of_boxes(chosen: ChosenTask, found: Sequence[Any], rows: Mapping[str, OutputRows]) -> ChosenTask:
    """The task, or the signal at the outputs where FP32 finds no box that agreement could be held against."""
    if not isinstance(chosen.task, BoxAgreement) or any((one.scores > SURE).any() for one in found):
        return chosen
    note = f"FP32 finds no box above a score of {SURE} in {len(found)} samples: compared by the loss at the outputs"
    return ChosenTask(OutputSignal(rows), (note, "check that --preprocess is what the model was trained with"))


def _refuse_more_names(decoder: Decoder, options: TaskOptions) -> None:
    """Refuse more names than the decoder tells classes apart."""
    if options.names is not None and isinstance(decoder, HeadDecoder):
        refuse_too_many(len(options.names.shown), decoder.head.classes)


def _has_pycocotools() -> bool:
    return importlib.util.find_spec("pycocotools") is not None
