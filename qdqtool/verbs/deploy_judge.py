# SPDX-License-Identifier: Apache-2.0
"""Candidates judged on a part of the data, with the rounding of their target. The choice is deploying/choice.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qdqtool.data.loader import Data, DataOptions, inputs_of
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.target import DeployTarget
from qdqtool.errors import QdqError
from qdqtool.evaluation.chance import reference_warning
from qdqtool.evaluation.metrics import Figure, ResampledFigure, loss_between, resampled_figure
from qdqtool.evaluation.samples import LabeledSamples, open_samples
from qdqtool.evaluation.tasks import (
    ChosenTask,
    ClassAgreement,
    ClassNearness,
    LabeledBoxes,
    LabeledClasses,
    OutputFidelity,
    Task,
    TaskOptions,
    choose_task,
    task_of_boxes,
)
from qdqtool.graph.model import Model
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor, last_in_reach
from qdqtool.verbs.deploy_steps import MadeFiles
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions

_FP16_NOTE = "FP16 is measured as FP32: which operators the builder runs in FP16 is not known"
_TOLD_EVERY = 8  # runs between two lines of progress


@dataclass(frozen=True)
class TargetModel:
    """A model that onnxruntime runs as its target would.

    Attributes:
        model: roundings written into its graph.
        name: what messages call it.
        notes: what the rounding assumes.
    """

    model: Model
    name: str
    notes: tuple[str, ...] = ()


def judged_model(candidate: DeployCandidate, made: MadeFiles, target: DeployTarget) -> TargetModel:
    """A candidate's files with the rounding of its target, as the script for trtexec builds them.

    Raises:
        QdqError: what `simulated_model` refuses.
    """
    with_pairs = made.qdq is not None and bool(made.told_to(target.version))  # which keeps the same layers in float
    if made.cache is not None and not with_pairs:
        simulated = simulated_model(made.model, SimulateOptions(target.kind, target.version, cache=made.cache))
        return TargetModel(Model(simulated.model, simulated.folder), candidate.name, simulated.notes)
    if made.qdq is not None and target.kind == "dla" and not target.typed:
        simulated = simulated_model(made.qdq, SimulateOptions("dla", target.version))
        return TargetModel(Model(simulated.model, simulated.folder), candidate.name, simulated.notes)
    opened = open_to_run(made.model)
    notes = (_FP16_NOTE,) if candidate.form == "fp16" and not target.typed else ()
    return TargetModel(opened, candidate.name, notes)


@dataclass(frozen=True)
class JudgedCandidate:
    """What a candidate gives on samples.

    Attributes:
        figure: of the task, with its resamples.
        change: how far its answers lie from FP32's, whatever labels say, 0 to 1; None where the figures say that.
    """

    figure: ResampledFigure
    change: float | None = None


class DeployJudge:
    """FP32 and what it finds in a part of the data; candidates are held against it.

    Attributes:
        samples: the part.
        chosen: what models are judged by.
        count: how many samples there are.
        reference: FP32's own figure.
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
        self._float = self._executor(TargetModel(plain, "FP32"))
        self.count = 0
        self.chosen, self._found = self._read_float(self._choose(options))
        self.reference = resampled_figure(self.chosen.task.measure(self._found, self._found))
        self.reference_warning = reference_warning(self.chosen.task, self._found)
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
        return self._figure(self._walk(model.name, self._executor(model), [self.chosen.task])[0])

    def judged(self, model: TargetModel) -> JudgedCandidate:
        """The first metric of a candidate on all samples, and how far its answers lie from FP32's.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        near = self._near()
        if near is None:
            return JudgedCandidate(self.figure(model))
        other, reference = near
        found = self._walk(model.name, self._executor(model), [self.chosen.task, other])
        distance = 1 - float(other.measure(found[1], reference).values[0, 0])
        return JudgedCandidate(self._figure(found[0]), distance)

    def _figure(self, found: list[Any]) -> ResampledFigure:
        return resampled_figure(self.chosen.task.measure(found, self._found))

    def _near(self) -> tuple[Task, list[Any]] | None:
        """What tells how near answers are to FP32's, and FP32's own; None where the figures themselves tell it."""
        task = self.chosen.task
        if self._beside is None and isinstance(task, (LabeledClasses, ClassAgreement)):
            near: Task = ClassNearness()
            self._beside = near, self._walk("FP32", None, [near])[0]
        elif self._beside is None and isinstance(task, LabeledBoxes):
            chosen, found = self._read_float(self._choose(replace(self._options, labels=None, metric="agreement")))
            self._beside = chosen.task, found
        return self._beside

    @property
    def reference_value(self) -> float:
        """FP32's own figure."""
        return self.reference.value

    def _executor(self, model: TargetModel) -> Executor:
        return Executor(model.model, self._outputs, model.name)

    def _choose(self, options: TaskOptions) -> ChosenTask:
        chunk = next(iter(self.samples.chunks()), None)
        if chunk is None:
            raise QdqError(str(self.samples.where), "gives no sample to measure on", "give more")
        whole = [value.name for value in self._plain.proto.graph.output]
        if set(whole) - set(self._outputs):
            note = f"onnxruntime cannot compute the outputs: measured at {', '.join(self._outputs)}"
            return ChosenTask(OutputFidelity(), (note,))
        outputs = self._float.run(chunk.batch)
        self._require_finite(outputs, 0)
        return choose_task(outputs, chunk, self.samples, replace(options, rows=self._float.rows))

    def _read_float(self, chosen: ChosenTask) -> tuple[ChosenTask, list[Any]]:
        """What FP32 finds in all samples, and the task, which is another one where FP32 finds nothing to agree with."""
        found = self._walk("FP32", None, [chosen.task])[0]
        again = task_of_boxes(chosen, found)
        return (chosen, found) if again is chosen else (again, self._walk("FP32", None, [again.task])[0])

    def _require_finite(self, outputs: Mapping[str, Any], first: int) -> None:
        """Refuse an FP32 model whose outputs no candidate can be held against."""
        for name, values in outputs.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values).all():
                what = "NaN" if np.isnan(values).any() else "infinity"
                reason = f"the FP32 model gives {what} at the output {name} (batch from sample {first} on)"
                raise QdqError(self._plain.name, reason, "repair the model, or leave the sample out")

    def _walk(self, name: str, other: Executor | None, tasks: Sequence[Task]) -> list[list[Any]]:
        """What a model, or FP32 itself, finds in all samples, for each task."""
        found: list[list[Any]] = [[] for _ in tasks]
        first = 0
        compares = other is None or any(task.compares for task in tasks)
        for number, chunk in enumerate(self.samples.chunks()):
            if number % _TOLD_EVERY == 0:
                self._say(f"{name}: measured on {first} samples")
            reference = self._float.run(chunk.batch) if compares else {}
            if other is None:
                self._require_finite(reference, first)
            outputs = reference if other is None else other.run(chunk.batch)
            for task, own in zip(tasks, found, strict=True):
                own += task.read(outputs, reference, chunk, first)
            first += len(chunk.geometries)
        self.count = first
        return found
