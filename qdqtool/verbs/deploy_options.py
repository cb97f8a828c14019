# SPDX-License-Identifier: Apache-2.0
"""What `deploy` is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import DataOptions
from qdqtool.deploying.candidates import EFFORTS, DeployCandidate, Effort
from qdqtool.deploying.choice import LAYERS, CandidateTrial, loss_in_words
from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.errors import QdqError
from qdqtool.progress import silent
from qdqtool.runtime.execution import ExecutionOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data
    from qdqtool.evaluation.metrics import Figure

METRICS = ("top1", "coco", "voc")


@dataclass(frozen=True)
class DeployOptions(ExecutionOptions):
    """How a model is deployed.

    Attributes:
        place: board and version, such as "xavier-nx:jp4.6.1", or a version alone, such as "11.4".
        dla: whether it is built for the DLA of the board.
        labels: the truth of the data, or of `eval_data` where that is given; None judges by agreement with FP32.
        eval_labels: the truth of `eval_data`, where `labels` is that of the data.
        eval_data: other samples that the figures are told of; None for a part of the data.
        max_loss: the most that the task's metric may lose, in absolute points (0.01 is one point in a hundred); None
            keeps the INT8 candidate that is best, or a cheaper one that is as good, unless it is of no use.
        effort: how much is tried: fast, default or best.
        metric: top1, coco or voc; None takes what the labels are for.
        decoder: what makes boxes of a detector's outputs; see `find_decoder`.
        names: the model's classes; see `parse_names`.
        postprocess: ``script.py:function`` that makes boxes of a detector's outputs, instead of a decoder.
        data_options: batch, preprocessing.
        force: whether the folder may hold files.
        max_batch: the most samples in one run of the engine, where the model leaves the batch open; None for one.
        say: is called with each line of what the place runs, before anything is tried.
        tried: is called with a line for each candidate, as soon as it is measured.
        warn: is called with what makes the figures worthless, as soon as it is known: FP32 itself fails by labels.
    """

    place: str
    dla: bool = False
    labels: str | Path | None = None
    eval_labels: str | Path | None = None
    eval_data: Data | None = None
    max_loss: float | None = None
    effort: Effort = "default"
    metric: str | None = None
    decoder: str = "auto"
    names: str | None = None
    postprocess: str | None = None
    data_options: DataOptions = field(default_factory=DataOptions)
    force: bool = False
    max_batch: int | None = None
    say: Callable[[str], None] = silent
    tried: Callable[[str], None] = silent
    warn: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            QdqError: such an option, named.
        """
        check_loss(self.max_loss)
        check_labels(self.eval_labels, self.eval_data)
        if self.effort not in EFFORTS:
            raise QdqError(f"--effort {self.effort}", "is not one", f"choose {', '.join(EFFORTS)}")
        if self.metric is not None and self.metric not in METRICS:
            raise QdqError(f"--metric {self.metric}", "is not one", f"choose {', '.join(METRICS)}")
        check_data_options(self.data_options, "deploy")


def check_data_options(options: DataOptions, verb: str) -> None:
    """Refuse to read a part of data that a verb parts itself."""
    if options.part is not None:
        raise QdqError("--part", f"is chosen by {verb}", "leave it out")
    if options.limit is not None:
        raise QdqError("--limit", f"is not for {verb}, which parts the samples", "leave it out, or give fewer samples")


def check_labels(eval_labels: str | Path | None, eval_data: Data | None) -> None:
    """Refuse labels of other samples where there are none."""
    if eval_labels is not None and eval_data is None:
        raise QdqError("--eval-labels", "is the truth of --eval-data, which is not given", "give it, or --labels alone")


def check_loss(most: float | None) -> None:
    """Refuse a largest loss that is no difference of metrics between 0 and 1."""
    if most is not None and not 0 <= most <= 1:
        raise QdqError(f"--max-loss {most:g}", "is not between 0 and 1", "0.01 is one point in a hundred")


@dataclass(frozen=True, repr=False)
class DeployResult(Displayed):
    """What was deployed, and why.

    Attributes:
        folder: where the files are.
        files: their names, in order.
        target: what it is for, five lines.
        trials: every candidate with its loss and cost, in the order in which they were tried.
        chosen: the one that was kept.
        reason: why, one sentence.
        metric: what `loss` is of, in words.
        chosen_by: what the losses of the trials are of.
        samples: part -> how many samples it has.
        loss: of the chosen one on the samples that nothing was chosen by, with its 95 % interval.
        meets: whether that loss is within the largest that was allowed; None where none was named.
        warning: what is told where it loses a lot and no largest loss was named; else "".
        notes: what the user must know, a sentence each.
        next_step: the command that builds the engine.
        left: what does not run in INT8, or not on the DLA.
        fp32: FP32's own figure by labels, on the samples of `loss`; None without labels.
        slow: what is told where the forecast has INT8 no faster than FP16; else "".
        reference_warning: what is told where FP32 does no better than guessing by labels; else "".
    """

    folder: Path
    files: tuple[str, ...]
    target: tuple[str, ...]
    trials: tuple[CandidateTrial, ...]
    chosen: DeployCandidate
    reason: str
    metric: str
    chosen_by: str
    samples: Mapping[str, int]
    loss: Figure
    meets: bool | None
    warning: str
    notes: tuple[str, ...]
    next_step: str
    left: LayersLeft = field(default_factory=LayersLeft)
    fp32: float | None = None
    slow: str = ""
    reference_warning: str = ""

    def headline(self) -> str:
        """The candidate that was kept, what it loses and where it is."""
        return f"{self.folder}: {self.chosen.name}, {self.format_loss()}"

    def format_loss(self) -> str:
        """What the deployed model loses on samples that nothing was chosen by."""
        return loss_in_words(self.metric, self.loss, self.samples["report"])

    def summary(self) -> list[str]:
        """What `qdqtool deploy` prints, without what to do next."""
        return [*self.target, *self.outcome()]

    def outcome(self) -> list[str]:
        """The same without what was said of the target before anything was tried."""
        cut = [f"warning: {self.left.warning}"] if self.left.warning else []
        return [*self.notes, "", *self.choice(), f"wrote {self.folder}: {', '.join(self.files)}", *cut]

    def choice(self) -> list[str]:
        """The candidates as a table, what was kept and why, and its loss."""
        lines = [f"losses of {self.chosen_by}, on {counted(self.samples['choose'], 'sample')} used to choose:"]
        lines += [*table(self.rows()[0], self.rows()[1:]), *legend(self.trials)]
        return [
            *lines,
            "",
            f"kept {self.chosen.name}: {self.reason}",
            *self.left.lines(),
            *([f"warning: {self.slow}"] if self.slow else []),
            f"on separate samples, not used to choose: {self.format_loss()}",
            *self._accuracy(),
            *([f"warning: {self.warning}"] if self.warning else []),
        ]

    def _accuracy(self) -> list[str]:
        """The figure to expect, and what to look at where FP32's own is too low."""
        if self.fp32 is None:
            return []
        there = f"{self.metric} there: FP32 {self.fp32:.4f} -> {self.fp32 - self.loss.value:.4f}"
        if self.reference_warning:
            return [there, f"warning: {self.reference_warning}"]
        return [f"{there}; where FP32's is lower than you know it, --preprocess or --labels are not the model's"]

    def rows(self) -> Cells:
        """One row for each candidate."""
        return trial_rows(self.trials, self.chosen.name)


def trial_rows(trials: tuple[CandidateTrial, ...], chosen: str) -> Cells:
    """Candidates as a table: loss with its interval, cost, and what was decided."""
    known = any(one.change is not None for one in trials)  # without labels the loss itself says it
    rows = [("candidate", "form", "loss", "95 % interval", *(["change"] if known else []), "cost", "")]
    for one in trials:
        kept = "kept" if one.candidate.name == chosen else ""
        *figures, cost = one.cells()
        change = "-" if one.change is None else f"{one.change:.4f}"
        more = [*figures, *([change] if known else []), cost]
        remark = "failed" if one.failed else kept or ("not usable" if one.is_useless else "")
        rows.append((one.candidate.name, one.candidate.form, *more, remark))
    return rows


def legend(trials: tuple[CandidateTrial, ...]) -> list[str]:
    """What the columns of `trial_rows` mean, where that is not plain, and why candidates failed."""
    lines = []
    if any(one.change is not None for one in trials):
        lines.append("change: how far the answers lie from FP32's on the same samples, whatever labels say; 0 is equal")
    units = {one.cost.unit for one in trials if one.cost is not None}
    if any(one.cost is not None and one.cost.microseconds is not None for one in trials):
        lines.append("cost: MB moved, layers and ms of one inference are forecasts for the board, not measured")
    if units - {LAYERS}:
        lines.append(
            "cost: convolutions and matrix products that do not run in INT8, and nodes that the DLA leaves to the GPU"
        )
    failed: dict[str, list[str]] = {}
    for one in trials:
        if one.failed:
            failed.setdefault(one.failed, []).append(one.candidate.name)
    return lines + [f"failed: {', '.join(names)}: {why}" for why, names in failed.items()]


def trials_json(trials: tuple[CandidateTrial, ...]) -> list[dict[str, Any]]:
    """Candidates as JSON."""
    return [one.to_json() for one in trials]
