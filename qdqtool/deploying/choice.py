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
from qdqtool.display import counted, finite_only, four_decimals
from qdqtool.engine.cost import layers_in_kernels
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.loss_scale import is_at_most
from qdqtool.evaluation.metrics import Figure, figure_json
from qdqtool.forecasting.formats import SAME_COST, is_below
from qdqtool.formats import INT8

# What loses no more than half a point in a hundred is taken for as good where no largest loss is named.
AS_GOOD = 0.005
LAYERS = "layers"
# Answers that lie no more than a quarter farther from FP32's are taken for as near: what samples tell of that varies.
AS_NEAR = 0.25
_SAME = f"{100 * SAME_COST:g} %"
# INT8 that loses more of a metric, with all of its interval, is of no use to anybody; by labels `USELESS`. Agreement
# counts every answer that changes, also from wrong to right, and AP of boxes every pixel that they move: with 0.67 of
# agreement lost fastestdet_coco loses 0.04 of its mAP on a DLA (docs/deploy.md).
USELESS = 0.1
USELESS_WITHOUT_LABELS = {"agreement": 0.9, "agreement1": 0.3, "outputs": 0.9}


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
    def figure(self) -> float | None:
        """What the cost is first: the time, else the bytes; None where neither is known."""
        return self.megabytes if self.microseconds is None else self.microseconds

    @property
    def counts_layers_alone(self) -> bool:
        """Whether layers are all that is known: INT8 has more of them, and cheaper ones."""
        return self.microseconds is None and self.megabytes is None and self.unit == LAYERS

    def is_below(self, other: DeployCost) -> bool:
        """Whether it is cheaper than another, beyond what a forecast can tell."""
        for own, its in zip(self.order[:2], other.order[:2], strict=True):
            if min(own, its) < math.inf:
                return is_below(own, its)
        return self.order < other.order

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
    def low(self) -> float:
        """The least that it may lose, by its interval."""
        if self.loss is None:
            return math.nan
        return self.loss.interval.low if self.loss.interval.known else self.loss.value

    @property
    def is_useless(self) -> bool:
        """Whether it surely loses more of its metric than anybody can use; not known without a metric."""
        return bool(self.metric) and self.low > USELESS_WITHOUT_LABELS.get(self.metric, USELESS)

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


def slow_int8(kept: CandidateTrial, trials: Sequence[CandidateTrial], device: str) -> str:
    """A sentence where the forecast has the kept quantized model no faster than FP16; else ""."""
    time = None if kept.cost is None else kept.cost.microseconds
    other = next((one.cost.microseconds for one in trials if one.candidate.form == "fp16" and one.cost), None)
    if kept.candidate.is_float or time is None or other is None or time < other:
        return ""
    figures = f"{time / 1000:.3f} ms against {other / 1000:.3f} ms"
    title = kept.candidate.title
    return (
        f"{title} is no faster than FP16 by the forecast for {device} ({figures}), which is no measurement: bench both"
    )


Compared = Callable[[str, str], Figure]  # names of two trials -> what the first loses more than the second, paired


@dataclass(frozen=True)
class Choice:
    """What is kept of the trials.

    Attributes:
        kept: the trial.
        reason: why, one sentence.
        other: the trial to time it against: FP16 beside INT8, and beside a model without INT8 the INT8 that comes
            nearest to being kept, or a faster one that loses more; None where there is none.
    """

    kept: CandidateTrial
    reason: str
    other: CandidateTrial | None


def choose(
    trials: Sequence[CandidateTrial], max_loss: float | None, compared: Compared, samples: int | None = None
) -> Choice:
    """The trial that is kept, in INT8 or not; no other one beats it in loss and cost, both beyond noise.

    1. With a largest loss, what loses more is out.
    2. What another trial beats is out: that one is cheaper by more than `SAME_COST`, and loses less by the figures or
       surely. A model without INT8 also beats what loses as little, and a loss of its own that is not sure counts as
       none. Where costs count layers alone, nothing is beaten.
    3. Without a largest loss accuracy comes first: INT8 that is not as good as the best INT8 is out, INT8 that surely
       loses more of its metric than anybody can use, and what is not INT8 and surely loses more than `AS_GOOD` beyond
       the best.
    4. The cheapest of the rest is kept; of those that cost as much, within `SAME_COST`, the one nearest to FP32.

    The best INT8 is the nearest to FP32 of those that figures do not tell from the least loss: a difference of figures
    on few samples is mostly chance. Where a DLA core holds the subgraphs of any that is of use, the others are out, as
    their build may stop. As good as the best is what lies as near to FP32, within `AS_NEAR`, or loses no more than
    `AS_GOOD` beyond it with all of the paired interval. A loss below zero is chance, and counts as none.

    Raises:
        QdqError: no trial was measured, or every loss is NaN.
    """
    measured = [
        _Measured(one, max(one.loss.value, 0.0), one.cost)
        for one in trials
        if one.loss and one.cost and not math.isnan(one.loss.value)
    ]
    if not measured:
        why = next((one.failed for one in trials if one.failed), "the samples contain nothing to measure")
        raise QdqError("deploy", f"no candidate could be made and measured ({why})", "check the labels and the data")
    allowed = [one for one in measured if max_loss is None or is_at_most(one.loss, max_loss)]
    left = [one for one in allowed if not any(_beats(other, one, compared) for other in allowed)]
    usable = [one for one in left if one.is_float or max_loss is not None or not one.trial.is_useless]
    held = [one for one in usable if one.cost.fits] or usable
    cut = [one for one in usable if one not in held and not one.is_float]
    floats = [one for one in held if one.is_float]
    good = [one for one in held if not one.is_float]
    alike, best = good, None
    if max_loss is None and good:
        first = min(good, key=lambda one: one.loss)
        alike = [one for one in good if one.low <= AS_GOOD or not _is_worse(one, first, compared)]
        best = min(alike, key=lambda one: one.order)
        good = [one for one in alike if one is best or one.is_as_near(best) or _is_as_good(one, best, compared)]
    if max_loss is None and floats:
        first = best or min(floats, key=lambda one: one.loss)
        floats = [one for one in floats if one is first or compared(one.name, first.name).interval.low <= AS_GOOD]
    if good and good[0].cost.counts_layers_alone:
        floats = []
    last = min(left or measured, key=lambda one: (one.loss, one.cost.order))
    kept = _cheapest([*good, *floats] or [last])
    int8 = [one for one in measured if not one.is_float]
    kinds = " or ".join(dict.fromkeys(one.trial.candidate.title for one in int8)) or INT8.title
    if kept.is_float:
        if cut and not good:
            other = _cheapest(cut)
            return Choice(kept.trial, _why_held(kept, other), other.trial)
        beaten = [one for one in int8 if one in allowed and (max_loss is not None or not one.trial.is_useless)]
        if good or beaten:
            other = _cheapest(good or beaten)
            useful = [one for one in int8 if max_loss is not None or not one.trial.is_useless]
            faster = [one for one in useful if one.cost.is_below(kept.cost)]
            if not good or not faster:
                return Choice(kept.trial, _why_no_gain(kept, other), other.trial)
            near = min(faster, key=lambda one: one.order)
            timed = near if max_loss is None else other
            return Choice(kept.trial, _why_not_faster(kept, other, near, max_loss), timed.trial)
        least = min(int8, key=lambda one: one.loss, default=None)
        return Choice(kept.trial, _why_no_int8(least, kinds, max_loss, samples), None if least is None else least.trial)
    if kept not in good:
        reason = _why_no_int8(kept, kinds, max_loss, samples)
    elif best is None:
        those = f"of those that lose at most {max_loss:g}{' and whose subgraphs a DLA core holds' if cut else ''}"
        reason = f"{_why_cheapest(kept, [*good, *floats], those)}; it loses {kept.loss:.4f}"
    else:
        reason = _why_int8(kept, best, [*good, *floats], (alike, cut), kinds)
    half = next((one for one in measured if one.is_float), None)
    if half is not None and kept.cost.microseconds is not None and half.cost.microseconds is not None:
        own, its = (f"{time / 1000:.3f}" for time in (kept.cost.microseconds, half.cost.microseconds))
        reason += f"; {own} ms by the forecast, {half.name} {its}"
    names = [one.name for one in int8 if one in allowed and one not in left]
    reason += f"; left out, as another one beats it: {', '.join(names)}" if names else ""
    return Choice(kept.trial, reason, None if half is None else half.trial)


def _beats(other: _Measured, one: _Measured, compared: Compared) -> bool:
    """Whether a trial is cheaper than another one beyond what forecasts tell, and loses less."""
    if one.cost.counts_layers_alone or not other.cost.is_below(one.cost) or _is_worse(other, one, compared):
        return False
    if one.cost.fits and not other.cost.fits:
        return False
    less = other.counted <= one.counted if other.is_float else other.counted < one.counted
    return less or _is_worse(one, other, compared)


def _cheapest(found: Sequence[_Measured]) -> _Measured:
    """The nearest to FP32 of those that cost no more than the cheapest one, within what a forecast can tell."""
    cheapest = min(found, key=lambda one: one.cost.order)
    return min((one for one in found if not cheapest.cost.is_below(one.cost)), key=lambda one: one.order)


def _is_worse(one: _Measured, other: _Measured, compared: Compared) -> bool:
    """Whether figures tell that it loses more, beyond their interval."""
    return one is not other and compared(one.name, other.name).interval.low > 0


def _is_as_good(one: _Measured, other: _Measured, compared: Compared) -> bool:
    """Whether figures tell that it loses next to nothing more, with all of their interval."""
    return compared(one.name, other.name).interval.high <= AS_GOOD


def _why_no_gain(kept: _Measured, int8: _Measured) -> str:
    """Why a model without INT8 is kept in place of INT8 whose loss is none too large."""
    half, cost, title = kept.cost, int8.cost, int8.trial.candidate.title
    if half.microseconds is None or cost.microseconds is None:
        return f"{title} {_gains(kept, int8)}: {cost.text()} ({int8.name}) against {half.text()}"
    times = f"{cost.microseconds / 1000:.3f} ms ({int8.name}) against {half.microseconds / 1000:.3f} ms"
    return f"{title} {_gains(kept, int8)} by the forecast, and is no more accurate: {times}"


def _why_not_faster(kept: _Measured, int8: _Measured, near: _Measured, most: float | None) -> str:
    """Why a model without INT8 is kept where there is faster INT8, which may lose more."""
    which = "as accurate as the best" if most is None else f"that loses at most {most:g}"
    way = f"; {_all_the_same(near)}" if most is None else ""
    return (
        f"{int8.trial.candidate.title} {which} {_gains(kept, int8)} by the forecast: {_cost_and_loss(int8)}, against "
        f"{_cost_and_loss(kept)}; what is faster may lose more: {_cost_and_loss(near)}{way}"
    )


def _all_the_same(one: _Measured) -> str:
    """How to keep a model that loses more than it gains."""
    return f"--max-loss {max(math.ceil(one.loss * 100), 1) / 100:g} keeps it all the same"


def _gains(kept: _Measured, int8: _Measured) -> str:
    """That a quantized model costs no less, or less by what a forecast does not tell."""
    half, cost = kept.cost.figure, int8.cost.figure
    if half is not None and cost is not None and cost < half:
        return f"gains less than {_SAME} of {'bytes' if kept.cost.microseconds is None else 'time'}"
    return "costs no less" if None in (kept.cost.microseconds, int8.cost.microseconds) else "gains no time"


def _cost_and_loss(one: _Measured) -> str:
    time = one.cost.microseconds
    cost = one.cost.text() if time is None else f"{time / 1000:.3f} ms"
    return f"{cost} ({one.name}, loss {one.loss:.4f})"


def _why_held(kept: _Measured, other: _Measured) -> str:
    """Why it goes before another one, whose build may stop."""
    best = _what_is_best(kept, other)
    return f"{other.name}, {best}, has more subgraphs than a DLA core holds: its build may stop"


def _why_no_int8(best: _Measured | None, kinds: str, most: float | None, samples: int | None) -> str:
    """Why the INT8 that loses least is not good enough."""
    if best is None:
        return f"no candidate in {kinds} could be made"
    if most is None:
        useless = USELESS_WITHOUT_LABELS.get(best.trial.metric, USELESS)
        best_of = f"{best.trial.candidate.title} at its best ({best.name})"
        why = f"{best_of} loses {best.loss:.4f}, surely more than {useless:g}"
        return f"{why}; {_all_the_same(best)}"
    where = "" if samples is None else f" on the {counted(samples, 'sample')} used to choose"
    reason = f"no candidate in {kinds} loses at most {most:g}{where}; the best ({best.name}) loses {best.loss:.4f}"
    if not is_at_most(best.low, most) and best.is_sure:
        return reason
    high = best.trial.loss.interval.high if best.trial.loss is not None else math.nan
    span = f" (95 %: {Interval(best.low, high).text()})" if best.is_sure else ""
    return f"{reason}{span}, so these samples do not decide: give more --data"


def _why_int8(
    kept: _Measured,
    best: _Measured,
    left: Sequence[_Measured],
    others: tuple[Sequence[_Measured], Sequence[_Measured]],
    kinds: str,
) -> str:
    """Why INT8, or FP8, is kept of what is left where no largest loss was named.

    The others are those whose loss is alike, and those that no DLA core holds.
    """
    alike, cut = others
    nearest = min((*alike, *cut), key=lambda one: one.order)
    if nearest in cut:
        return _why_held(kept, nearest)
    if kept is best:
        least = min(one.trial.loss.value for one in alike if one.trial.loss is not None)
        compared = kept.cost.figure is not None and any(one is not best for one in left)
        return (
            f"the nearest to FP32 of those in {kinds} that no other beats and whose loss equals their least one within "
            f"noise ({least:.4f})" + (f"; none that is as good costs less by more than {_SAME}" if compared else "")
        )
    those = f"of those in {kinds} that are as good as {best.name}, {_what_is_best(kept, best)}"
    return _why_cheapest(kept, left, those)


def _why_cheapest(kept: _Measured, left: Sequence[_Measured], those: str) -> str:
    """That it is the cheapest of what is left, or the nearest to FP32 of those that cost as much as the cheapest."""
    cheapest = min(left, key=lambda one: one.cost.order)
    word = "cheapest" if kept.cost.microseconds is None else "fastest"
    if kept.cost.figure in (None, cheapest.cost.figure):
        return f"the {word} {those}"
    as_much = "move as many bytes" if kept.cost.microseconds is None else "take as long"
    return f"the nearest to FP32 {those}, and that {as_much} as the {word} ({cheapest.name}) within {_SAME}"


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
    def is_float(self) -> bool:
        return self.trial.candidate.is_float

    @property
    def low(self) -> float:
        """The least that it may lose, by its interval."""
        return min(self.trial.low, self.loss)

    @property
    def is_sure(self) -> bool:
        """Whether there is an interval of its loss."""
        return self.trial.loss is not None and self.trial.loss.interval.known

    @property
    def counted(self) -> float:
        """Its loss as the table shows it; none of a model without INT8 that does not surely lose some."""
        return 0.0 if self.is_float and self.is_sure and self.low <= 0 else round(self.loss, 4)

    @property
    def change(self) -> float:
        """How far its answers lie from FP32's."""
        return self.loss if self.trial.change is None else self.trial.change

    @property
    def order(self) -> tuple[float, float, tuple[float, float, int]]:
        """What orders trials of the same cost, the best first; models without INT8 that lose none are equally near."""
        near = 0.0 if self.is_float and not self.counted else self.change
        return (near, self.counted, self.cost.order)

    def is_as_near(self, other: _Measured) -> bool:
        """Whether its answers lie as near to FP32's, for all that matters."""
        return self.change <= other.change * (1 + AS_NEAR)
