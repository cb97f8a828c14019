# SPDX-License-Identifier: Apache-2.0
"""Which candidate is kept: the cheapest that loses no more than allowed, and none that another one beats."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.loss_bounds import LossBounds, loss_bounds
from qdqtool.display import counted, finite_only, four_decimals
from qdqtool.engine.cost import layers_in_kernels
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure

# What loses no more than half a point in a hundred is taken for as good where no largest loss is named.
AS_GOOD = 0.005
LAYERS = "layers"
# Answers that lie no more than a quarter farther from FP32's are taken for as near: what samples tell of that varies.
AS_NEAR = 0.25
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
        microseconds: of one inference, by the cost model for the board, a forecast; orders candidates before megabytes.
            None where rules/devices.toml has no figures of the board, or a shape is not known.
        added: of a DLA the layers that editing weights added, which decide nothing.
        on_gpu: of a DLA the nodes that fall back to the GPU.
        fits: whether a DLA core holds its subgraphs at a time: else the build stops, or the GPU runs the rest.
        told: of `layers`, those that the builder is told to keep in float for accuracy, which decide nothing.
        kernels: in how many the layers run, by the forecast; None of a DLA, and of a built engine.
    """

    megabytes: float | None
    layers: int
    source: str
    unit: str = LAYERS
    microseconds: float | None = None
    added: int = 0
    on_gpu: int = 0
    fits: bool = True
    told: int = 0
    kernels: int | None = None

    @property
    def order(self) -> tuple[float, float, int]:
        """What orders candidates, the cheapest first."""
        time, moved = (math.inf if one is None else one for one in (self.microseconds, self.megabytes))
        return (time, moved, self.layers - self.told + self.on_gpu)

    @property
    def counts_layers_alone(self) -> bool:
        """Whether layers are all that is known: INT8 has more of them, and cheaper ones."""
        return self.microseconds is None and self.megabytes is None and self.unit == LAYERS

    def is_near(self, other: DeployCost) -> bool:
        """Whether it is no dearer than another, within what a forecast can tell."""
        both = zip(self.order[:2], other.order[:2], strict=True)
        known = next(((own, its) for own, its in both if math.isfinite(own) and math.isfinite(its)), None)
        return self.order <= other.order if known is None else known[0] <= known[1] * (1 + SAME_COST)

    @property
    def with_time(self) -> str:
        """As the table of candidates shows it: `text`, and the forecast time where there is one."""
        return self.text() + ("" if self.microseconds is None else f", {self.microseconds / 1000:.3f} ms")

    def text(self) -> str:
        """As a table shows it."""
        unknown = "bytes not known, " if self.unit == LAYERS else ""
        moved = unknown if self.megabytes is None else f"{self.megabytes:.2f} MB, "
        beside = f", {self.on_gpu} on the GPU" if self.on_gpu else ""
        beside += f", {counted(self.added, 'layer')} more" if self.added else ""
        count = layers_in_kernels(self.layers, self.kernels) if self.unit == LAYERS else f"{self.layers} {self.unit}"
        return f"{moved}{count}{beside}{'' if self.fits else ', too many subgraphs'}"

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        time = {} if self.microseconds is None else {"forecast_microseconds": self.microseconds}
        beside = {} if self.unit == LAYERS else {"on_gpu": self.on_gpu, "fits": self.fits}
        more = {key: count for key, count in (("added_layers", self.added), ("told_float", self.told)) if count}
        counts = {"layers": self.layers, **({} if self.kernels is None else {"kernels": self.kernels})}
        return {"megabytes": self.megabytes, **counts, **beside, **more, **time, "source": self.source}


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
        metric: what `loss` is of, as `MeasuredModel` names it.
        refused: why TensorRT does not build it right, though it can be run here; "" where it does.
    """

    candidate: DeployCandidate
    loss: Figure | None = None
    cost: DeployCost | None = None
    failed: str = ""
    notes: tuple[str, ...] = ()
    change: float | None = None
    metric: str = ""
    refused: str = ""

    @classmethod
    def of_failure(cls, candidate: DeployCandidate, error: QdqError, work: Path, refused: str = "") -> CandidateTrial:
        """Of a candidate that could not be made or run."""
        return cls(candidate, failed=error.line().replace(f"{work}{os.sep}", ""), refused=refused)

    def cells(self) -> tuple[str, str, str]:
        """Loss, interval and cost as a table shows them."""
        if self.loss is None or self.cost is None:
            return "-", "-", "-"
        return four_decimals(self.loss.value), self.loss.interval.text(), self.cost.with_time

    @property
    def is_useless(self) -> bool:
        """Whether it loses more of its metric than anybody can use; False where nobody says which metric that is."""
        return bool(self.metric) and self.loss is not None and self.loss.value > loss_bounds(self.metric).useless

    def line(self) -> str:
        """What came of it, in a line of progress: what a table says of it."""
        if self.loss is None or self.cost is None:
            return f"{self.candidate.name}: failed ({self.failed})"
        loss, interval, cost = self.cells()
        change = "" if self.change is None else f", change {self.change:.4f}"
        remark = f", {self.refused}" if self.refused else ", not usable" if self.is_useless else ""
        return f"{self.candidate.name}: loss {loss} ({interval}){change}, cost {cost}{remark}"

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
            **({"refused": self.refused} if self.refused else {}),
            "notes": list(self.notes),
        }


def figure_json(figure: Figure) -> dict[str, float | None]:
    """A figure with its interval as JSON, which has no NaN."""
    return finite_only({"value": figure.value, "low": figure.interval.low, "high": figure.interval.high})


def loss_in_words(metric: str, loss: Figure, samples: int) -> str:
    """A loss with its interval and the number of samples it was measured on; of one sample there is no interval."""
    span = f"95 %: {loss.interval.text()}, " if loss.interval.known else ""
    return f"{metric} loss {four_decimals(loss.value)} ({span}{counted(samples, 'sample')})"


def slow_int8(kept: CandidateTrial, trials: Sequence[CandidateTrial], device: str) -> str:
    """A sentence where the forecast has the kept INT8 no faster than the model without INT8; else ""."""
    time = None if kept.cost is None else kept.cost.microseconds
    other = next((one.cost.microseconds for one in trials if one.candidate.form == "fp16" and one.cost), None)
    if kept.candidate.form == "fp16" or time is None or other is None or time < other:
        return ""
    figures = f"{time / 1000:.3f} ms against {other / 1000:.3f} ms"
    return f"INT8 is no faster than FP16 by the forecast for {device} ({figures}), which is no measurement: bench both"


Compared = Callable[[str, str], Figure]  # names of two trials -> what the first loses more than the second, paired


def choose(
    trials: Sequence[CandidateTrial], max_loss: float | None, compared: Compared, samples: int | None = None
) -> tuple[CandidateTrial, str]:
    """The trial that is kept, and why.

    Nothing is kept that another trial beats. One in INT8 is beaten by another one that loses less and is cheaper by
    more than `SAME_COST`. The model without INT8 beats it where it is no dearer and does not surely lose more, or is
    as cheap within `SAME_COST` and surely loses less. Where the forecast has a time, that is what a trial costs.

    With a largest loss it is the cheapest that loses no more; of those that cost the same, within `SAME_COST`, the one
    whose answers lie nearest to FP32's. Where none loses so little, it is the model without INT8.

    Without one it is the cheapest of those in INT8 that are as good as the best. The best is the one nearest to FP32 of
    those that figures do not tell apart from the least loss: a difference of figures on few samples is mostly chance.
    As good as the best is what lies as near to FP32, within `AS_NEAR`, or what loses no more than `AS_GOOD` beyond it
    with all of the paired interval. For a DLA the best of which a core holds the subgraphs goes before one of which it
    does not, as that may not be built. Where the best surely loses so much that it is of no use (`loss_bounds`), it is
    the model without INT8.

    Where no INT8 is left, the model without INT8 is kept. A model that does better than FP32 does so by chance: it
    counts as one that loses nothing.

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
        why = next((one.failed for one in trials if one.failed), "the samples contain nothing to measure")
        raise QdqError("deploy", f"no candidate could be made and measured ({why})", "check the labels and the data")
    if not int8:
        return _cheapest(floats).trial, "no candidate in INT8 could be made"
    unbeaten = [one for one in int8 if not any(_beats(other, one) for other in int8)]
    beating = {one.name: [half for half in floats if _pays_more(half, one, compared, max_loss)] for one in unbeaten}
    paying = [one for one in unbeaten if not beating[one.name]] or unbeaten
    kept, reason = _of_int8(paying, compared) if max_loss is None else _within(paying, max_loss, samples)
    if kept is None:
        safe = [
            half for half in floats if not any(_beats(one, half) and _is_worse(half, one, compared) for one in int8)
        ]
        best = _cheapest(safe) if safe else min(int8, key=lambda one: one.loss)
        return best.trial, reason
    if beating[kept.name]:
        half = _cheapest(beating[kept.name])
        return half.trial, _why_float(half.cost, kept)
    beaten = [one.name for one in int8 if one not in paying]
    return kept.trial, reason + (f"; left out, as another one beats it: {', '.join(beaten)}" if beaten else "")


def _beats(other: _Measured, one: _Measured) -> bool:
    """Whether a trial loses less than another one, as the table shows it, and is cheaper beyond what forecasts tell."""
    if one.cost.counts_layers_alone or round(other.loss, 4) >= round(one.loss, 4):
        return False
    return not one.cost.is_near(other.cost)


def _pays_more(half: _Measured, int8: _Measured, compared: Compared, most: float | None) -> bool:
    """Whether the model without INT8 is the better one: as accurate and no dearer, or as cheap and surely better."""
    if int8.cost.counts_layers_alone:
        return False
    if half.cost.order <= int8.cost.order:
        allowed = most is None or half.loss <= most
        return half.loss <= int8.loss or (allowed and not _is_worse(half, int8, compared))
    return half.cost.is_near(int8.cost) and _is_worse(int8, half, compared)


def _why_float(half: DeployCost, int8: _Measured) -> str:
    """Why the model without INT8 is kept in place of what would have been."""
    if half.microseconds is None or int8.cost.microseconds is None:
        return f"INT8 costs more: {int8.cost.text()} ({int8.name})"
    times = f"{half.microseconds / 1000:.3f} ms against {int8.cost.microseconds / 1000:.3f} ms ({int8.name})"
    return f"INT8 is no faster by the forecast, and no more accurate: {times}"


def _within(int8: Sequence[_Measured], most: float, samples: int | None) -> tuple[_Measured | None, str]:
    """The cheapest that loses no more than asked for."""
    fitting = [one for one in int8 if one.loss <= most]
    if not fitting:
        least = min(int8, key=lambda one: one.loss)
        where = "" if samples is None else f" on the {counted(samples, 'sample')} used to choose"
        reason = f"no candidate in INT8 loses at most {most:g}{where}; the best ({least.name}) loses {least.loss:.4f}"
        if least.low > most and least.is_sure:
            return None, reason
        high = least.trial.loss.interval.high if least.trial.loss is not None else math.nan
        span = f" (95 %: {Interval(least.low, high).text()})" if least.is_sure else ""
        return None, f"{reason}{span}, so these samples do not decide: give more --data"
    kept = _cheapest(fitting)
    return kept, f"the cheapest that loses at most {most:g} ({kept.loss:.4f})"


def _of_int8(int8: Sequence[_Measured], compared: Compared) -> tuple[_Measured | None, str]:
    """The cheapest of those that are as good as the best; none where that is of no use."""
    least = min(int8, key=lambda one: one.loss)
    alike = [one for one in int8 if one.low <= AS_GOOD or not _is_worse(one, least, compared)]
    best = min(alike, key=lambda one: one.order)
    if best.is_useless:
        why = f"INT8 at its best ({best.name}) loses {best.loss:.4f}, surely more than {best.bounds.useless:g}"
        return None, f"{why}; --max-loss {math.ceil(best.loss * 100) / 100:g} keeps it all the same"
    if not best.cost.fits and any(one.cost.fits for one in alike):
        kept = min((one for one in alike if one.cost.fits), key=lambda one: one.order)
        return (
            kept,
            f"a DLA core holds its subgraphs, and those of {best.name}, {_what_is_best(kept, best)}, it does not",
        )
    as_good = [one for one in alike if one is best or one.is_as_near(best) or _is_as_good(one, best, compared)]
    kept = _cheapest(as_good)
    if kept is best:
        return kept, f"the nearest to FP32 of those whose loss equals the least one within noise ({least.loss:.4f})"
    return kept, f"the cheapest in INT8 of those that are as good as {best.name}, {_what_is_best(kept, best)}"


def _what_is_best(kept: _Measured, best: _Measured) -> str:
    """Why a trial is the best one, with its loss; it may lose more than the kept one, by chance."""
    shown = best.loss if best.trial.loss is None else best.trial.loss.value
    if shown < 0:  # the table has it; by chance, so that it is no reason
        return f"whose answers lie nearest to FP32's (its loss of {shown:.4f} counts as none)"
    if best.loss <= kept.loss:
        return f"which loses {best.loss:.4f}"
    return (
        f"whose answers lie nearest to FP32's (its loss of {best.loss:.4f} is not surely more than {kept.loss:.4f}: "
        "the samples are few)"
    )


def _cheapest(found: Sequence[_Measured]) -> _Measured:
    """The best of those that cost no more than the cheapest one, within what a forecast can tell."""
    cheapest = min(found, key=lambda one: one.cost.order)
    return min((one for one in found if one.cost.is_near(cheapest.cost)), key=lambda one: one.order)


def _is_worse(one: _Measured, other: _Measured, compared: Compared) -> bool:
    """Whether figures tell that it loses more, beyond their interval."""
    return one is not other and compared(one.name, other.name).interval.low > 0


def _is_as_good(one: _Measured, other: _Measured, compared: Compared) -> bool:
    """Whether figures tell that it loses next to nothing more, with all of their interval."""
    return compared(one.name, other.name).interval.high <= AS_GOOD


@dataclass(frozen=True)
class _Measured:
    """A trial that did not fail."""

    trial: CandidateTrial
    loss: float
    cost: DeployCost

    @property
    def name(self) -> str:
        return self.trial.candidate.name

    @property
    def bounds(self) -> LossBounds:
        return loss_bounds(self.trial.metric)

    @property
    def low(self) -> float:
        """The least that it may lose, by its interval."""
        low = self.trial.loss.interval.low if self.trial.loss is not None else math.nan
        return self.loss if math.isnan(low) else min(low, self.loss)

    @property
    def is_sure(self) -> bool:
        """Whether there is an interval of its loss."""
        return self.trial.loss is not None and self.trial.loss.interval.known

    @property
    def is_useless(self) -> bool:
        """Whether it surely loses more than anybody can use."""
        return self.low > self.bounds.useless

    @property
    def change(self) -> float:
        """How far its answers lie from FP32's."""
        return self.loss if self.trial.change is None else self.trial.change

    @property
    def order(self) -> tuple[float, float, tuple[float, float, int]]:
        """What orders trials of the same cost, the best first."""
        return (self.change, self.loss, self.cost.order)

    def is_as_near(self, other: _Measured) -> bool:
        """Whether its answers lie as near to FP32's, for all that matters."""
        return self.change <= other.change * (1 + AS_NEAR)
