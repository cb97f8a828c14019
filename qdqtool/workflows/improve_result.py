# SPDX-License-Identifier: Apache-2.0
"""What `improve` gives back: what was tried, what it bought, and how both are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.deploying.choice import CandidateTrial
from qdqtool.display import Cells, Displayed, counted, four_decimals, table
from qdqtool.evaluation.loss_scale import Word, is_at_most, samples_to_show, sentence_of
from qdqtool.evaluation.metrics import Figure, figure_json, loss_in_words

if TYPE_CHECKING:
    from qdqtool.diagnosis.cause import LossCauses

_NAMED = 12  # operators that a line names


@dataclass(frozen=True)
class Bought:
    """What a candidate loses less than the one that it differs from by one change, on the same samples."""

    over: str
    gain: Figure

    def text(self) -> str:
        """As a table shows it."""
        return f"{round(self.gain.value, 4) + 0.0:+.4f}"


@dataclass(frozen=True, repr=False)
class ImproveResult(Displayed):
    """What was tried, what it bought, and the model that came of it.

    Attributes:
        model: the file that was written.
        trials: in order, the model as given first.
        best: the one that was written.
        metric: what `loss` is of, in words.
        chosen_by: what the losses of the trials are of.
        samples: "calibrate", "choose", "report" -> how many. Each half of those that choose judges models that the
            other one calibrated.
        loss: of the written one, with its 95 % interval, on samples of which none chose what it judges.
        max_loss: what was allowed.
        meets: whether the loss lies within it.
        in_float: operators with weights that the written model leaves in float, in graph order.
        to_blame: operators that it has in INT8 and that lose most, the most first, where it is not met: name -> loss by
            itself.
        notes: sentences for the user.
        reference_warning: a sentence where FP32 does no better than guessing by labels; else "".
        labeled: whether `loss` is of the task's own metric, held against labels.
        bought: candidate -> what it loses less than the one before it, on the samples that choose.
        gain: what the written one loses less than the model as given, on these samples; None where that cannot be run.
        changes: what the written one has otherwise than the model as given, a sentence each.
        unreached: stages that `max_minutes` left no time for.
        untried: stages that are for a higher effort.
        shown: whether the samples show that the loss lies within `max_loss`, with 95 %.
        beside: what candidates were measured by beside the metric; "" where nothing was.
        word: how much `loss` is, as `evaluation/loss_scale.py` has it.
        word_measure: the measure that `word` follows from; "" for the metric.
        independent: whether `loss` is of separate data.
        causes: why the model as given loses; None where that could not be measured.
        fp32: what FP32 has of the task's own metric where `loss` was measured; None without labels.
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
    bought: Mapping[str, Bought] | None = None
    gain: Figure | None = None
    changes: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    shown: bool = False
    beside: str = ""
    word: Word = ""
    word_measure: str = ""
    independent: bool = False
    causes: LossCauses | None = None
    fp32: float | None = None

    def headline(self) -> str:
        """What was written, and what it loses."""
        return f"{self.model}: {self.best.candidate.name}, {self.format_loss()}"

    def format_loss(self) -> str:
        """What the written model loses on samples that it was not chosen by."""
        return loss_in_words(self.metric, self.loss, self.samples["report"])

    def summary(self) -> list[str]:
        """What `qdqtool improve` prints."""
        half = "each judged by a model that others calibrated"
        lines = [
            *([] if self.causes is None else [self.causes.headline()]),
            *self.notes,
            *self._refused(),
            f"losses of {self.chosen_by}, on {counted(self.samples['choose'], 'sample')}, {half}:",
            *table(self.rows()[0], self.rows()[1:]),
            *self._reasons(),
        ]
        where = "separate samples" if self.independent else "samples that did not choose it"
        measure = f"by {self.word_measure}, " if self.word_measure and self.word else ""
        said = sentence_of(self.word, self.loss, self.fp32, self.samples["report"])
        lines.append(f"on {where}: {self.format_loss()}; {measure}{said}")
        if self.meets and not self.shown:
            lines.append(f"within --max-loss {self.max_loss:g}, but {self._not_shown()}")
        if self.reference_warning:
            lines.append(f"warning: {self.reference_warning}")
        lines += self._unmeasured()
        lines.append(f"wrote {self.model}: {self.best.candidate.name}")
        if self.in_float:
            shown = ", ".join(self.in_float[:_NAMED]) + (", ..." if self.in_float[_NAMED:] else "")
            lines.append(f"it leaves {counted(len(self.in_float), 'operator')} with weights in float: {shown}")
        if self.unreached:
            lines.append(f"not reached within --max-minutes: {', '.join(self.unreached)}")
        if not self.meets:
            lines += [f"not tried, as --effort is lower: {', '.join(self.untried)}"] if self.untried else []
            lines += self._blamed()
        return lines

    def _reasons(self) -> list[str]:
        """What won how much, one change at a time, and what changed."""
        if self.gain is None or self.best is self.trials[0]:
            return []
        won, lost = list[str](), list[str]()
        name: str | None = self.best.candidate.name
        while name is not None and self.bought and name in self.bought:
            one = self.bought[name]
            sure = "" if one.gain.interval.low > 0 or one.gain.value <= 0 else ", not shown by these samples"
            said = f"{name} {one.text()} over {one.over} (95 %: {one.gain.interval.text()}{sure})"
            (won if one.gain.value > 0 else lost).append(said)
            name = one.over
        lines = [f"what won: {'; '.join(reversed(won))}"] if won else []
        lines += [f"on the way, without a gain: {'; '.join(reversed(lost))}"] if lost else []
        if not self.gain.interval.low > 0:
            span = self.gain.interval.text()
            lines.append(f"these samples do not show that it is better than the model as given (95 %: {span})")
        return lines + [f"changed: {text}" for text in self.changes]

    def _refused(self) -> list[str]:
        """What TensorRT does not build as it should."""
        found = [f"{one.candidate.name}: {one.refused}" for one in self.trials if one.refused]
        return [f"{text}; it is kept only where nothing else is left" for text in found]

    def _not_shown(self) -> str:
        """Why samples do not show that the loss is small enough, and how many would, at the same loss."""
        have, high = self.samples["report"], self.loss.interval.high
        spread, room = high - self.loss.value, self.max_loss - max(self.loss.value, 0.0)
        least = math.ceil(3 / self.max_loss) if self.max_loss > 0 else 0
        known = math.isfinite(high) and room > 0
        if known:
            least = max(least, samples_to_show(have, spread, room))
        most = "" if is_at_most(high, self.max_loss) or math.isnan(high) else f": it may be up to {high:.4f} (95 %)"
        more = f"at the same loss, about {least:,} can" if known and have < least else "more can"
        return f"{counted(have, 'sample')} cannot show it{most}; {more}"

    def _unmeasured(self) -> list[str]:
        """What the figures do not say without labels: whether the task itself is done better or worse than before."""
        if self.labeled:
            return []
        measured = f"{self.metric} and {self.beside} are" if self.beside else f"{self.metric} is"
        only = f"{measured} all that was measured: without --labels the task's own metric (mAP, accuracy)"
        return [f"{only} is not known, and may be lower than that of the model as given"]

    def _blamed(self) -> list[str]:
        """The last word: which operators are to blame."""
        if not self.to_blame:
            return []
        named = ", ".join(f"{name} ({loss:.3g})" for name, loss in self.to_blame.items())
        return [f"of those that it has in INT8 these lose most, each alone (0: none, 1: all): {named}"]

    def verdict(self) -> str:
        """Why the allowed loss is not met: too large a loss, a refused model; "" where it is met."""
        if self.meets:
            return ""
        if self.best.refused:
            return f"nothing else could be made of the model: {self.best.refused}"
        return f"--max-loss {self.max_loss:g} is not met: {self.format_loss()}"

    def rows(self) -> Cells:
        """One row for each attempt: its loss, what it bought, what it costs."""
        known = any(one.change is not None for one in self.trials)  # without labels the loss may say it itself
        rows = [("tried", "loss", "95 % interval", *(["change"] if known else []), "bought", "over", "cost", "")]
        for one in self.trials:
            bought = (self.bought or {}).get(one.candidate.name)
            mark = "failed" if one.failed else "kept" if one is self.best else "refused" if one.refused else ""
            loss, interval, cost = one.cells()
            over = ("-", "-") if bought is None else (bought.text(), bought.over)
            change = "-" if one.change is None else four_decimals(one.change)
            near = [change] if known else []
            rows.append((one.candidate.name, loss, interval, *near, *over, cost, mark))
        return rows

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool improve --json` prints."""
        bought = {name: {"over": one.over, **figure_json(one.gain)} for name, one in (self.bought or {}).items()}
        return {
            "schema": 1,
            "file": str(self.model),
            "metric": self.metric,
            "chosen_by": self.chosen_by,
            "beside": self.beside or None,
            "causes": None if self.causes is None else self.causes.to_json(),
            "max_loss": self.max_loss,
            "met": self.meets,
            "shown": self.shown,
            "samples": dict(self.samples),
            "tried": [one.to_json() for one in self.trials],
            "bought": bought,
            "kept": self.best.candidate.name,
            "gain": None if self.gain is None else figure_json(self.gain),
            "changes": list(self.changes),
            "unreached": list(self.unreached),
            "loss": figure_json(self.loss),
            "loss_word": self.word or None,
            "labeled": self.labeled,
            "in_float": list(self.in_float),
            "to_blame": dict(self.to_blame),
            "notes": list(self.notes),
            "reference_warning": self.reference_warning or None,
        }
