# SPDX-License-Identifier: Apache-2.0
"""Which operators stay in float beside INT8: see `ranked_search.py` for the order, `policies.py` for what is allowed.

What a search costs is bounded by multiply-adds, never by seconds, so that the same input gives the same result on any
machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qdqtool.match.plan import Plan
from qdqtool.measuring.budget import MacBudget
from qdqtool.measuring.operator_groups import operator_groups
from qdqtool.measuring.ranked_search import Part, fewest, nodes_of, rank_alone
from qdqtool.measuring.search_result import FloatStep, SearchResult
from qdqtool.measuring.sensitivity_runner import OperatorLoss, SensitivityRunner
from qdqtool.progress import silent, steps

# Single operators that are measured end to end: a tenth of all, but no fewer than some and no more than many.
_TENTH, _FEWEST, _MOST = 0.1, 8, 40
GROUPS = 32  # that are measured, the cheapest first
# Where the goal is missed, the fewest operators that come as near to it: what they lose more is within this share.
_NEAR = 0.02


_ANY = MacBudget()


@dataclass(frozen=True)
class FloatLimits:
    """What an attempt may keep in float, and what it must bring.

    Attributes:
        share: of the multiply-adds, at most.
        gain: of the loss, at least, that all of them take away.
        each: of the loss, at least, that each of them causes alone.
        above: loss from which on the attempt is made.
        count: operators, at most; None for any number.
    """

    share: float = math.inf
    gain: float = 0.0
    each: float = 0.0
    above: float = 0.0
    count: int | None = None


@dataclass(frozen=True)
class SearchPolicy:
    """When to search, by what cost, and within which limits.

    Attributes:
        goal: loss at the outputs from which on nothing more is kept.
        attempts: limits, tried in this order until one of them brings what it must.
        budget: multiply-adds that all runs may cost, the first one not counted.
        weighs_cost: whether operators are ranked by the loss for each multiply-add; else by the loss.
        seeks_goal: whether the goal was asked for: it is said where it is missed, and shorter prefixes are run first.
    """

    goal: float
    attempts: tuple[FloatLimits, ...]
    budget: MacBudget = _ANY
    weighs_cost: bool = True
    seeks_goal: bool = False


def search(runner: SensitivityRunner, policy: SearchPolicy) -> SearchResult:
    """Rank operators by what each loses alone for its cost, and keep the fewest first ones that reach the goal."""
    before = runner.base_loss()
    if before <= policy.goal or not policy.attempts:
        return SearchResult((), before, len(runner.operators), runs=runner.runs, form=runner.form(()))
    return _Search(runner, policy, before).result()


def shortlist_length(operators: int) -> int:
    """The length of the shortlist of so many operators, without heads."""
    return min(max(math.ceil(_TENTH * operators), _FEWEST), _MOST)


def shortlist(findings: Sequence[OperatorLoss], plan: Plan) -> list[OperatorLoss]:
    """The tenth that loses most by itself, and the heads: nobody downstream can forgive what they lose."""
    count = shortlist_length(len(findings))
    heads = {head.key for head in plan.heads}
    return [one for n, one in enumerate(findings) if n < count or one.node in heads]


def measure_groups(
    runner: SensitivityRunner, findings: Sequence[OperatorLoss], say: Callable[[str], None] = silent
) -> list[FloatStep]:
    """The loss with each group in float and all else in INT8, the least first; the `GROUPS` cheapest groups only."""
    by_node = {one.node: one for one in findings}
    before = runner.base_loss()
    groups = operator_groups(runner.view, runner.plan.heads, runner.operators, runner.grids())
    tried = [FloatStep(tuple(by_node[node] for node in group.nodes), before, before, group.label) for group in groups]
    found, cheapest = [], sorted(tried, key=lambda one: (one.share, one.nodes))[:GROUPS]
    for number, step in enumerate(steps(cheapest, "group"), 1):
        after = runner.loss(step.nodes)
        if after is not None:
            found.append(replace(step, after=after))
        loss = "-" if after is None else f"{after:.4g}"
        say(f"{step.label}: loss with all of these in float {loss}, group {number} of {len(cheapest)}")
    return sorted(found, key=lambda one: (one.after, one.share, one.nodes))


class _Search:
    """One search: what was measured so far."""

    def __init__(self, runner: SensitivityRunner, policy: SearchPolicy, before: float) -> None:
        self.runner, self.policy, self.before = runner, policy, before
        self.findings = {one.node: one for one in runner.local()}
        self.most_macs = runner.spent + policy.budget.macs
        self.alone: dict[str, Part] = {}
        self.beyond_macs: set[str] = set()
        self.without_scale: set[str] = set()

    def result(self) -> SearchResult:
        step = None
        for limits in self.policy.attempts:
            if self.before >= limits.above:
                step = self._attempt(limits)
            if step is not None:
                break
        loss = self.before if step is None else step.after
        missed = self.policy.seeks_goal and loss > self.policy.goal
        known = self.alone.keys() | self.beyond_macs | self.without_scale
        counts = (
            (len(self.findings) - len(known), "that lose less by themselves or have too many multiply-adds"),
            (len(self.beyond_macs - self.alone.keys()), "beyond the time limit of the search"),
            (len(self.without_scale), "that need scales that were not calibrated"),
        )
        return SearchResult(
            () if step is None else (step,),
            self.before,
            len(self.findings),
            len(self.alone),
            self.runner.runs,
            tuple(f"{count} {what}" for count, what in counts if count),
            missed,
            self.runner.form(() if step is None else step.nodes),
        )

    def _attempt(self, limits: FloatLimits) -> FloatStep | None:
        """The fewest first operators within the limits that reach the goal, or come as near as all of them."""
        candidates = [one for one in self.findings.values() if one.share <= limits.share]
        if (limits.each or limits.count is not None) and not self.runner.is_relative:
            candidates = shortlist(candidates, self.runner.plan)
        if limits.each and not self._is_worth_ranking([one.node for one in candidates], limits.each):
            return None
        ranked = [one for one in self._ranked(candidates) if one.alone >= limits.each * self.before]
        ranked = self._gaining(self._runnable(self._within(ranked, limits)), limits)
        if not ranked:
            return None
        lowest = self.runner.loss(nodes_of(ranked)) or 0.0
        near = self.policy.goal if lowest <= self.policy.goal else lowest * (1 + _NEAR)
        return self._step(fewest(ranked, near, self.runner))

    def _runnable(self, parts: list[Part]) -> list[Part]:
        """The parts, without those whose float form lacks a scale; each is looked at where not all can be float."""
        if self.runner.loss(nodes_of(parts)) is not None:
            return parts
        found = [one for one in parts if self.runner.loss(one.nodes) is not None]
        self.without_scale.update(set(nodes_of(parts)).difference(nodes_of(found)))
        return found

    def _ranked(self, candidates: Sequence[OperatorLoss]) -> list[Part]:
        """The candidates by what they lose alone, as many as the multiply-adds allow, those first that lose most."""
        every = set(self.findings)
        new = []
        left = self.most_macs - self.runner.spent
        for one in candidates:
            left -= self.runner.least_cost(every - {one.node})
            if left < 0:
                self.beyond_macs.add(one.node)
            elif one.node not in self.alone:
                new.append(Part((one.node,), self._cost(one)))
        if new:
            measured = rank_alone(self.runner, new, every)
            self.runner.keep(())
            self.alone |= {one.nodes[0]: one for one in new} | {one.nodes[0]: one for one in measured}
        found = [self.alone[one.node] for one in candidates if one.node in self.alone]
        return sorted((one for one in found if one.alone), key=lambda one: (-one.alone / one.cost, one.nodes))

    def _within(self, ranked: Sequence[Part], limits: FloatLimits) -> list[Part]:
        """In their order those within the limits; one operator at least is left in INT8."""
        found, left = [], limits.share
        for one in ranked:
            share = self.findings[one.nodes[0]].share
            if share <= left:
                found.append(one)
                left -= share
        return found[: min(len(self.findings) - 1, len(found) if limits.count is None else limits.count)]

    def _is_worth_ranking(self, nodes: Sequence[str], gain: float) -> bool:
        """Whether all of them in float bring enough, and one of them can be ranked after that run."""
        left = self.most_macs - self.runner.spent - self.runner.cost(nodes)
        if nodes and self.runner.least_cost(set(self.findings) - {nodes[0]}) > left:
            self.beyond_macs.update(nodes)
            return False
        return self._gains(nodes, gain)

    def _gaining(self, ranked: list[Part], limits: FloatLimits) -> list[Part]:
        """The longest prefix that takes enough of the loss away.

        More in float does not always lose less: before a goal that was asked for takes more multiply-adds, as many
        shorter prefixes are run as a bisection would take.
        """
        shorter = len(ranked).bit_length() if self.policy.seeks_goal and limits.share < math.inf else 0
        prefixes = (ranked[: len(ranked) - count] for count in range(shorter + 1))
        gain = max(limits.each, limits.gain)
        return next((one for one in prefixes if one and self._gains(nodes_of(one), gain)), [])

    def _gains(self, nodes: Sequence[str], gain: float) -> bool:
        """Whether some operators in float take a share of the loss away; not where that may not be run any more."""
        if self.runner.spent + self.runner.cost(frozenset(nodes)) > self.most_macs:
            self.beyond_macs.update(nodes)
            return False
        after = self.runner.loss(nodes)
        return after is not None and after < self.before and self.before - after >= gain * self.before

    def _step(self, parts: Sequence[Part]) -> FloatStep | None:
        after = self.runner.loss(nodes_of(parts))
        if after is None:
            return None
        label = f"the {len(parts)} operators that lose most for their cost" if len(parts) > 1 else ""
        return FloatStep(tuple(self.findings[node] for node in nodes_of(parts)), self.before, after, label)

    def _cost(self, one: OperatorLoss) -> float:
        return max(one.share, 1e-6) if self.policy.weighs_cost else 1.0
