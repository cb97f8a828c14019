# SPDX-License-Identifier: Apache-2.0
"""Which operators hurt in INT8, and which few of them are worth keeping in float.

First every operator by itself (the shadow pass), then, for those that lose most, the outputs of the whole network on
calibration images with all but that operator in INT8, and with that one alone: local loss ranks badly, for a network
forgives much of it and multiplies the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdqtool.calibration.choose import Source
from qdqtool.calibration.loss import Yardstick
from qdqtool.calibration.roofline import Device, Work, load_device, work_of
from qdqtool.calibration.shadow import Trial, shadow_pass
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, make_plan
from qdqtool.match.restrict import activation_sites, share_scales
from qdqtool.passes.insert import insert_pairs
from qdqtool.scales import Scale

# `auto`: at most this share of the multiply-adds stays in float, and each operator that does must take this share of
# the loss that is left with it: a loss that is spread evenly is nothing that a few operators could mend.
AUTO_MACS = 0.03
AUTO_GAIN = 0.2
# Below this loss at the outputs there is nothing to mend: no figure of a labelled model was seen to gain, and what is
# kept costs conversions around it.
AUTO_FLOOR = 0.005
# A head that loses less at its own output takes that little away from the outputs, too: nothing multiplies it behind.
_SILENT = 0.001
# Operators that are tried end to end: a tenth of all, but no fewer than some and no more than many.
_TENTH, _FEWEST, _MOST = 0.1, 8, 40
# Samples of an end to end run: enough to rank by, since each one holds thousands of outputs.
OUTPUT_SAMPLES = 4


@dataclass(frozen=True)
class Quantised:
    """A model, where its pairs stand, and their scales.

    Attributes:
        source: the plain model and the samples.
        options: where the points are.
        cuts: tensors that got a pair of their own.
        scales: of every point.
        all_zero: tensors that held nothing but zeros and have no scale; see `make_plan`.
    """

    source: Source
    options: PlanOptions
    cuts: tuple[str, ...]
    scales: Mapping[str, Scale]
    all_zero: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Finding:
    """One weighted operator.

    Attributes:
        node: its first output.
        name: what to call it.
        op: what it is.
        local: share of its signal that is lost at its own output.
        work: what it does.
        share: of the multiply-adds of all weighted operators.
        without: loss at the outputs with all in INT8 but this one; None where it was not run.
        only: loss at the outputs with this one alone in INT8; None likewise.
    """

    node: str
    name: str
    op: str
    local: float
    work: Work
    share: float
    without: float | None = None
    only: float | None = None


@dataclass(frozen=True)
class Survey:
    """Every operator, those that lose most first, and the loss at the outputs with all of them in INT8."""

    findings: tuple[Finding, ...]
    loss: float


@dataclass(frozen=True)
class Kept:
    """An operator that stays in float: why, and the loss at the outputs before and after."""

    finding: Finding
    before: float
    after: float

    @property
    def reason(self) -> str:
        """A sentence for the plan."""
        return (
            f"in float it takes the loss at the outputs from {self.before:.4g} to {self.after:.4g} on calibration "
            f"images, for {self.finding.share:.2%} of the multiply-adds"
        )


def survey(quantised: Quantised, *, ends: bool = True) -> Survey:
    """Rank the operators of a model.

    Args:
        quantised: the model and what was decided about it.
        ends: whether those that lose most are also run end to end.

    Raises:
        QdqError: the model has no float32 output; what `shadow_pass` and `OrtActivations` refuse.
    """
    bench = _Bench(quantised)
    findings = bench.local()
    if ends:
        chosen = {one.node for one in _shortlist(findings, bench.plan)}
        findings = [bench.ends(one) if one.node in chosen else one for one in findings]
    return Survey(tuple(findings), bench.loss(set()))


def keep_most_harmful(quantised: Quantised, count: int) -> list[Kept]:
    """The operators that, kept in float, take away most of the loss at the outputs, one after the other.

    Each is the best of the shortlist given those before it; none is kept that takes nothing away.
    """
    return _greedy(quantised, lambda one, gain: gain, lambda kept, best, left: len(kept) < count)


def keep_where_concentrated(quantised: Quantised, device: Device | None = None) -> list[Kept]:
    """A few operators, best gain per microsecond first, while each gains enough and all stay within `AUTO_MACS`."""
    where = device or load_device()

    def worth(one: Finding, gain: float) -> float:
        return gain / one.work.extra_microseconds(where)

    return _greedy(
        quantised,
        worth,
        lambda kept, best, left: left > AUTO_FLOOR,
        loud=_SILENT,
        fits=lambda one, kept: _share(kept) + one.share <= AUTO_MACS,
        enough=lambda one: one.before - one.after >= AUTO_GAIN * one.before,
    )


def keep_within_budget(quantised: Quantised, budget: float, device: Device | None = None) -> list[Kept]:
    """The cheapest operators by gain per microsecond until the loss at the outputs is within the budget."""
    where = device or load_device()
    return _greedy(
        quantised,
        lambda one, gain: gain / one.work.extra_microseconds(where),
        lambda kept, best, left: left > budget,
    )


def _share(kept: Sequence[Kept]) -> float:
    return math.fsum(one.finding.share for one in kept)


def _greedy(
    quantised: Quantised,
    worth: Callable[[Finding, float], float],
    goes_on: Callable[[Sequence[Kept], Kept, float], bool],
    loud: float = 0.0,
    fits: Callable[[Finding, Sequence[Kept]], bool] = lambda one, kept: True,
    enough: Callable[[Kept], bool] = lambda one: True,
) -> list[Kept]:
    """Keep the operator of the most worth, measure all others again, and so on."""
    bench = _Bench(quantised)
    left = _shortlist(bench.local(), bench.plan, loud)
    loss = bench.loss(set())
    kept: list[Kept] = []
    while left:
        floats = {one.finding.node for one in kept}
        tried = [Kept(one, loss, bench.loss(floats | {one.node})) for one in left if fits(one, kept)]
        tried = [one for one in tried if one.after < one.before and enough(one)]
        if not tried:
            break
        best = max(tried, key=lambda one: (worth(one.finding, one.before - one.after), one.finding.node))
        if not goes_on(kept, best, loss):
            break
        kept.append(best)
        loss = best.after
        left = [one for one in left if one.node != best.finding.node]
    return kept


def _shortlist(findings: Sequence[Finding], plan: Plan, loud: float = 0.0) -> list[Finding]:
    """The tenth that loses most by itself, and the heads that are loud: what they lose nobody behind can forgive."""
    count = min(max(math.ceil(_TENTH * len(findings)), _FEWEST), _MOST)
    heads = {head.key for head in plan.heads}
    return [one for n, one in enumerate(findings) if n < count or (one.node in heads and one.local >= loud)]


class _Bench:
    """The model on few samples, and its outputs with any operators in float."""

    def __init__(self, quantised: Quantised) -> None:
        self._quantised = quantised
        source = quantised.source
        self._proto, self._folder = source.proto, source.folder
        self.view = GraphView(source.proto.graph, source.folder)
        self.plan = make_plan(self.view, quantised.options, cuts=quantised.cuts, all_zero=quantised.all_zero)
        self._scales = share_scales(self.plan, quantised.scales, quantised.all_zero)
        self._float = set(self.plan.float_nodes)
        few = source.samples[:OUTPUT_SAMPLES]
        self._yardstick = Yardstick.of(source.proto, source.folder, few, source.provider, source.where)
        self._operators = sorted({read.node for point in self.plan.weights for read in point.reads})

    def local(self) -> list[Finding]:
        """Every INT8 operator, those that lose most first."""
        source = self._quantised.source
        felt = shadow_pass(source.proto, source.folder, source.samples, self._trials(), source.provider, source.where)
        work = work_of(source.proto, source.folder, source.samples[0], self._operators, source.provider, source.where)
        total = sum(one.macs for one in work.values()) or 1
        findings = []
        for key in self._operators:
            node, one = self.view.producer[key], felt.get(key)
            lost = float(one.error[0] / one.signal) if one is not None and one.heard else 0.0
            findings.append(Finding(key, node.name, node.op, lost, work[key], work[key].macs / total))
        return sorted(findings, key=lambda one: (-one.local, self.view.level_of(one.node), one.node))

    def _trials(self) -> list[Trial]:
        points = {point.tensor for point in self.plan.activations}
        axes = {read.node: point.axis for point in self.plan.weights for read in point.reads}
        trials = []
        for key in self._operators:
            sites = activation_sites(self.view, self.view.producer[key], points)
            bits = [self._scales[name].bits for name in sorted(sites) if name in self._scales]
            if bits:
                trials.append(Trial(key, (np.float32(max(bits)),), axes[key]))
        return trials

    def ends(self, finding: Finding) -> Finding:
        """The finding with both runs end to end."""
        others = set(self._operators) - {finding.node}
        return Finding(**{**vars(finding), "without": self.loss({finding.node}), "only": self.loss(others)})

    def loss(self, floats: Collection[str]) -> float:
        """At the outputs, with some operators in float beside those that are so anyway."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        view = GraphView(proto.graph, self._folder)
        what = self._quantised
        stay = self._float | set(floats)
        plan = make_plan(view, what.options, floats=stay, cuts=what.cuts, all_zero=what.all_zero)
        insert_pairs(view, plan, self._scales)
        return self._yardstick.loss(proto, self._folder)
