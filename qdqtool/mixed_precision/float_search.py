# SPDX-License-Identifier: Apache-2.0
"""The greedy search for operators that stay in float: single ones first, groups of them where those do not help.

What a step may cost and must bring is a `SearchPolicy`; `policies.py` has one for each way to ask. What a search costs
is bounded by counts and multiply-adds, never by seconds, so the same input gives the same result on any machine.

Where trying each would cost more than the search may, several operators in float are taken to win at least what each of
them wins alone: they are tried together first, and those of a set that takes too little are not tried one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from qdqtool.forecasting.devices import Device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.match.plan import Plan
from qdqtool.mixed_precision.float_ranking import first_within, rank_alone, shortest_start
from qdqtool.mixed_precision.operator_groups import OperatorGroup, blocks_of, operator_groups, operator_runs
from qdqtool.mixed_precision.search_result import FloatStep, SearchResult
from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss, SensitivityRunner
from qdqtool.progress import counting, silent, steps

# Single operators that are tried end to end: a tenth of all, but no fewer than some and no more than many.
_TENTH, _FEWEST, _MOST = 0.1, 8, 40
_GROUP_ROUNDS = 3  # rounds of groups
GROUPS = 32  # of one round, the cheapest first
# A step that took away less than this share of the loss at its turn is undone where the goal is missed all the same, if
# what is left loses no more than this share more.
_GAINLESS = 0.02


@dataclass(frozen=True)
class StepLimits:
    """What one step may cost and must bring.

    Attributes:
        share: of the multiply-adds, at most, together with what is kept already.
        gain: of the loss that is left, at least; a step always takes some of it away.
    """

    share: float = math.inf
    gain: float = 0.0


@dataclass(frozen=True)
class SearchPolicy:
    """When to go on, and which step is the best.

    Attributes:
        goal: loss at the outputs from which on nothing more is kept.
        count: how many operators may be kept; None for any number.
        device: steps are compared by the loss they take away per microsecond that they cost here; None: by the loss.
        least_head: a head that loses less at its own output is not tried for being a head.
        single: limits of a step that keeps one operator.
        group: limits of a step that keeps a group.
        groups_above: loss that is left above which groups are tried.
        groups_first_only: whether groups are tried only while no operator is kept.
        seeks_goal: whether groups, runs of operators among them, are tried beside single operators in the first round,
            too, and the cheapest step that reaches the goal is taken; with the goal missed, the smallest run of blocks
            is sought that would.
        macs: multiply-adds that all runs may cost, the first one not counted.
    """

    goal: float = 0.0
    count: int | None = None
    device: Device | None = None
    least_head: float = 0.0
    single: StepLimits = StepLimits()
    group: StepLimits = StepLimits()
    groups_above: float = 0.0
    groups_first_only: bool = True
    seeks_goal: bool = False
    macs: float = math.inf


def search(runner: SensitivityRunner, policy: SearchPolicy) -> SearchResult:
    """Keep the best step, measure all others again, and so on; see `SearchPolicy`.

    At most `shortlist` squared runs for single operators, and `GROUPS` for each of `_GROUP_ROUNDS` rounds of groups.
    """
    before = runner.base_loss()
    if before <= policy.goal or policy.count == 0:
        return SearchResult((), before, len(runner.operators), runs=runner.runs, form=runner.form(()))
    return _Search(runner, policy, before).result()


def shortlist(findings: Sequence[OperatorLoss], plan: Plan, least_head: float = 0.0) -> list[OperatorLoss]:
    """The tenth that loses most by itself, and the heads that lose enough: nobody behind can forgive what they lose."""
    count = min(max(math.ceil(_TENTH * len(findings)), _FEWEST), _MOST)
    heads = {head.key for head in plan.heads}
    return [one for n, one in enumerate(findings) if n < count or (one.node in heads and one.local >= least_head)]


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


def _nodes(steps: Sequence[FloatStep]) -> list[str]:
    return [node for step in steps for node in step.nodes]


@dataclass
class _SearchReport:
    """What was tried and what was not, and why: first outputs of operators and labels of groups."""

    groups: set[str] = field(default_factory=set)
    too_dear: set[str] = field(default_factory=set)
    beyond_count: set[str] = field(default_factory=set)
    beyond_macs: set[str] = field(default_factory=set)
    together: set[str] = field(default_factory=set)
    without_scale: set[str] = field(default_factory=set)

    def phrases(self, alone: int, share: float) -> tuple[str, ...]:
        """What was not tested, with `alone` operators off the list and groups of up to a share of the multiply-adds."""
        counts = (
            (alone, "single operators with a smaller loss"),
            (len(self.together), "operators and groups in sets that reduce the loss too little"),
            (len(self.too_dear - self.groups), f"groups with more than {share:.0%} of the multiply-adds"),
            (len(self.beyond_count - self.groups), f"groups beyond the limit of {GROUPS} runs"),
            (len(self.beyond_macs - self.groups), "beyond the time limit of the search"),
            (len(self.without_scale), "that need scales that were not calibrated"),
        )
        return tuple(f"{count} {what}" for count, what in counts if count)


class _Search:
    """One search: what is kept so far.

    A candidate is a `FloatStep` whose losses are not known yet; a measured one has the loss before and after it.
    """

    def __init__(self, runner: SensitivityRunner, policy: SearchPolicy, before: float) -> None:
        self.runner, self.policy, self.before = runner, policy, before
        findings = runner.local()
        self.findings = {one.node: one for one in findings}
        self.singles = [self._candidate([one.node]) for one in shortlist(findings, runner.plan, policy.least_head)]
        self.most_macs = runner.spent + policy.macs
        self.steps: list[FloatStep] = []
        self.group_rounds = 0
        self.ranked: FloatStep | None = None
        self.report = _SearchReport()

    def result(self) -> SearchResult:
        with counting("round") as rounds:
            while self.loss > self.policy.goal and self.left != 0:
                step = self._best_step()
                if step is None:
                    break
                self._take(step)
                rounds.advance()
        missed = self.policy.seeks_goal and self.loss > self.policy.goal
        if missed and self.ranked is not None:
            self.steps = self.steps[:1]  # what followed did not lead to the goal, and costs more than half
        reaching = self._reaching() if missed else None
        if reaching is not None and self._affordable(reaching, self.policy.group):
            self.steps.append(reaching)
            reaching, missed = None, False
        if missed:
            self._undo_gainless()
        return SearchResult(
            tuple(self.steps),
            self.before,
            len(self.findings),
            len(self.singles),
            len(self.report.groups),
            self.runner.runs,
            self.report.phrases(len(self.findings) - len(self.singles), self.policy.group.share),
            missed,
            reaching,
            self.runner.form(self.kept),
        )

    @property
    def loss(self) -> float:
        return self.steps[-1].after if self.steps else self.before

    @property
    def kept(self) -> frozenset[str]:
        return frozenset(node for step in self.steps for node in step.nodes)

    @property
    def left(self) -> int | None:
        """How many operators may still be kept; None for any number."""
        return None if self.policy.count is None else self.policy.count - len(self.kept)

    # ------------------------------------------------------------------ steps

    def _best_step(self) -> FloatStep | None:
        if not self.policy.seeks_goal or self.steps:
            return self._best_single() or self._best_group()
        self.group_rounds += 1
        singles = self._measured(self.singles, self.policy.single)
        best = self._cheapest([*singles, *self._measured(self._groups(), self.policy.group)])
        ranked = self._ranked_step()
        if ranked is None or (best is not None and best.after <= self.policy.goal and best.share <= ranked.share):
            return best
        self.ranked = ranked
        return ranked

    def _cheapest(self, tried: Sequence[FloatStep]) -> FloatStep | None:
        """The step that reaches the goal for the least; where none does, the best."""
        reaching = [one for one in tried if one.after <= self.policy.goal]
        return self._best(reaching, lambda one: -self._cost(one)) if reaching else self._best(tried)

    def _ranked_step(self) -> FloatStep | None:
        """The fewest operators that reach the goal, in the order of what each loses alone in INT8 for its cost.

        Where those that are affordable miss it, the fewest that come as near to it; None where they win nothing.
        """
        ranked = rank_alone(self.runner, list(self.findings.values()))
        self.runner.keep(())
        ranked = first_within(ranked, self.policy.group.share)[: len(self.findings) - 1]
        lowest = self._loss_of(ranked) if ranked else None
        if lowest is None or lowest >= self.loss:
            return None
        near = max(self.policy.goal, lowest * (1 + _GAINLESS))
        first = ranked[: shortest_start(ranked, near, self._loss_of)]
        label = f"the {len(first)} operators that lose most for their multiply-adds" if len(first) > 1 else ""
        after = self._loss_of(first)  # known: all of them, or what was measured as near enough
        step = self._candidate([one.node for one in first], label)
        return None if after is None else replace(step, before=self.loss, after=after)

    def _loss_of(self, some: Sequence[OperatorLoss]) -> float | None:
        return self.runner.loss({one.node for one in some})

    def _best_single(self) -> FloatStep | None:
        limits, kept = self.policy.single, self.kept
        candidates = [one for one in self.singles if one.nodes[0] not in kept and self._affordable(one, limits)]
        if not limits.gain or not self._dear(candidates):
            return self._best(self._measured(candidates, limits))
        if self.runner.spent + self._least_cost(candidates) > self.most_macs:
            self.report.beyond_macs.update(one.nodes[0] for one in candidates)
            return None
        return self._best(self._worthwhile(candidates))

    def _least_cost(self, candidates: Sequence[FloatStep]) -> int:
        """Multiply-adds, at least, until the first single operator is measured by halves; see `_worthwhile`."""
        cost, middle = self.runner.least_cost({*self.kept, *_nodes(candidates)}), len(candidates) // 2
        if len(candidates) <= 1:
            return cost
        first, second = candidates[:middle], candidates[middle:]
        passed = self.runner.least_cost({*self.kept, *_nodes(first)})
        return cost + min(self._least_cost(first), passed + self._least_cost(second))

    def _worthwhile(self, candidates: Sequence[FloatStep]) -> list[FloatStep]:
        """Of single operators those that take enough away, by halves: a set that takes too little is left whole."""
        limits, middle = self.policy.single, len(candidates) // 2
        if len(candidates) <= 1:
            return self._measured(candidates, limits)
        together = self._candidate([one.nodes[0] for one in candidates])
        after = self._loss_with(together)
        if after is not None and not self._enough(after, limits):
            self.report.together.update(one.nodes[0] for one in candidates)
            return []
        return self._worthwhile(candidates[:middle]) + self._worthwhile(candidates[middle:])

    def _best_group(self) -> FloatStep | None:
        """Where single operators do not help any more: the group that does, if groups are to be tried."""
        if self.loss <= self.policy.groups_above or (self.policy.groups_first_only and self.steps):
            return None
        if self.group_rounds == _GROUP_ROUNDS:
            return None
        self.group_rounds += 1
        return self._cheapest(self._measured(self._groups(), self.policy.group))

    def _groups(self) -> list[FloatStep]:
        """The groups without what is kept already, the cheapest ones, larger ones first; the others are reported."""
        kept, found = self.kept, dict[tuple[str, ...], FloatStep]()
        for group in self._all_groups():
            nodes = tuple(node for node in group.nodes if node not in kept)
            if len(nodes) > 1 and (self.left is None or len(nodes) <= self.left):
                found.setdefault(nodes, self._candidate(nodes, group.label))
        affordable = [one for one in found.values() if self._affordable(one, self.policy.group)]
        self.report.too_dear.update({one.label for one in found.values()} - {one.label for one in affordable})
        ordered = sorted(affordable, key=lambda one: (one.share, one.nodes))
        self.report.beyond_count.update(one.label for one in ordered[GROUPS:])
        return ordered[:GROUPS][::-1]

    def _all_groups(self) -> list[OperatorGroup]:
        runner = self.runner
        found = operator_groups(runner.view, runner.plan.heads, runner.operators, runner.grids())
        return [*found, *operator_runs(runner.view, runner.operators)] if self.policy.seeks_goal else found

    def _take(self, step: FloatStep) -> None:
        self.steps.append(step)
        affordable = self.runner.spent + self.runner.cost_of_run(self.kept) < self.most_macs
        if self.loss > self.policy.goal and self.left != 0 and affordable:
            self.runner.keep(self.kept)

    def _undo_gainless(self) -> None:
        """Give back to INT8 what won next to nothing on a way that did not lead to the goal."""
        gaining = [one for one in self.steps if one.before - one.after >= _GAINLESS * one.before]
        if len(gaining) == len(self.steps):
            return
        after = self.runner.loss({node for step in gaining for node in step.nodes}) if gaining else self.before
        if after is None or after > self.loss * (1 + _GAINLESS):
            return
        self.steps = gaining
        if gaining:
            self.steps[-1] = replace(gaining[-1], after=after)

    # ------------------------------------------------------------------ candidates

    def _candidate(self, nodes: Sequence[str], label: str = "") -> FloatStep:
        return FloatStep(tuple(self.findings[node] for node in nodes), 0.0, 0.0, label)

    def _affordable(self, step: FloatStep, limits: StepLimits) -> bool:
        return math.fsum(one.share for one in (*self.steps, step)) <= limits.share

    def _measured(self, candidates: Sequence[FloatStep], limits: StepLimits) -> list[FloatStep]:
        """Those of the candidates that take enough of the loss away.

        Where all cost too much, none is tried within one that takes too little.
        """
        found, poor, dear = [], list[frozenset[str]](), self._dear(candidates)
        for one in steps(candidates, "candidate"):
            if dear and any(poor_one.issuperset(one.nodes) for poor_one in poor):
                self.report.together.add(one.title())
                continue
            after = self._loss_with(one)
            if after is not None and self._enough(after, limits):
                found.append(replace(one, before=self.loss, after=after))
            elif after is not None and limits.gain:
                poor.append(frozenset(one.nodes))
        return found

    def _loss_with(self, step: FloatStep) -> float | None:
        """With a candidate in float as well; None, which is reported, where it cannot be run or may not be any more."""
        floats = {*self.kept, *step.nodes}
        if not self._within_macs(floats):
            self.report.beyond_macs.update([step.label] if step.label else step.nodes)
            return None
        after = self.runner.loss(floats)
        if after is None:
            self.report.without_scale.update([step.label] if step.label else step.nodes)
        elif step.label:
            self.report.groups.add(step.label)
        return after

    def _dear(self, candidates: Sequence[FloatStep]) -> bool:
        """Whether trying each candidate costs more than the search may."""
        if self.policy.macs == math.inf:
            return False
        costs = (self.runner.least_cost, self.runner.cost)  # the second one takes a plan for each candidate
        tried = [{*self.kept, *one.nodes} for one in candidates]
        return any(self.runner.spent + sum(map(cost, tried)) > self.most_macs for cost in costs)

    def _within_macs(self, floats: frozenset[str] | set[str]) -> bool:
        return self.policy.macs == math.inf or self.runner.spent + self.runner.cost(floats) <= self.most_macs

    def _enough(self, after: float, limits: StepLimits) -> bool:
        return after < self.loss and self.loss - after >= limits.gain * self.loss

    # ------------------------------------------------------------------ the best

    def _best(self, steps: Sequence[FloatStep], worth: Callable[[FloatStep], float] | None = None) -> FloatStep | None:
        return max(steps, key=lambda one: ((worth or self._worth)(one), one.nodes), default=None)

    def _worth(self, step: FloatStep) -> float:
        gain = step.before - step.after
        return gain if self.policy.device is None else gain / self._cost(step)

    def _cost(self, step: FloatStep) -> float:
        if self.policy.device is None:
            return step.share
        times = LayerTimes(self.policy.device)
        return math.fsum(one.work.extra_microseconds(times) for one in step.findings)

    # ------------------------------------------------------------------ what would reach the goal

    def _reaching(self) -> FloatStep | None:
        """The cheaper of the shortest runs of blocks, from the input and from the outputs, that reach the goal.

        By bisection, as if each further block took some of the loss away; what is found was measured.
        """
        blocks = blocks_of(self.runner.view, self.runner.operators)
        ends = (self._shortest(take, len(blocks.blocks)) for take in (blocks.last, blocks.first))
        return min((one for one in ends if one is not None), key=lambda one: (one.share, one.nodes), default=None)

    def _shortest(self, take: Callable[[int], OperatorGroup], most: int) -> FloatStep | None:
        """The shortest run that reaches the goal and leaves something in INT8."""
        low, high = 0, most  # `high` of them reach it: then all are in float
        while high - low > 1:
            middle = (low + high) // 2
            loss = self.runner.loss({*self.kept, *take(middle).nodes})
            low, high = (low, middle) if loss is not None and loss <= self.policy.goal else (middle, high)
        group = take(high)
        step = self._candidate([node for node in group.nodes if node not in self.kept], group.label)
        after = self.runner.loss({*self.kept, *step.nodes})
        if after is None or after > self.policy.goal or len(step.nodes) + len(self.kept) >= len(self.findings):
            return None
        return replace(step, before=self.loss, after=after)
