# SPDX-License-Identifier: Apache-2.0
"""What `improve` gives back: what was tried, what it bought, and how both are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.deploying.choice import CandidateTrial, figure_json, loss_in_words
from qdqtool.display import Cells, Displayed, counted, table

if TYPE_CHECKING:
    from qdqtool.evaluation.metrics import Figure

_NAMED = 12  # operators that a line names


@dataclass(frozen=True, repr=False)
class ImproveResult(Displayed):
    """What was tried, what it bought, and the model that came of it.

    Attributes:
        model: the file that was written.
        trials: in order, the model as given first.
        best: the one that was written.
        metric: what `loss` is of, in words.
        chosen_by: what the losses of the trials are of.
        samples: part -> how many.
        loss: of the written one on samples that nothing was chosen by, with its 95 % interval.
        max_loss: what was allowed.
        meets: whether that interval lies within it; with `by_value` the loss itself.
        in_float: operators with weights that the written model leaves in float, in graph order.
        to_blame: operators that it has in INT8 and that lose most, the most first, where it is not met: name -> loss by
            itself.
        notes: sentences for the user.
        reference_warning: what is told where FP32 does no better than guessing by labels; else "".
        labeled: whether `loss` is of the task's own metric, held against labels.
    """

    model: Path
    trials: tuple[CandidateTrial, ...]
    best: CandidateTrial
    metric: str
    chosen_by: str
    samples: Mapping[str, int]
    loss: Figure
    max_loss: float
    meets: bool
    in_float: tuple[str, ...]
    to_blame: Mapping[str, float]
    notes: tuple[str, ...]
    reference_warning: str = ""
    labeled: bool = False

    def headline(self) -> str:
        """What was written, and what it loses."""
        return f"{self.model}: {self.best.candidate.name}, {self.format_loss()}"

    def format_loss(self) -> str:
        """What the written model loses on samples that nothing was chosen by."""
        return loss_in_words(self.metric, self.loss, self.samples["report"])

    def summary(self) -> list[str]:
        """What `qdqtool improve` prints."""
        lines = [
            *self.notes,
            *self._refused(),
            f"losses of {self.chosen_by}, on {counted(self.samples['choose'], 'sample')} used to choose:",
        ]
        lines += table(self.rows()[0], self.rows()[1:])
        lines.append(f"on separate samples, not used to choose: {self.format_loss()}")
        if self.reference_warning:
            lines.append(f"warning: {self.reference_warning}")
        lines += self._unmeasured()
        lines.append(f"wrote {self.model}: {self.best.candidate.name}")
        if self.in_float:
            shown = ", ".join(self.in_float[:_NAMED]) + (", ..." if self.in_float[_NAMED:] else "")
            lines.append(f"it leaves {counted(len(self.in_float), 'operator')} with weights in float: {shown}")
        if not self.meets:
            lines += self._blamed()
        return lines

    def _refused(self) -> list[str]:
        """What TensorRT does not build as it should."""
        found = [f"{one.candidate.name}: {one.refused}" for one in self.trials if one.refused]
        return [f"{text}; it is kept only where nothing else can be made" for text in found]

    def _unmeasured(self) -> list[str]:
        """What the figures do not say without labels: whether the task itself is done better or worse than before."""
        if self.labeled:
            return []
        only = f"{self.metric} is all that was measured: without --labels the task's own metric (mAP, accuracy)"
        return [f"{only} is not known, and may be lower than that of the model as given"]

    def _blamed(self) -> list[str]:
        """The last word: which operators are to blame."""
        if not self.to_blame:
            return []
        named = ", ".join(f"{name} ({loss:.3g})" for name, loss in self.to_blame.items())
        return [f"of those that it has in INT8 these lose most, each alone (0: none, 1: all): {named}"]

    def verdict(self) -> str:
        """Why the allowed loss is not met: too large a loss, too few samples, a refused model; "" where it is met."""
        if self.meets:
            return ""
        if self.best.refused:
            return f"nothing else could be made of the model: {self.best.refused}"
        if self.loss.value > self.max_loss:
            return f"--max-loss {self.max_loss:g} is not met: {self.format_loss()}"
        images = counted(self.samples["report"], "sample")
        most = f": it may be up to {self.loss.interval.high:.4f} (95 %)" if self.loss.interval.known else ""
        return (
            f"the loss is {self.loss.value:.4f}, which --max-loss {self.max_loss:g} allows, but {images} cannot show "
            f"it{most}; give more --eval-data, or judge --by-value"
        )

    def rows(self) -> Cells:
        """One row for each attempt: its loss, what it bought, what it costs."""
        rows = [("tried", "loss", "95 % interval", "bought", "cost", "")]
        least: float | None = None
        for one in self.trials:
            bought = "-" if least is None or one.loss is None else f"{round(least - one.loss.value, 4) + 0.0:+.4f}"
            mark = "failed" if one.failed else "kept" if one is self.best else "refused" if one.refused else ""
            loss, interval, cost = one.cells()
            rows.append((one.candidate.name, loss, interval, bought, cost, mark))
            if one.loss is not None:
                least = one.loss.value if least is None else min(least, one.loss.value)
        return rows

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool improve --json` prints."""
        return {
            "schema": 1,
            "file": str(self.model),
            "metric": self.metric,
            "chosen_by": self.chosen_by,
            "max_loss": self.max_loss,
            "met": self.meets,
            "samples": dict(self.samples),
            "tried": [one.to_json() for one in self.trials],
            "kept": self.best.candidate.name,
            "loss": figure_json(self.loss),
            "labeled": self.labeled,
            "in_float": list(self.in_float),
            "to_blame": dict(self.to_blame),
            "notes": list(self.notes),
            "reference_warning": self.reference_warning or None,
        }
