# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` gives back: figures, losses, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qdqtool.display import Cells, Displayed, counted, four_decimals
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import Metric
from qdqtool.evaluation.loss_scale import WITHOUT_LABELS, Word, sentence_of, word_of
from qdqtool.evaluation.metrics import Figure
from qdqtool.verbs.target_model import AS_WRITTEN

_SHOWN = 10
_BASELINE = "baseline"  # FP32, or the INT8 model that this one is to follow
_ONNXRUNTIME = "onnxruntime, ORT_ENABLE_BASIC, session.disable_quant_qdq=1; not TensorRT"


@dataclass(frozen=True, repr=False)
class Evaluation(Displayed):
    """The figures of a model, and what it loses against its baseline.

    Attributes:
        metric: what was asked: top1, coco, voc, miou or agreement.
        model: the model's name.
        baseline: the name of the model that losses are against, "" without one.
        samples: how many were judged.
        figures: metric -> over all, then for each of `classes`, each with its 95 % interval.
        baseline_figures: the same of the baseline; empty without one.
        losses: baseline less model, paired; empty without a baseline.
        classes: the class numbers that have figures of their own.
        shown: what the classes are called; empty where nobody says.
        means: how boxes were had: the decoder, or the script; "" for classifiers.
        labels: which form the labels have; "" for agreement.
        facts: counts that help to read the figures.
        notes: what was left out or looks wrong, one sentence each.
        how: who computed the model's figures, and whether that is a measurement of TensorRT.
        reference_warning: where the baseline, or the model without one, does no better than guessing, so that losses
            mean nothing: a sentence that `notes` has, too; else "".
    """

    metric: Metric
    model: str
    baseline: str
    samples: int
    figures: dict[str, tuple[Figure, ...]]
    baseline_figures: dict[str, tuple[Figure, ...]]
    losses: dict[str, tuple[Figure, ...]]
    classes: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()
    means: str = ""
    labels: str = ""
    facts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    how: str = AS_WRITTEN
    reference_warning: str = ""

    @property
    def of_classes(self) -> bool:
        """Whether figures are those of a classifier, by labels or by agreement."""
        return "top1" in self.figures or "agreement1" in self.figures

    def value(self, metric: str) -> float:
        """A metric of the model over all images and classes."""
        return self.figures[metric][0].value

    def loss(self, metric: str) -> Figure:
        """What a metric loses against the baseline, with its interval."""
        return self.losses[metric][0]

    @property
    def word(self) -> Word | None:
        """How much is lost (`evaluation/loss_scale.py`), by the first metric that says it; None without a baseline."""
        if not self.losses:
            return None
        return word_of(self._telling, self.loss(self._telling), self.baseline_figures[self._telling][0].value)

    @property
    def _telling(self) -> str:
        """The metric whose loss has the word."""
        return "nearness" if "nearness" in self.losses else next(iter(self.losses))

    def class_name(self, number: int) -> str:
        """What a class is called: its name, or its number where nobody names it."""
        return self.shown[number] if number < len(self.shown) else str(number)

    def headline(self) -> str:
        """Each metric over all images, and what it loses where there is a baseline."""
        listed = [f"{name} {self.value(name):.4f}" + self._loss(name) for name in self.figures]
        return f"{self.model}: {', '.join(listed)}, {counted(self.samples, 'sample')}"

    def _loss(self, metric: str) -> str:
        return f" (loss {four_decimals(self.loss(metric).value)})" if self.losses else ""

    def summary(self, *, per_class: bool = False) -> list[str]:
        """What `qdqtool evaluate` prints.

        Args:
            per_class: every class in the order of its number, in the place of the worst.

        Raises:
            QdqError: no class has figures of its own.
        """
        if per_class and not self.classes:
            raise QdqError("--per-class", f"{self.metric} has no figure for each class here", "leave it out")
        lines = [f"{self.model}: {counted(self.samples, 'sample')}{_counts(self)}"]
        if self.baseline:
            lines.append(f"baseline: {self.baseline}")
        if self.means:
            lines.append(f"boxes by {self.means}")
        rows = [(name, 0) for name in self.figures]
        lines += ["", *_figures(self, "metric", rows, [name for name, _ in rows])]
        if self.classes:
            lines += ["", *_classes(self, per_class=per_class)]
        if self.word is not None:
            by_labels = self._telling not in WITHOUT_LABELS
            baseline = self.baseline_figures[self._telling][0].value if by_labels else None
            lines += ["", sentence_of(self.word, self.loss(self._telling), baseline, self.samples)]
        return [
            *lines,
            "",
            f"95 % intervals: bootstrap over the samples{', paired' if self.losses else ''}; {self.how}",
        ]

    def rows(self) -> Cells:
        """One row for each metric: the figure and its interval, or the loss and its interval."""
        table = self.losses or self.figures
        head = ("metric", "loss" if self.losses else "value", "95 % interval")
        return [head, *((name, f"{one[0].value:.4f}", one[0].interval.text()) for name, one in table.items())]

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool evaluate --json` prints; a figure is its value and the ends of its interval."""
        return {
            "schema": 1,
            "metric": self.metric,
            "model": self.model,
            "baseline": self.baseline or None,
            "samples": self.samples,
            "figures": _overall(self.figures),
            "baseline_figures": _overall(self.baseline_figures),
            "losses": _overall(self.losses),
            "loss_word": self.word or None,
            "classes": [self._class(k) for k in range(len(self.classes))],
            "decoder": self.means or None,
            "labels": self.labels or None,
            "facts": self.facts,
            "notes": list(self.notes),
            "reference_warning": self.reference_warning or None,
            "executor": _ONNXRUNTIME if "onnxruntime" in self.how else "TensorRT",
            "how": self.how,
        }

    def _class(self, index: int) -> dict[str, Any]:
        number = self.classes[index]
        tables = {"figures": self.figures, "baseline_figures": self.baseline_figures, "losses": self.losses}
        own = {key: {name: _numbers(one[1 + index]) for name, one in table.items()} for key, table in tables.items()}
        return {"class": number, "name": self.class_name(number), **own}


def _overall(table: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    return {name: _numbers(figures[0]) for name, figures in table.items()}


def _numbers(figure: Figure) -> dict[str, float | None]:
    """A figure for JSON, which has no NaN."""
    numbers = {"value": figure.value, "low": figure.interval.low, "high": figure.interval.high}
    return {key: None if math.isnan(number) else number for key, number in numbers.items()}


def _counts(result: Evaluation) -> str:
    words = [f"labels {result.labels}"] if result.labels else []
    words += [f"{number} {name}" for name, number in result.facts.items()]
    return "".join(f", {word}" for word in words)


def _figures(result: Evaluation, head: str, rows: list[tuple[str, int]], called: list[str]) -> list[str]:
    """One line per (metric, column): figure and interval; with a baseline both figures, and the loss's interval."""
    width = max(map(len, [head, *called]))
    if not result.losses:
        lines = [f"{head:<{width}}  {'value':>7}  95 % interval"]
        for name, (metric, k) in zip(called, rows, strict=True):
            one = result.figures[metric][k]
            lines.append(f"{name:<{width}}  {one.value:7.4f}  {one.interval.text()}")
        return lines
    lines = [f"{head:<{width}}  {_BASELINE}  {'model':>7}  {'loss':>7}  95 % interval of the loss"]
    for name, (metric, k) in zip(called, rows, strict=True):
        before, after, loss = (table[metric][k] for table in (result.baseline_figures, result.figures, result.losses))
        figures = f"{before.value:{len(_BASELINE)}.4f}  {after.value:7.4f}  {four_decimals(loss.value):>7}"
        lines.append(f"{name:<{width}}  {figures}  {loss.interval.text()}")
    return lines


def _classes(result: Evaluation, *, per_class: bool) -> list[str]:
    """The classes by the first metric: in order, or worst first, the largest loss or else the lowest figure."""
    metric = next(iter(result.figures))
    columns = range(1, 1 + len(result.classes))
    if per_class:
        worst = list(columns)
    elif result.losses:
        worst = sorted(columns, key=lambda k: -result.losses[metric][k].value)
    else:
        worst = sorted(columns, key=lambda k: result.figures[metric][k].value)
    shown = worst if per_class else worst[:_SHOWN]
    called = [result.class_name(result.classes[k - 1]) for k in shown]
    lines = _figures(result, f"{metric} of class", [(metric, k) for k in shown], called)
    left = len(worst) - len(shown)
    what = "lost no more than these" if result.losses else "have no lower figure than these"
    return [*lines, f"and {left} more classes that {what} (--per-class shows all)"] if left else lines
