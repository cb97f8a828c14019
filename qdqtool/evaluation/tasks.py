# SPDX-License-Identifier: Apache-2.0
"""What a model is judged by on given data: labels, agreement with FP32, or what is kept of its outputs.

A task reads the outputs of each run, and makes figures of what it read; the figures of FP32 stand beside them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.agreement import SURE, agreement
from qdqtool.evaluation.class_names import Names, refuse_too_many
from qdqtool.evaluation.classification import classified, nearness, ranks, scores_of
from qdqtool.evaluation.classifier_output import classifier_of
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.detection_ap import coco, voc
from qdqtool.evaluation.detections import Array, Decoder, Detections
from qdqtool.evaluation.fidelity import error_sums, fidelity
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.evaluation.labels import are_boxes, are_classes, box_labels, class_labels
from qdqtool.evaluation.labels_boxes import BoxLabels
from qdqtool.evaluation.labels_classes import ClassLabels
from qdqtool.evaluation.metrics import MeasuredModel
from qdqtool.evaluation.postprocess import script_decoder
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from qdqtool.graph.class_rows import ClassRows

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class TaskOptions:
    """How outputs are judged.

    Attributes:
        labels: the truth; None for none.
        metric: top1, coco or voc; None takes what the labels are for; agreement holds against FP32, whatever labels
            there are.
        decoder: see `find_decoder`.
        names: the model's classes.
        postprocess: ``script.py:function`` that makes boxes, instead of a decoder.
        rows: what the graph says of the outputs, as `find_decoder` takes it.
    """

    labels: str | Path | None = None
    metric: str | None = None
    decoder: str = "auto"
    names: Names | None = None
    postprocess: str | None = None
    rows: Mapping[str, ClassRows] = field(default_factory=dict)


class JudgingTask(Protocol):
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

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Any]:
        """What a run found, sample by sample; `first` is the number of its first sample."""
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

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[tuple[Detections, Truth]]:
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

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Any]:
        """The rank of the right class."""
        count = len(chunk.geometries)
        right = self.labels.numbers[first : first + count]
        if len(right) < count:
            raise QdqError("--labels", f"hold {len(self.labels.numbers)} classes, the data has more samples")
        return list(ranks("model", scores_of("model", outputs, count), right))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The share of samples whose best class is the right one."""
        return classified([np.asarray(found, np.int64)])


@dataclass(frozen=True)
class ClassAgreement:
    """Top-1 with FP32's best class for the right one."""

    title: str = "top-1 agreement with FP32"
    compares: bool = True

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Any]:
        """The rank of FP32's best class."""
        count = len(chunk.geometries)
        right = scores_of("model", reference, count).argmax(1).astype(np.int64)
        return list(ranks("model", scores_of("model", outputs, count), right))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """The share of samples whose best class is FP32's."""
        made = classified([np.asarray(found, np.int64)])
        return replace(made, metrics=("agreement1", "agreement5"))


@dataclass(frozen=True)
class ClassNearness:
    """How much of the probability lies where FP32 has it; finer than the best class alone."""

    title: str = "share of the probability that lies where FP32 has it"
    compares: bool = False

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Any]:
        """The scores of the classes."""
        return list(scores_of("model", outputs, len(chunk.geometries)))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """One less half the sum of the differences, over all samples."""
        return nearness(np.stack(found), np.stack(reference))


@dataclass(frozen=True)
class BoxAgreement:
    """Average precision with FP32's boxes for the truth."""

    decoder: Decoder
    title: str = "agreement with FP32 (AP 0.5:0.95)"
    compares: bool = False

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Detections]:
        """Boxes."""
        return list(self.decoder(outputs, chunk.geometries))

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """Average precision against FP32's boxes."""
        return agreement(found, reference)


@dataclass(frozen=True)
class OutputFidelity:
    """What is kept of FP32's outputs."""

    title: str = "fidelity of the outputs (1 - error / signal, worst output)"
    compares: bool = True

    def read(self, outputs: Outputs, reference: Outputs, chunk: Chunk, first: int) -> list[Any]:
        """Sums of the run, one for all its samples."""
        return [error_sums(reference, outputs)]

    def measure(self, found: Sequence[Any], reference: Sequence[Any]) -> MeasuredModel:
        """One less the share of error."""
        return fidelity(found)


@dataclass(frozen=True)
class ChosenTask:
    """A task, and what is to be said of why it is this one."""

    task: JudgingTask
    notes: tuple[str, ...] = field(default=())

    @property
    def family(self) -> str:
        """Of the decoder that makes boxes, as `--decoder` names it; "" where there is none of ours."""
        decoder = self.task.decoder if isinstance(self.task, (LabeledBoxes, BoxAgreement)) else None
        return decoder.family if isinstance(decoder, HeadDecoder) else ""


def choose_task(outputs: Outputs, chunk: Chunk, samples: LabeledSamples, options: TaskOptions) -> ChosenTask:
    """What a model is judged by.

    Raises:
        QdqError: labels that do not fit, or a decoder that does not.
        MissingPackageError: labels of boxes, and pycocotools is not installed.
    """
    if options.metric == "agreement":
        return _without_labels(outputs, chunk, options)
    labels = options.labels
    if labels is None and samples.boxes:
        labels = str(samples.where)
    if options.metric in ("coco", "voc") or (options.metric is None and labels is not None and are_boxes(labels)):
        if options.metric != "voc" and not _has_pycocotools():
            todo = "pip install 'qdqtool[eval]'"
            raise MissingPackageError("pycocotools", "is not installed, and mAP needs it", todo)
        decoder = _of_names(_decoder(outputs, chunk, options), options)
        return ChosenTask(LabeledBoxes(decoder, box_labels(labels, samples, options.names), options.metric == "voc"))
    if labels is not None or options.metric == "top1" or are_classes(samples):
        scores = scores_of("model", outputs, len(chunk.geometries))
        truth = class_labels(labels, samples, options.names)
        return ChosenTask(LabeledClasses(truth, classes=scores.shape[1]))
    return _without_labels(outputs, chunk, options)


def _without_labels(outputs: Outputs, chunk: Chunk, options: TaskOptions) -> ChosenTask:
    """Agreement where outputs can be read, else fidelity."""
    automatic = options.decoder == "auto" and options.postprocess is None
    if automatic and classifier_of(outputs) is not None:
        return ChosenTask(ClassAgreement(), ("no labels: compared with the best class of FP32",))
    if automatic and not any(values.dtype.kind == "f" for values in outputs.values()):
        return ChosenTask(OutputFidelity(), ("no labels and no float output: compared by the share of equal values",))
    try:
        decoder = _decoder(outputs, chunk, options)
    except QdqError:
        if not automatic:
            raise
        return ChosenTask(
            OutputFidelity(), ("no labels and no decoder that fits: compared by the error of the outputs",)
        )
    if not _has_pycocotools():
        note = (
            "no labels, and comparing boxes needs pycocotools (pip install 'qdqtool[eval]'): compared by the "
            "error of the outputs"
        )
        return ChosenTask(OutputFidelity(), (note,))
    return ChosenTask(BoxAgreement(_of_names(decoder, options)), ("no labels: compared with the boxes of FP32",))


def task_of_boxes(chosen: ChosenTask, found: Sequence[Any]) -> ChosenTask:
    """The task, or fidelity where FP32 finds no box that agreement could be held against."""
    if not isinstance(chosen.task, BoxAgreement) or any((one.scores > SURE).any() for one in found):
        return chosen
    note = f"FP32 finds no box above a score of {SURE} in {len(found)} samples: compared by the error of the outputs"
    return ChosenTask(OutputFidelity(), (note, "check that --preprocess is what the model was trained with"))


def _decoder(outputs: Outputs, chunk: Chunk, options: TaskOptions) -> Decoder:
    if options.postprocess is not None:
        return script_decoder(options.postprocess, Selection())
    size = chunk.geometries[0].input_size
    if not all(size):
        raise QdqError("model", "takes no images, so no decoder fits", "leave --decoder out")
    return find_decoder(options.decoder, outputs, size, Selection(), options.rows)


def _of_names(decoder: Decoder, options: TaskOptions) -> Decoder:
    """The decoder, refused where there are more names than it tells classes apart."""
    if options.names is not None and isinstance(decoder, HeadDecoder):
        refuse_too_many(len(options.names.shown), decoder.head.classes)
    return decoder


def _has_pycocotools() -> bool:
    return importlib.util.find_spec("pycocotools") is not None
