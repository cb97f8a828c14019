# SPDX-License-Identifier: Apache-2.0
"""How far a model's answers (its best classes, its boxes) are from those of the float model on a few samples.

No labels are needed. The figures are those of `evaluate` without labels. `evaluation/tasks.py` decides which outputs
are answers; other models have a loss at their outputs alone (`output_loss.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qdqtool.data.loader import Batch
from qdqtool.data.single_samples import row_count
from qdqtool.errors import QdqError
from qdqtool.evaluation.loss_scale import Word, word_of
from qdqtool.evaluation.metrics import Figure, figure_json, loss_between, loss_in_words, resampled_figure
from qdqtool.evaluation.samples import Chunk, geometry_of_array
from qdqtool.evaluation.tasks import BoxAgreement, ClassNearness, Task, TaskOptions, task_of_boxes, unlabeled_task
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import size_of
from qdqtool.measuring.output_loss import FloatOutputs
from qdqtool.runtime.executor import Executor

Reads = Literal["classes", "boxes", ""]
MOST_BYTES = 256 << 20  # of a model that is run twice for a sentence


@dataclass(frozen=True)
class AnswerLoss:
    """What the answers lose.

    Attributes:
        metric: "nearness" of classes, "agreement" of boxes, as `evaluate` names them.
        title: the metric in words.
        loss: 1 less the figure, with its 95 % interval.
        samples: how many it was measured on.
    """

    metric: str
    title: str
    loss: Figure
    samples: int

    @property
    def word(self) -> Word:
        """See `evaluation/loss_scale.py`."""
        return word_of(self.metric, self.loss)

    def summary(self) -> str:
        """The loss in a line, as `deploy` and `improve` print theirs."""
        return f"{loss_in_words(self.title, self.loss, self.samples)} on calibration data"

    def to_json(self) -> dict[str, object]:
        """The loss as JSON values."""
        return {"metric": self.metric, **figure_json(self.loss), "samples": self.samples}


@dataclass(frozen=True)
class Answers:
    """The answers of the float model.

    Attributes:
        reads: what the outputs are read as; "" where nothing reads them.
        task: compares answers; None where there is nothing to compare.
        chunks: the samples.
        found: the float model's answers.
        where: what messages call the model.
        provider: execution provider of onnxruntime.
    """

    reads: Reads = ""
    task: Task | None = None
    chunks: tuple[Chunk, ...] = ()
    found: tuple[Any, ...] = ()
    where: object = "model"
    provider: str = "cpu"

    @classmethod
    def of(
        cls,
        model: Model,
        samples: Sequence[Batch],
        where: object = "model",
        provider: str = "cpu",
        outputs: FloatOutputs | None = None,
    ) -> Answers:
        """Run the float model; a large one, and one that onnxruntime runs in part, has no answers.

        `outputs` takes its outputs on the way.
        """
        if not samples or size_of(model.proto) > MOST_BYTES or len(model.files) > 1:
            return cls()
        try:
            run = Executor(model, where=where, provider=provider)
            chunks = tuple(map(_chunk, samples))
            first = run.run(chunks[0].batch)
            chosen = unlabeled_task(first, chunks[0].geometries[0].input_size, TaskOptions(rows=run.rows), str(where))
            if chosen.unread is not None:
                return cls()
            task: Task = chosen.task if isinstance(chosen.task, BoxAgreement) else ClassNearness()
            found = tuple(_read(task, run, chunks, outputs, first))
        except QdqError:
            return cls()
        reads: Reads = "boxes" if isinstance(task, BoxAgreement) else "classes"
        if reads == "boxes" and task_of_boxes(chosen, found, run.rows) is not chosen:
            return cls(reads)  # no box that the other model could have lost
        return cls(reads, task, chunks, found, where, provider)

    def loss(self, model: Model, outputs: FloatOutputs | None = None) -> AnswerLoss | None:
        """What the answers of a form of the model lose; None where there are none to compare.

        `outputs` takes its outputs on the way.
        """
        if self.task is None:
            return None
        try:
            found = _read(self.task, Executor(model, where=self.where, provider=self.provider), self.chunks, outputs)
        except QdqError:
            return None
        before, after = (resampled_figure(self.task.measure(one, self.found)) for one in (self.found, found))
        return AnswerLoss(before.metric, self.task.title, loss_between(before, after), len(self.found))


def _chunk(sample: Batch) -> Chunk:
    first = next(iter(sample.values()))
    return Chunk(sample, (geometry_of_array(first),) * max(1, row_count(sample)))


def _read(
    task: Task,
    run: Executor,
    chunks: Sequence[Chunk],
    taken: FloatOutputs | None,
    first: Mapping[str, Any] | None = None,
) -> list[Any]:
    """What a model finds, sample by sample; `first` are its outputs for the first chunk, where they are known."""
    found: list[Any] = []
    for at, chunk in enumerate(chunks):
        outputs = run.run(chunk.batch) if first is None else first
        first = None
        if taken is not None:
            taken.take(at, outputs)
        found += task.read(outputs, {}, chunk, len(found))
    return found
