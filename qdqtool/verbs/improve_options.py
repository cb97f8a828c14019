# SPDX-License-Identifier: Apache-2.0
"""What `improve` is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import DataOptions
from qdqtool.deploying.choice import CandidateTrial, figure_json, loss_in_words
from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource
from qdqtool.options import TextOption
from qdqtool.progress import silent
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import TargetOptions
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.deploy_options import METRICS, check_data_options, check_labels, check_loss

if TYPE_CHECKING:
    from qdqtool.data.loader import Data
    from qdqtool.evaluation.metrics import Figure


_NAMED = 12  # operators that a line names


@dataclass(frozen=True)
class ImproveOptions(TargetOptions, ExecutionOptions):
    """How a Q/DQ model is improved.

    Attributes:
        max_loss: the most that the task's metric may lose against FP32, in absolute points; required.
        source: the FP32 model; None for the model itself without its pairs.
        labels: the truth of the data, or of `eval_data`; None judges by agreement with FP32.
        eval_data: separate samples for the reported figures.
        eval_labels: the truth of `eval_data`, where `labels` is that of the data.
        metric: top1, coco or voc; None takes what the labels are for.
        decoder: what makes boxes of a detector's outputs.
        names: the model's classes.
        postprocess: ``script.py:function`` that makes boxes, instead of a decoder.
        finetune: whether the weights may be trained, as the last step.
        by_value: whether the loss itself must lie within `max_loss`, and not all of its 95 % interval.
        data_options: preprocessing.
        say: is called with a line for each attempt, as soon as it is judged; where progress is shown, it ends with the
            seconds that the attempt took.
        warn: is called with what makes the figures worthless, as soon as it is known: FP32 itself fails by labels.
    """

    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    max_loss: float | None = None
    source: ModelSource | None = None
    labels: str | Path | None = None
    eval_labels: str | Path | None = None
    eval_data: Data | None = None
    metric: str | None = None
    decoder: str = "auto"
    names: str | None = None
    postprocess: str | None = None
    finetune: bool = True
    by_value: bool = False
    data_options: DataOptions = field(default_factory=DataOptions)
    say: Callable[[str], None] = silent
    warn: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            QdqError: such an option, named.
        """
        super().__post_init__()
        if self.max_loss is None:
            raise QdqError("--max-loss", "says when it is enough, and is not given", "give it, such as 0.01")
        check_loss(self.max_loss)
        check_labels(self.eval_labels, self.eval_data)
        if self.metric is not None and self.metric not in METRICS:
            raise QdqError(f"--metric {self.metric}", "is not one", f"choose {', '.join(METRICS)}")
        check_data_options(self.data_options, "improve")


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
