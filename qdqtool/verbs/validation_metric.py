# SPDX-License-Identifier: Apache-2.0
"""The task as the judge of a training run: which weights the metric of `evaluate` prefers. No metric here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.evaluation.samples import open_samples
from qdqtool.evaluation.tasks import TaskOptions, asked_metric
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import is_external
from qdqtool.graph.validate import tensors_of
from qdqtool.training.finished_model import Values
from qdqtool.training.training_graph import TrainingGraph
from qdqtool.verbs.evaluate import evaluate
from qdqtool.verbs.evaluate_options import EvaluateOptions


@dataclass(frozen=True)
class TaskMetric:
    """A metric of `evaluate` that decides which weights are best.

    Attributes:
        data: data that are not trained on; without labels and a metric, the loss is measured on them.
        labels: the truth, see `evaluate`; None where the data tells it.
        options: metric, decoder, names; without a baseline.
        data_options: how data is read.
    """

    data: Data
    labels: str | Path | None = None
    options: EvaluateOptions = field(default_factory=EvaluateOptions)
    data_options: DataOptions = field(default_factory=DataOptions)

    @property
    def name(self) -> str:
        """What is measured: 1 less the metric, so that less is better."""
        return f"1 - {self.options.metric or 'metric'}"

    def summary(self) -> dict[str, str]:
        """What of it decides the outcome, as text."""
        return {"data": str(self.data), "labels": str(self.labels), "metric": str(self.options.metric)}


class ValidationMetric:
    """1 less the task's first metric, by `evaluate`; the file is judged as it would be written."""

    def __init__(self, task: TaskMetric, form: TrainingGraph, exported: Sequence[str]) -> None:
        self._task, self._form, self._exported = task, form, frozenset(exported)

    def __call__(self, values: Values) -> float:
        """See `TrainingRun.measure`."""
        proto = self._form.write({name: value for name, value in values.items() if name in self._exported}).proto
        task, options = self._task, replace(self._task.options, progress=False)
        found = evaluate(proto, task.data, task.labels, options, task.data_options)
        metric = next(iter(found.figures))
        return 1.0 - found.value(metric)


def task_gain(task: TaskMetric, before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    """A sentence on what training brought on the task, with the paired interval; what to keep where it shows no gain.

    The samples are those by which the weights were chosen, so that the gain is an upper estimate.
    """
    options = replace(task.options, baseline=before, progress=False)
    found = evaluate(after, task.data, task.labels, options, task.data_options)
    metric = next(iter(found.figures))
    lost = found.loss(metric)
    low, high = -lost.interval.high, -lost.interval.low
    figures = f"{metric} {found.value(metric):.3f}, {found.value(metric) + lost.value:.3f} before training"
    said = f"{figures} ({low:+.3f} to {high:+.3f}, {counted(found.samples, 'sample')})"
    return said if low > 0 else f"{said}: no gain is shown, keep the model from before"


def has_truth(task: TaskMetric, inputs: Sequence[Input]) -> bool:
    """Whether the task can be measured: there are labels, in a file or in the data, or a metric is asked for.

    Raises:
        QdqError: see `open_samples`.
    """
    asked = TaskOptions(task.labels, task.options.metric)
    if asked.labels is not None or asked.metric is not None:
        return True  # the data need not be opened for it
    return asked_metric(asked, open_samples(task.data, inputs, task.data_options)) != "agreement"


def check_judgeable(opened: Model) -> None:
    """Refuse a model whose weights lie in other files, which a task metric would have to copy at each measurement.

    Raises:
        QdqError: it is such a model.
    """
    if any(map(is_external, tensors_of(opened.proto))):
        raise QdqError(
            opened.name,
            "keeps weights in external files, and --eval-data writes the model often",
            "leave --eval-data out",
        )
