# SPDX-License-Identifier: Apache-2.0
"""What `deploy` gives back: what was tried, what was kept, and how both are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtool.command_lines import run_script
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import LAYERS, CandidateTrial
from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.evaluation.loss_scale import Word, sentence_of
from qdqtool.evaluation.metrics import Figure, loss_in_words
from qdqtool.formats import INT8

_NO_LABELS = {  # how agreement differs from the task's metric, and how to give labels
    "agreement": (
        "without labels: agreement of boxes falls long before mAP does; --labels of --data gives mAP: COCO's .json, or "
        "a folder of VOC .xml or YOLO .txt files"
    ),
    "agreement1": (
        "without labels: agreement counts every answer that changes, also from wrong to right; --labels of --data "
        "gives top-1: the word filename, a .csv of file and class, or a .npy"
    ),
}


@dataclass(frozen=True, repr=False)
class DeployResult(Displayed):
    """What was deployed, and why.

    Attributes:
        folder: where the files are.
        files: their names, in order.
        target: what runs there: five lines, and what more is known of the place.
        trials: every candidate with its loss and cost, in the order in which they were tried.
        chosen: the one that was kept.
        reason: why, one sentence.
        metric: what `loss` is of, in words.
        chosen_by: what the losses of the trials are of.
        samples: part -> how many samples it has.
        loss: of the chosen one on the samples that nothing was chosen by, with its 95 % interval.
        word: how much that is for the task (`evaluation/loss_scale.py`).
        meets: whether that loss is within the largest that was allowed; None where none was named.
        warning: a sentence where it loses a lot and no largest loss was named; else "".
        notes: what the user must know, a sentence each.
        next_step: the command that builds the engine.
        left: what does not run in INT8, or not on the DLA.
        fp32: FP32's own figure by labels, on the samples of `loss`; None without labels.
        slow: a sentence where the forecast has INT8 no faster than FP16; else "".
        reference_warning: a sentence where FP32 does no better than guessing by labels; else "".
        verdict: whether INT8 is worth it there, by how much, how sure that is, and why; by the files of the candidates.
        forecast_verdict: the same by the forecast alone, before any candidate was made.
        known_wrong: warnings of builds that are known to go wrong there.
        independent: whether `loss` is of `eval_data`.
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
    word: Word
    meets: bool | None
    warning: str
    notes: tuple[str, ...]
    next_step: str
    left: LayersLeft = field(default_factory=LayersLeft)
    fp32: float | None = None
    slow: str = ""
    reference_warning: str = ""
    verdict: str = ""
    forecast_verdict: str = ""
    known_wrong: tuple[str, ...] = ()
    independent: bool = False

    def headline(self) -> str:
        """The candidate that was kept, what it loses and where it is."""
        return f"{self.folder}: {self.chosen.name}, {self.format_loss()}"

    def format_loss(self) -> str:
        """What the deployed model loses on samples that nothing was chosen by."""
        return loss_in_words(self.metric, self.loss, self.samples["report"])

    def summary(self) -> list[str]:
        """What `qdqtool deploy` prints, without what to do next."""
        return [self.verdict, *self.known_wrong, *self._outcome()]

    def next_lines(self) -> list[str]:
        """Run the script that builds the engine."""
        return [run_script(self.next_step)]

    def outcome(self) -> list[str]:
        """The same without what was said before anything was tried, unless the verdict is another one now."""
        again = [] if self.verdict == self.forecast_verdict else [f"by the candidates' files: {self.verdict}"]
        return [*again, *self._outcome()]

    def _outcome(self) -> list[str]:
        cut = [f"warning: {self.left.warning}"] if self.left.warning else []
        wrote = f"wrote {self.folder}: {', '.join(self.files)}"
        return [*self.choice(), "", *self.target, *self.notes, "", wrote, *cut]

    def choice(self) -> list[str]:
        """What was kept and why, its loss, and the candidates as a table."""
        said = sentence_of(self.word, self.loss, self.fp32, self.samples["report"])
        return [
            f"kept {self.chosen.name}: {self.reason}",
            f"on {judged_on(independent=self.independent)}: {self.format_loss()}; {said}",
            *self._accuracy(),
            *([f"warning: {self.warning}"] if self.warning else []),
            *([f"warning: {self.slow}"] if self.slow else []),
            *self.left.lines(),
            "",
            f"losses of {self.chosen_by}, on {counted(self.samples['choose'], 'sample')} used to choose:",
            *table(self.rows()[0], self.rows()[1:]),
            *legend(self.trials),
        ]

    def _accuracy(self) -> list[str]:
        """The figure to expect, and what to look at where FP32's own is too low."""
        if self.fp32 is None:
            note = _NO_LABELS.get(next((one.metric for one in self.trials if one.metric), ""))
            return [note] if note else []
        there = f"{self.metric} there: FP32 {self.fp32:.4f} -> {self.fp32 - self.loss.value:.4f}"
        if self.reference_warning:
            return [there, f"warning: {self.reference_warning}"]
        return [f"{there}; where FP32's is lower than you know it, --preprocess or --labels are not the model's"]

    def rows(self) -> Cells:
        """One row for each candidate."""
        return trial_rows(self.trials, self.chosen.name)


def judged_on(*, independent: bool) -> str:
    """Which samples the reported loss is of, and where it was measured."""
    return f"{'--eval-data' if independent else 'samples of --data that chose nothing'}, simulated on a CPU"


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
        form = (
            one.candidate.form if one.candidate.format == INT8.name else f"{one.candidate.format} {one.candidate.form}"
        )
        rows.append((one.candidate.name, form, *more, remark))
    return rows


def legend(trials: tuple[CandidateTrial, ...]) -> list[str]:
    """What the columns of `trial_rows` mean, where that is not plain, and why candidates failed."""
    lines = []
    if any(one.change is not None for one in trials):
        lines.append("change: distance of the answers from FP32's on the same samples, without labels; 0 is equal")
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
    """Candidates as JSON, with the number format of each."""
    formats = [None if one.candidate.is_float else one.candidate.format for one in trials]
    return [{**one.to_json(), "format": format_} for one, format_ in zip(trials, formats, strict=True)]
