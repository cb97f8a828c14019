# SPDX-License-Identifier: Apache-2.0
"""The judge: what a model loses against the FP32 model on given samples. Which one is kept: deploying/choice.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.loader import Data, DataOptions, inputs_of
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.options import JudgingOptions
from qdqtool.deploying.target import DeployTarget
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.chance import reference_warning
from qdqtool.evaluation.coco_names import model_names
from qdqtool.evaluation.labels import name_their_samples
from qdqtool.evaluation.loss_scale import Word, word_of
from qdqtool.evaluation.metrics import Figure, ResampledFigure, loss_between, resampled_figure
from qdqtool.evaluation.samples import Chunk, LabeledSamples, open_samples
from qdqtool.evaluation.tasks import (
    ChosenTask,
    ClassAgreement,
    ClassNearness,
    LabeledBoxes,
    LabeledClasses,
    OutputSignal,
    Task,
    TaskOptions,
    choose_task,
    task_of_boxes,
)
from qdqtool.graph.model import Model
from qdqtool.progress import Heartbeat
from qdqtool.runtime.executor import Executor, last_in_reach
from qdqtool.verbs.simulate_options import SimulateOptions
from qdqtool.verbs.target_model import TargetModel, target_model
from qdqtool.workflows.deploy_steps import MadeFiles

_OF_OTHERS = (
    "--labels are those of --eval-data, by which the result is reported and nothing is chosen: with --labels of --data "
    "and --eval-labels both are by labels"
)
_FP16_NOTE = "FP16 is measured as FP32: which operators the builder runs in FP16 is not known"
_HELD_BYTES = 128 << 20  # of the samples and FP32's outputs that a judge holds at most
_TOLD_EVERY = 8  # runs between two lines of progress


def target_of_candidate(candidate: DeployCandidate, made: MadeFiles, target: DeployTarget) -> TargetModel:
    """A candidate's files with the rounding of its target, as the script for trtexec builds them.

    Raises:
        QdqError: what `simulated_model` refuses.
    """
    with_pairs = made.qdq is not None and bool(made.told_to(target.version))  # which keeps the same layers in float
    if made.cache is not None and not with_pairs:
        on = SimulateOptions(target.kind, target.version, cache=made.cache)
        return target_model(made.model, on, candidate.name)
    if made.qdq is not None and target.kind == "dla" and not target.typed:
        return target_model(made.qdq, SimulateOptions("dla", target.version), candidate.name)
    found = target_model(made.model, name=candidate.name)
    return replace(found, notes=(_FP16_NOTE,)) if candidate.form == "fp16" and not target.typed else found


@dataclass(frozen=True)
class Judgment:
    """What a model gives on the samples of a judge.

    Attributes:
        figure: of the task, with its resamples.
        change: how far its answers lie from FP32's, whatever labels say, 0 to 1; None where the figures say that.
        nearness: of classes without labels, by which `evaluate` names a loss; None of anything else.
    """

    figure: ResampledFigure
    change: float | None = None
    nearness: ResampledFigure | None = None


class Judge:
    """The reference, samples and the task: the loss of any model against the reference.

    Attributes:
        samples: the data, or a part of it.
        chosen: the task.
        count: how many samples there are.
        found: what FP32 finds in each sample.
        signal: the task that compares the outputs.
        reference: the figure of the FP32 model.
        reference_warning: a sentence where that is so low by labels that losses against it mean nothing; else "".
    """

    def __init__(
        self, plain: Model, data: tuple[Data, DataOptions], options: TaskOptions, say: Callable[[str], None]
    ) -> None:
        """Open the samples and run FP32 over them."""
        self._say, self._plain, self._options = say, plain, options
        inputs = inputs_of(plain.proto.graph)
        self.samples: LabeledSamples = open_samples(data[0], inputs, data[1])
        self._outputs = last_in_reach(plain)
        self._float = Executor(plain, self._outputs, "FP32")
        self.signal = OutputSignal(self._float.rows)
        self._held: Sequence[tuple[Chunk, Mapping[str, Any]]] = ()
        self.count = 0
        self.chosen, self.found = self._read_float(self._choose(options))
        self.reference = resampled_figure(self.chosen.task.measure(self.found, self.found))
        self.reference_warning = reference_warning(self.chosen.task, self.found)
        self._beside: tuple[Task, list[Any]] | None = None

    def loss(self, model: TargetModel) -> Figure:
        """What a candidate loses of the first metric against FP32, with its paired 95 % interval.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        return loss_between(self.reference, self.figure(model))

    def figure(self, model: TargetModel) -> ResampledFigure:
        """The first metric of a candidate on all samples.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        return self._figure(self.read(model, [self.chosen.task])[0])

    def judgment(self, model: TargetModel) -> Judgment:
        """The first metric of a candidate on all samples, and how far its answers lie from FP32's.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        near = self._near()
        if near is None:
            return Judgment(self.figure(model))
        other, reference = near
        found = self.read(model, [self.chosen.task, other])
        measured = other.measure(found[1], reference)
        nearness = resampled_figure(measured) if isinstance(self.chosen.task, ClassAgreement) else None
        return Judgment(self._figure(found[0]), 1 - float(measured.values[0, 0]), nearness)

    def word(self, judgment: Judgment) -> Word:
        """How much a candidate loses, in the words that `evaluate` and `insert` have for it."""
        reference, figure = self.reference, judgment.figure
        if judgment.nearness is not None:
            figure = judgment.nearness
            reference = replace(figure, value=1.0, drawn=np.ones_like(figure.drawn))
        return word_of(reference.metric, loss_between(reference, figure), reference.value)

    def _figure(self, found: list[Any]) -> ResampledFigure:
        return resampled_figure(self.chosen.task.measure(found, self.found))

    def _near(self) -> tuple[Task, list[Any]] | None:
        """What tells how near answers are to FP32's, and FP32's own; None where the figures themselves tell it."""
        task = self.chosen.task
        if self._beside is None and isinstance(task, (LabeledClasses, ClassAgreement)):
            near: Task = ClassNearness()
            self._beside = near, self.read(None, [near])[0]
        elif self._beside is None and isinstance(task, LabeledBoxes):
            chosen, found = self._read_float(self._choose(replace(self._options, labels=None, metric="agreement")))
            self._beside = chosen.task, found
        return self._beside

    def _choose(self, options: TaskOptions) -> ChosenTask:
        chunk = next(iter(self.samples.chunks()), None)
        if chunk is None:
            raise QdqError(str(self.samples.where), "gives no sample to measure on", "give more")
        whole = [value.name for value in self._plain.proto.graph.output]
        if set(whole) - set(self._outputs):
            note = f"onnxruntime cannot compute the outputs: measured at {', '.join(self._outputs)}"
            return ChosenTask(self.signal, (note,))
        outputs = self._float.run(chunk.batch)
        self._require_finite(outputs, 0)
        return choose_task(outputs, chunk, self.samples, replace(options, rows=self._float.rows))

    def _read_float(self, chosen: ChosenTask) -> tuple[ChosenTask, list[Any]]:
        """What FP32 finds in all samples, and the task, which is another one where FP32 finds nothing to agree with."""
        found = self.read(None, [chosen.task])[0]
        again = task_of_boxes(chosen, found, self._float.rows)
        return (chosen, found) if again is chosen else (again, self.read(None, [again.task])[0])

    def _require_finite(self, outputs: Mapping[str, Any], first: int) -> None:
        """Refuse an FP32 model whose outputs no candidate can be held against."""
        for name, values in outputs.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values).all():
                what = "NaN" if np.isnan(values).any() else "infinity"
                reason = f"the FP32 model gives {what} at the output {name} (batch from sample {first} on)"
                raise QdqError(self._plain.name, reason, "repair the model, or leave the sample out")

    def read(self, model: TargetModel | None, tasks: Sequence[Task]) -> list[list[Any]]:
        """What a model, or FP32 itself, finds in all samples, for each task.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        name = "FP32" if model is None else model.name
        other = None if model is None else model.start(self._outputs)
        found: list[list[Any]] = [[] for _ in tasks]
        first = 0
        compares = other is None or any(task.compares for task in tasks)
        for number, (chunk, reference) in enumerate(self._held or self._walk(compares=compares)):
            if number % _TOLD_EVERY == 0:
                self._say(f"{name}: measured on {first} samples")
            if other is None:
                self._require_finite(reference, first)
            outputs = reference if other is None else other.run(chunk.batch)
            for task, own in zip(tasks, found, strict=True):
                own += task.read(outputs, reference, chunk, first)
            first += len(chunk.geometries)
        self.count = first
        return found

    def _walk(self, *, compares: bool) -> Iterator[tuple[Chunk, Mapping[str, Any]]]:
        """The samples of each run and what FP32 gives for them; both are held for the next model where they are small.

        FP32 is run only where a task compares with it.
        """
        held, held_bytes = [], 0
        for chunk in self.samples.chunks():
            reference = self._float.run(chunk.batch) if compares else {}
            if compares and held_bytes <= _HELD_BYTES:
                arrays = (*chunk.batch.values(), *reference.values())
                held_bytes += sum(one.nbytes if isinstance(one, np.ndarray) else _HELD_BYTES for one in arrays)
                held.append((chunk, reference))
            yield chunk, reference
        if held_bytes <= _HELD_BYTES:
            self._held = held


class Judges:
    """The judges of one command, which warn as soon as FP32 itself fails by the labels.

    Attributes:
        reference_warning: what was said of that; "" where nothing was.
    """

    def __init__(self, plain: Model, options: JudgingOptions, notes: list[str], beat: Heartbeat) -> None:
        self.reference_warning = ""
        self._plain, self._options, self._notes, self._beat = plain, options, notes, beat

    def to_choose(self, data: tuple[Data, DataOptions]) -> Judge:
        """The judge that candidates are chosen by; by labels only where those are of its samples.

        Raises:
            QdqError: labels, a decoder or data that do not fit.
        """
        own = self._options.eval_data is None or self._options.eval_labels is not None
        return self._made("to choose", data, self._options.labels, own_labels=own)

    def to_report(self, data: tuple[Data, DataOptions]) -> Judge:
        """The judge that the result is reported by.

        Raises:
            QdqError: labels, a decoder or data that do not fit.
        """
        return self._made("to report", data, self._options.eval_labels or self._options.labels, own_labels=True)

    def _made(self, what: str, data: tuple[Data, DataOptions], labels: str | Path | None, *, own_labels: bool) -> Judge:
        options, say = self._options, self._beat.tick
        names = model_names(options.names)
        asked = TaskOptions(labels, options.metric, options.decoder, names, options.postprocess)
        unlabeled = replace(asked, labels=None, metric=None)
        if not own_labels and labels is not None and not name_their_samples(labels):
            asked = unlabeled  # by their order they would be taken for those of any samples
        try:
            judge = Judge(self._plain, data, asked, say)
        except QdqError as error:
            if own_labels or asked.labels is None or isinstance(error, MissingPackageError):
                raise
            judge = Judge(self._plain, data, unlabeled, say)
        if options.labels is not None and not judge.chosen.labeled:
            self._notes.append(f"{what}: by {judge.chosen.task.title}; {_OF_OTHERS}")
        else:
            _note(self._notes, what, judge.chosen.notes)
        if judge.reference_warning and not self.reference_warning:
            self._beat.clear()
            options.warn(judge.reference_warning)
        self.reference_warning = judge.reference_warning or self.reference_warning
        return judge


def _note(notes: list[str], what: str, found: tuple[str, ...]) -> None:
    """Say of which part a sentence is, unless it is of both."""
    for note in found:
        earlier = [index for index, one in enumerate(notes) if one.endswith(f": {note}") and one != f"{what}: {note}"]
        if earlier:
            notes[earlier[0]] = note
        else:
            notes.append(f"{what}: {note}")
