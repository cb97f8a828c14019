# SPDX-License-Identifier: Apache-2.0
"""Which candidate is kept: the cheapest that loses no more than allowed. What they lose was measured elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.display import counted, finite_only
from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import Figure

# Losses that lie closer than half a point in a hundred are taken for equal where no largest loss is named.
AS_GOOD = 0.005
# Costs that lie closer are taken for equal: forecasts are not better than that.
SAME_COST = 0.02


@dataclass(frozen=True)
class DeployCost:
    """What a candidate costs where it runs; ordered within one target only.

    Attributes:
        megabytes: moved in one inference, by the forecast or by the plan of an engine; None where it is not known.
        layers: of the engine, forecast or planned; of a DLA the weighted operators that do not run in INT8.
        source: where the figures are from.
        unit: what `layers` counts, as a table says it.
    """

    megabytes: float | None
    layers: int
    source: str
    unit: str = "layers"

    @property
    def order(self) -> tuple[float, int]:
        """What orders candidates, the cheapest first."""
        return (math.inf if self.megabytes is None else self.megabytes, self.layers)

    def is_near(self, other: DeployCost) -> bool:
        """Whether it is no dearer than another, within what a forecast can tell."""
        if self.megabytes is None or other.megabytes is None:
            return self.order <= other.order
        return self.megabytes <= other.megabytes * (1 + SAME_COST)

    def text(self) -> str:
        """As a table shows it."""
        moved = "" if self.megabytes is None else f"{self.megabytes:.2f} MB, "
        return f"{moved}{self.layers} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {"megabytes": self.megabytes, "layers": self.layers, "source": self.source}


@dataclass(frozen=True)
class CandidateTrial:
    """A candidate with what came of it.

    Attributes:
        candidate: what was tried.
        loss: of the task's metric against FP32, on the samples to choose by; None where it failed.
        cost: None where it failed.
        failed: why it could not be made or run; "" where it could.
        notes: sentences on how it came about.
        change: how far its answers lie from FP32's on the same samples, whatever the labels say; None where `loss` says
            that itself.
    """

    candidate: DeployCandidate
    loss: Figure | None = None
    cost: DeployCost | None = None
    failed: str = ""
    notes: tuple[str, ...] = ()
    change: float | None = None

    def cells(self) -> tuple[str, str, str]:
        """Loss, interval and cost as a table shows them."""
        if self.loss is None or self.cost is None:
            return "-", "-", "-"
        low, high = self.loss.interval.low, self.loss.interval.high
        return f"{self.loss.value:.4f}", f"{low:.4f} to {high:.4f}", self.cost.text()

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        steps = [{"verb": step.verb, "options": dict(step.options)} for step in self.candidate.steps]
        return {
            "name": self.candidate.name,
            "form": self.candidate.form,
            "why": self.candidate.why,
            "steps": steps,
            "loss": None if self.loss is None else figure_json(self.loss),
            **({"change": None} if self.change is None else finite_only({"change": self.change})),
            "cost": None if self.cost is None else self.cost.to_json(),
            "failed": self.failed or None,
            "notes": list(self.notes),
        }


def figure_json(figure: Figure) -> dict[str, float | None]:
    """A figure with its interval as JSON, which has no NaN."""
    return finite_only({"value": figure.value, "low": figure.interval.low, "high": figure.interval.high})


def loss_in_words(metric: str, loss: Figure, samples: int) -> str:
    """A loss with its interval and the number of samples it was measured on."""
    low, high = loss.interval.low, loss.interval.high
    return f"{metric} loss {loss.value:.4f} (95 %: {low:.4f} to {high:.4f}, {counted(samples, 'sample')})"


def choose(trials: Sequence[CandidateTrial], max_loss: float | None) -> tuple[CandidateTrial, str]:
    """The trial that is kept, and why.

    With a largest loss it is the cheapest that loses no more. Without one it is the cheapest of those in INT8 that are
    as good as the best of them, within `AS_GOOD`. Where the model without INT8 costs no more than that one, or where
    none in INT8 loses so little, it is the model without INT8.

    Of those that cost the same, within `SAME_COST`, the one is kept whose answers lie nearest to FP32's, if its loss is
    not told apart from the least by its interval: a difference of labels' figures on few samples is mostly chance, and
    few answers change only in models that are near. A model that does better than FP32 does so by chance: it counts as
    one that loses nothing.

    Args:
        trials: those that did not fail have a loss and a cost.
        max_loss: absolute points of the metric.

    Raises:
        QdqError: no trial was measured, or every loss is NaN.
    """
    measured = [
        _Measured(one, max(one.loss.value, 0.0), one.cost)
        for one in trials
        if one.loss and one.cost and not math.isnan(one.loss.value)
    ]
    int8 = [one for one in measured if one.trial.candidate.form != "fp16"]
    floats = [one for one in measured if one.trial.candidate.form == "fp16"]
    if not measured:
        why = next((one.failed for one in trials if one.failed), "the samples have nothing to judge by")
        raise QdqError("deploy", f"no candidate could be made and judged ({why})", "see the labels and the data")
    if not int8:
        return measured[-1].trial, "no candidate in INT8 could be made"
    least = min(one.loss for one in int8)
    most = least + AS_GOOD if max_loss is None else max_loss
    fitting = [one for one in int8 if one.loss <= most]
    if not fitting:
        best = floats[0] if floats else min(int8, key=lambda one: one.loss)
        return best.trial, f"no candidate in INT8 loses at most {max_loss:g}; the best loses {least:.4f}"
    cheapest = min(fitting, key=lambda one: one.cost.order)
    known = all(one.trial.change is not None for one in int8)
    alike = [one for one in int8 if one.low <= most] if known and max_loss is None else fitting
    kept = min((one for one in alike if one.cost.is_near(cheapest.cost)), key=lambda one: one.order)
    for other in floats:
        if other.loss <= kept.loss and other.cost.order <= kept.cost.order:
            return other.trial, f"INT8 costs more: {kept.cost.text()} ({kept.trial.candidate.name})"
    if max_loss is None:
        nearest = ", and of those that cost the same the nearest to FP32" if known else ""
        return kept.trial, f"the cheapest in INT8 within {AS_GOOD:g} of the least loss ({least:.4f}){nearest}"
    return kept.trial, f"the cheapest that loses at most {max_loss:g} ({kept.loss:.4f})"


@dataclass(frozen=True)
class _Measured:
    """A trial that did not fail."""

    trial: CandidateTrial
    loss: float
    cost: DeployCost

    @property
    def low(self) -> float:
        """The least that it may lose, by its interval."""
        low = self.trial.loss.interval.low if self.trial.loss is not None else math.nan
        return self.loss if math.isnan(low) else min(low, self.loss)

    @property
    def order(self) -> tuple[float, float, tuple[float, int]]:
        """What orders trials of the same cost, the best first."""
        change = self.trial.change
        return (self.loss if change is None else change, self.loss, self.cost.order)
