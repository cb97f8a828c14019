# SPDX-License-Identifier: Apache-2.0
"""What `deploy` and `improve` judge by, of what was asked for: labels where they are of the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qdqtool.data.loader import Data, DataOptions
from qdqtool.deploying.options import JudgingOptions
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.coco_names import model_names
from qdqtool.evaluation.labels import name_their_samples
from qdqtool.evaluation.tasks import LabeledBoxes, LabeledClasses, TaskOptions
from qdqtool.graph.model import Model
from qdqtool.progress import Heartbeat
from qdqtool.verbs.deploy_judge import DeployJudge

TO_REPORT = "to report"
_OF_OTHERS = (
    "--labels are those of --eval-data, by which the result is reported and nothing is chosen: with --labels of --data "
    "and --eval-labels both are by labels"
)


def has_own_labels(options: JudgingOptions) -> bool:
    """Whether the labels must be those of the data that the choice is made by."""
    return options.eval_data is None or options.eval_labels is not None


class JudgeMaker:
    """Makes the judges of one command, and warns as soon as FP32 itself fails by the labels.

    Attributes:
        reference_warning: what was said of that; "" where nothing was.
    """

    def __init__(self, plain: Model, options: JudgingOptions, notes: list[str], beat: Heartbeat) -> None:
        self.reference_warning = ""
        self._plain, self._options, self._notes, self._beat = plain, options, notes, beat

    def make(self, what: str, data: tuple[Data, DataOptions], *, own_labels: bool = True) -> DeployJudge:
        """A judge on a part of the data; see `judge_part`."""
        judge = judge_part(self._plain, data, self._options, (what, own_labels, self._notes), self._beat.tick)
        if judge.reference_warning and not self.reference_warning:
            self._beat.clear()
            self._options.warn(judge.reference_warning)
        self.reference_warning = judge.reference_warning or self.reference_warning
        return judge


def judge_part(
    plain: Model,
    data: tuple[Data, DataOptions],
    options: JudgingOptions,
    part: tuple[str, bool, list[str]],
    say: Callable[[str], None],
) -> DeployJudge:
    """A judge on a part of the data.

    Raises:
        QdqError: labels, a decoder or data that do not fit.
    """
    what, own_labels, notes = part
    asked = task_options(options)
    labels = asked.labels
    if what == TO_REPORT and options.eval_labels is not None:
        asked = replace(asked, labels=options.eval_labels)
    if not own_labels and asked.labels is not None and not name_their_samples(asked.labels):
        asked = replace(asked, labels=None, metric=None)  # by their order they would be taken for those of any samples
    try:
        judge = DeployJudge(plain, data, asked, say)
    except QdqError as error:
        if own_labels or asked.labels is None or isinstance(error, MissingPackageError):
            raise
        judge = DeployJudge(plain, data, replace(asked, labels=None, metric=None), say)
    if labels is not None and not isinstance(judge.chosen.task, (LabeledBoxes, LabeledClasses)):
        notes.append(f"{what}: by {judge.chosen.task.title}; {_OF_OTHERS}")
    else:
        _note(notes, what, judge.chosen.notes)
    return judge


def _note(notes: list[str], what: str, found: tuple[str, ...]) -> None:
    """Say of which part a sentence is, unless it is of both."""
    for note in found:
        earlier = [index for index, one in enumerate(notes) if one.endswith(f": {note}") and one != f"{what}: {note}"]
        if earlier:
            notes[earlier[0]] = note
        else:
            notes.append(f"{what}: {note}")


def task_options(options: JudgingOptions) -> TaskOptions:
    """What models are judged by, of what was asked for."""
    return TaskOptions(options.labels, options.metric, options.decoder, model_names(options.names), options.postprocess)
