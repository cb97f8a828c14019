# SPDX-License-Identifier: Apache-2.0
"""Candidates judged on a part of the data, with the rounding of their target. The choice is deploying/choice.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from qdqtool.data.loader import Data, DataOptions, inputs_of
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.target import DeployTarget
from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import Figure, MeasuredModel, judge
from qdqtool.evaluation.samples import Chunk, LabeledSamples, open_samples
from qdqtool.evaluation.tasks import (
    ChosenTask,
    LabeledBoxes,
    LabeledClasses,
    OutputFidelity,
    TaskOptions,
    choose_task,
    task_of_boxes,
)
from qdqtool.graph.io import Opened
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor, last_in_reach
from qdqtool.verbs.deploy_steps import MadeFiles
from qdqtool.verbs.simulate import SimulateOptions, simulated_model

_FP16_NOTE = "FP16 is judged as FP32: which operators a builder without types in the file runs in FP16 is not known"
_TOLD_EVERY = 8  # runs between two lines of progress


@dataclass(frozen=True)
class TargetModel:
    """A model that onnxruntime runs as its target would.

    Attributes:
        proto: the graph, roundings written into it.
        folder: where its external data lie.
        name: what messages call it.
        notes: what the rounding assumes.
    """

    proto: onnx.ModelProto
    folder: Path | None
    name: str
    notes: tuple[str, ...] = ()


def judged_model(candidate: DeployCandidate, made: MadeFiles, target: DeployTarget) -> TargetModel:
    """A candidate's files with the rounding of its target.

    Args:
        candidate: what was made.
        made: its files.
        target: gpu, dla or rtx, and the version.

    Raises:
        QdqError: what `simulated_model` refuses.
    """
    if made.cache is not None:
        simulated = simulated_model(made.model, SimulateOptions(target.kind, target.version, cache=made.cache))
        return TargetModel(simulated.model, simulated.folder, candidate.name, simulated.notes)
    if candidate.form == "qdq" and target.kind == "dla" and not target.typed:
        simulated = simulated_model(made.model, SimulateOptions("dla", target.version))
        return TargetModel(simulated.model, simulated.folder, candidate.name, simulated.notes)
    opened = open_to_run(made.model)
    notes = (_FP16_NOTE,) if candidate.form == "fp16" and not target.typed else ()
    return TargetModel(opened.proto, opened.folder, candidate.name, notes)


def loss_between(better: MeasuredModel, worse: MeasuredModel) -> Figure:
    """What one model has less than another of the first metric, judged on the same samples: paired 95 % interval."""
    return judge(worse, better).losses[worse.metrics[0]][0]


class DeployJudge:
    """FP32 and what it finds in a part of the data; candidates are held against it.

    Attributes:
        samples: the part.
        chosen: what models are judged by.
        count: how many samples there are.
        reference: FP32's own figures.
    """

    def __init__(
        self, plain: Opened, data: tuple[Data, DataOptions], options: TaskOptions, say: Callable[[str], None]
    ) -> None:
        """Open the samples and run FP32 over them.

        Args:
            plain: the FP32 model.
            data: the samples and how they are read.
            options: labels, decoder, names.
            say: is called with a line of progress.

        Raises:
            QdqError: data or labels that do not fit.
        """
        self._say, self._plain, self._data, self._options = say, plain, data, options
        inputs = inputs_of(plain.proto.graph)
        self.samples: LabeledSamples = open_samples(data[0], inputs, data[1])
        self._outputs = last_in_reach(plain.proto, plain.folder)
        self._float = self._executor(TargetModel(plain.proto, plain.folder, "FP32"))
        self.chosen = self._choose(options)
        self.count = 0
        found = self._walk("FP32", None)
        again = task_of_boxes(self.chosen, found)
        if again is not self.chosen:
            self.chosen, self.count = again, 0
            found = self._walk("FP32", None)
        self._found = found
        self.reference: MeasuredModel = self.chosen.task.measure(found, found)

    def measured(self, model: TargetModel) -> MeasuredModel:
        """The figures of a candidate on all samples.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        return self.chosen.task.measure(self._walk(model.name, self._executor(model)), self._found)

    def loss(self, model: TargetModel) -> Figure:
        """What a candidate loses of the first metric against FP32, with its paired 95 % interval.

        Raises:
            QdqError: it cannot be run, or its outputs cannot be read.
        """
        return loss_between(self.reference, self.measured(model))

    def beside_labels(self) -> DeployJudge | None:
        """A judge of the same samples by agreement with FP32; None where this one uses no labels."""
        if not isinstance(self.chosen.task, (LabeledBoxes, LabeledClasses)):
            return None
        options = replace(self._options, labels=None, metric="agreement")
        return DeployJudge(self._plain, self._data, options, self._say)

    @property
    def reference_value(self) -> float:
        """FP32's own figure."""
        return float(self.reference.values[0, 0])

    def _executor(self, model: TargetModel) -> Executor:
        return Executor(model.proto, model.folder, self._outputs, model.name)

    def _choose(self, options: TaskOptions) -> ChosenTask:
        chunk = next(iter(self.samples.chunks()), None)
        if chunk is None:
            raise QdqError(str(self.samples.where), "gives no sample to judge by", "give more")
        whole = [value.name for value in self._plain.proto.graph.output]
        if set(whole) - set(self._outputs):
            note = f"onnxruntime cannot compute the outputs: judged by {', '.join(self._outputs)}"
            return ChosenTask(OutputFidelity(), (note,))
        return choose_task(self._float.run(chunk.batch), chunk, self.samples, options)

    def _walk(self, name: str, other: Executor | None) -> list[Any]:
        """What a model, or FP32 itself, finds in all samples."""
        found: list[Any] = []
        first = 0
        task = self.chosen.task
        for number, chunk in enumerate(self._chunks()):
            if number % _TOLD_EVERY == 0:
                self._say(f"{name}: judged on {first} samples")
            reference = self._float.run(chunk.batch) if other is None or task.compares else {}
            outputs = reference if other is None else other.run(chunk.batch)
            found += task.read(outputs, reference, chunk, first)
            first += len(chunk.geometries)
        self.count = first
        return found

    def _chunks(self) -> Iterator[Chunk]:
        return self.samples.chunks()
