# SPDX-License-Identifier: Apache-2.0
"""The judge of `improve`: every sample judges models that it did not calibrate, and all samples all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdqtool.deploying.improvements import Measured
from qdqtool.evaluation.agreement import SURE
from qdqtool.evaluation.metrics import ResampledFigure, resampled_figure
from qdqtool.evaluation.tasks import LABELED, BoxAgreement, LabeledBoxes, OutputSignal, Task
from qdqtool.verbs.target_model import TargetModel
from qdqtool.workflows.judge import Judge

WHOLE = "all samples"


@dataclass(frozen=True)
class CrossFigures:
    """What a candidate gives: on all samples, and on those of each half.

    Attributes:
        whole: of all samples.
        halves: of the samples that each half judges.
    """

    whole: Measured
    halves: tuple[Measured, ...]

    def named(self) -> dict[str, ResampledFigure]:
        """Every figure but the first, by what it is of."""
        found: dict[str, ResampledFigure] = {}
        for key, one in zip((WHOLE, *map(str, range(len(self.halves)))), (self.whole, *self.halves), strict=True):
            found[key] = one.figure
            if one.beside is not None:
                found[f"{key}, beside"] = one.beside
        return found

    @classmethod
    def of_named(cls, name: str, found: dict[str, ResampledFigure]) -> CrossFigures:
        """What `named` gave."""
        keys = [key for key in found if not key.endswith(", beside")]
        whole, *halves = [Measured(name, found[key], found.get(f"{key}, beside")) for key in keys]
        return cls(whole, tuple(halves))


class CrossJudge:
    """Two judges whose samples are taken together.

    Attributes:
        title: of the task.
        labeled: whether it is judged by labels.
        beside: what a candidate is measured by beside that; "" where nothing is.
        counts: samples of each judge.
        reference: what FP32 gives.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        """Read FP32 once more, for the measure that the judges do not have."""
        self._judges = judges
        tasks: list[Task] = [one.chosen.task for one in judges]
        if len({type(one) for one in tasks}) > 1:  # FP32 finds boxes in one half alone
            tasks = [judge.signal for judge in judges]
        self._tasks = [(one, *_beside(one, judge)) for one, judge in zip(tasks, judges, strict=True)]
        if len({type(own[-1]) for own in self._tasks}) > 1:
            self._tasks = [(one, judge.signal) for one, judge in zip(tasks, judges, strict=True)]
        self.title = tasks[0].title
        self.labeled = isinstance(tasks[0], LABELED)
        self.beside = self._tasks[0][1].title if len(self._tasks[0]) > 1 else ""
        self._float = [judge.read(None, own) for judge, own in zip(judges, self._tasks, strict=True)]
        self.counts = tuple(one.count for one in judges)
        self.reference = self._figures("FP32", self._float)

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(self.counts)

    def figures(self, models: Sequence[TargetModel]) -> CrossFigures:
        """What a candidate gives whose models are these, one for the samples of each judge.

        Raises:
            QdqError: one cannot be run, or its outputs cannot be read.
        """
        found = [judge.read(model, own) for judge, own, model in zip(self._judges, self._tasks, models, strict=True)]
        return self._figures(models[0].name, found)

    def _figures(self, name: str, found: list[list[list[Any]]]) -> CrossFigures:
        """Figures of what was found: by judge, by task, by sample."""
        halves = [range(number, number + 1) for number in range(len(found))]
        measured = [self._measured(name, found, span) for span in (range(len(found)), *halves)]
        return CrossFigures(measured[0], tuple(measured[1:]))

    def _measured(self, name: str, found: list[list[list[Any]]], span: range) -> Measured:
        figures = []
        for number, task in enumerate(self._tasks[0]):
            own = [one for judge in span for one in found[judge][number]]
            reference = [one for judge in span for one in self._float[judge][number]]
            figures.append(resampled_figure(task.measure(own, reference)))
        return Measured(name, figures[0], figures[1] if len(figures) > 1 else None)


def _beside(task: Task, judge: Judge) -> tuple[Task, ...]:
    """What tells how near answers are to FP32's, beside a task; nothing where the task itself tells it."""
    if isinstance(task, LabeledBoxes) and any((boxes.scores > SURE).any() for boxes, _ in judge.found):
        return (BoxAgreement(task.decoder),)
    return () if isinstance(task, OutputSignal) else (judge.signal,)  # probabilities end at 1, outputs nowhere
