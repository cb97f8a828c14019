# SPDX-License-Identifier: Apache-2.0
"""The greedy search for operators that stay in float: single ones first, groups of them where those do not help.

What a step may cost and must bring is a `SearchPolicy`; `policies.py` has one for each way to ask. The cost of a search
is bounded in runs, never in seconds, so the same input gives the same result on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qdqtool.match.plan import Plan
from qdqtool.mixed_precision.operator_groups import OperatorGroup, blocks_of, operator_groups
from qdqtool.mixed_precision.roofline import Device
from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss, SensitivityRunner

# Single operators that are tried end to end: a tenth of all, but no fewer than some and no more than many.
_TENTH, _FEWEST, _MOST = 0.1, 8, 40
# Groups of one round, the cheapest first, and rounds of groups.
_GROUPS, _GROUP_ROUNDS = 32, 3


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
        seeks_goal: whether, with the goal missed, the smallest run of blocks is sought that would reach it.
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


@dataclass(frozen=True)
class FloatStep:
    """Operators that stay in float together: one, or a group with its label; and the loss before and after."""

    findings: tuple[OperatorLoss, ...]
    before: float
    after: float
    label: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """First outputs of the operators."""
        return tuple(one.node for one in self.findings)

    @property
    def share(self) -> float:
        """Of the multiply-adds of all weighted operators."""
        return math.fsum(one.share for one in self.findings)

    @property
    def reason(self) -> str:
        """A sentence for the plan."""
        who = f"{self.label}, all in float, lower" if self.label else "in float it lowers"
        return (
            f"{who} the loss at the outputs from {self.before:.4g} to {self.after:.4g} on calibration images, "
            f"for {self.share:.2%} of the multiply-adds"
        )

    def title(self) -> str:
        """What the step is, in a message."""
        return self.label or self.findings[0].name

    def to_json(self) -> dict[str, object]:
        """Operators, loss and cost as JSON."""
        nodes = list(self.nodes)
        return {"nodes": nodes, "group": self.label, "loss": self.after, "share": self.share}


@dataclass(frozen=True)
class SearchResult:
    """What is kept, and what was tried.

    Attributes:
        steps: in the order in which they were taken.
        before: loss at the outputs with every operator in INT8 that may be.
        operators: how many those are.
        singles: how many operators were tried alone.
        groups: how many groups were tried.
        runs: of the model with pairs, in all.
        untried: what was not tried, a phrase each.
        missed: whether a goal that was asked for is not reached.
        reaching: operators that would reach the goal beside `steps`, though they cost more than a group may; None where
            it was reached, or only every operator in float would do.
    """

    steps: tuple[FloatStep, ...]
    before: float
    operators: int
    singles: int = 0
    groups: int = 0
    runs: int = 0
    untried: tuple[str, ...] = ()
    missed: bool = False
    reaching: FloatStep | None = None

    @property
    def loss(self) -> float:
        """At the outputs, with what is kept."""
        return self.steps[-1].after if self.steps else self.before

    @property
    def reasons(self) -> dict[str, str]:
        """First output of each operator that is kept -> why."""
        return {node: step.reason for step in self.steps for node in step.nodes}

    def summary(self) -> list[str]:
        """What is kept, what was tried and what was not, and what would reach the goal: a phrase each."""
        number = len(self.reasons)
        phrases = [
            f"{number} of {self.operators} operators kept in float" if number else "nothing was found to keep in float"
        ]
        if self.singles:
            groups = f" and {self.groups} groups" if self.groups else ""
            phrases.append(f"{self.runs} runs tried {self.singles} operators alone{groups}")
        if self.singles and self.untried:
            phrases.append(f"not tried: {', '.join(self.untried)}")
        if self.reaching is not None:
            one = self.reaching
            also = f" as well ({one.share:.0%} of the multiply-adds)"
            phrases.append(f"{one.label} in float{also} would bring it to {one.after:.4g}")
        elif self.missed:
            phrases.append("no run of blocks in float would reach it, short of every operator")
        return phrases

    def to_json(self) -> dict[str, object]:
        """The same as JSON."""
        reaching = self.reaching
        return {
            "before": self.before,
            "after": self.loss,
            "runs": self.runs,
            "operators": self.operators,
            "tried_alone": self.singles,
            "tried_groups": self.groups,
            "not_tried": list(self.untried),
            "steps": [step.to_json() for step in self.steps],
            "would_reach": None if reaching is None else reaching.to_json(),
        }


def search(runner: SensitivityRunner, policy: SearchPolicy) -> SearchResult:
    """Keep the best step, measure all others again, and so on; see `SearchPolicy`.

    At most `shortlist` squared runs for single operators, and `_GROUPS` for each of `_GROUP_ROUNDS` rounds of groups.
    """
    return _Search(runner, policy).result()


def shortlist(findings: Sequence[OperatorLoss], plan: Plan, least_head: float = 0.0) -> list[OperatorLoss]:
    """The tenth that loses most by itself, and the heads that lose enough: nobody behind can forgive what they lose."""
    count = min(max(math.ceil(_TENTH * len(findings)), _FEWEST), _MOST)
    heads = {head.key for head in plan.heads}
    return [one for n, one in enumerate(findings) if n < count or (one.node in heads and one.local >= least_head)]


def measure_groups(runner: SensitivityRunner, findings: Sequence[OperatorLoss]) -> list[FloatStep]:
    """The loss with each group in float and all else in INT8, the least first; the `_GROUPS` cheapest groups only.

    Args:
        runner: the model.
        findings: every operator of it.
    """
    by_node = {one.node: one for one in findings}
    before = runner.base_loss()
    groups = operator_groups(runner.view, runner.plan.heads, runner.operators, runner.grids())
    steps = [FloatStep(tuple(by_node[node] for node in group.nodes), before, before, group.label) for group in groups]
    found = []
    for step in sorted(steps, key=lambda one: (one.share, one.nodes))[:_GROUPS]:
        after = runner.loss(step.nodes)
        if after is not None:
            found.append(replace(step, after=after))
    return sorted(found, key=lambda one: (one.after, one.share, one.nodes))


class _Search:
    """One search: what is kept so far."""

    def __init__(self, runner: SensitivityRunner, policy: SearchPolicy) -> None:
        self.runner, self.policy = runner, policy
        findings = runner.local()
        self.findings = {one.node: one for one in findings}
        self.singles = [FloatStep((one,), 0.0, 0.0) for one in shortlist(findings, runner.plan, policy.least_head)]
        self.before = self.loss = runner.base_loss()
        self.steps: list[FloatStep] = []
        self.all_groups: list[OperatorGroup] | None = None
        self.group_rounds = 0
        self.tried_groups: set[str] = set()
        self.too_dear: set[str] = set()
        self.without_scale: set[str] = set()
        self.beyond_limit: set[str] = set()

    def result(self) -> SearchResult:
        while self.loss > self.policy.goal and self.left != 0:
            step = self._best_single() or self._best_group()
            if step is None:
                break
            self.steps.append(step)
            self.loss = step.after
        missed = self.policy.seeks_goal and self.loss > self.policy.goal
        reaching = self._reaching() if missed else None
        if reaching is not None and reaching.share + self._kept_share() <= self.policy.group.share:
            self.steps.append(reaching)
            reaching, missed = None, False
        return SearchResult(
            tuple(self.steps),
            self.before,
            len(self.findings),
            len(self.singles) if self.before > self.policy.goal and self.policy.count != 0 else 0,
            len(self.tried_groups),
            self.runner.runs,
            self._untried(),
            missed,
            reaching,
        )

    @property
    def kept(self) -> frozenset[str]:
        return frozenset(node for step in self.steps for node in step.nodes)

    @property
    def left(self) -> int | None:
        """How many operators may still be kept; None for any number."""
        return None if self.policy.count is None else self.policy.count - len(self.kept)

    # ------------------------------------------------------------------ steps

    def _best_single(self) -> FloatStep | None:
        kept = self.kept
        candidates = [one for one in self.singles if one.nodes[0] not in kept]
        return self._best(self._tried(candidates, self.policy.single))

    def _best_group(self) -> FloatStep | None:
        """Where single operators do not help any more: the group that does, if groups are to be tried."""
        if self.loss <= self.policy.groups_above or (self.policy.groups_first_only and self.steps):
            return None
        if self.group_rounds == _GROUP_ROUNDS:
            return None
        self.group_rounds += 1
        candidates = sorted(self._groups(), key=lambda one: (one.share, one.nodes))
        few, others = candidates[:_GROUPS], candidates[_GROUPS:]
        self.beyond_limit.update(one.label for one in others)
        tried = self._tried(few, self.policy.group)
        reaching = [one for one in tried if one.after <= self.policy.goal]
        return self._best(reaching, lambda one: -self._cost(one)) if reaching else self._best(tried)

    def _groups(self) -> list[FloatStep]:
        """The groups, without what is kept already; those that cost too much are counted and left out."""
        if self.all_groups is None:
            runner = self.runner
            self.all_groups = operator_groups(runner.view, runner.plan.heads, runner.operators, runner.grids())
        kept, found = self.kept, dict[tuple[str, ...], FloatStep]()
        for group in self.all_groups:
            nodes = tuple(node for node in group.nodes if node not in kept)
            if len(nodes) > 1 and (self.left is None or len(nodes) <= self.left):
                found.setdefault(nodes, self._step(nodes, group.label))
        dear = [one for one in found.values() if not self._affordable(one, self.policy.group)]
        self.too_dear.update(one.label for one in dear)
        return [one for one in found.values() if self._affordable(one, self.policy.group)]

    def _step(self, nodes: Sequence[str], label: str) -> FloatStep:
        return FloatStep(tuple(self.findings[node] for node in nodes), 0.0, 0.0, label)

    def _affordable(self, step: FloatStep, limits: StepLimits) -> bool:
        return self._kept_share() + step.share <= limits.share

    def _kept_share(self) -> float:
        return math.fsum(one.share for one in self.steps)

    def _tried(self, candidates: Sequence[FloatStep], limits: StepLimits) -> list[FloatStep]:
        """Those of the candidates that take enough of the loss away, with the loss before and after each."""
        found = []
        for one in candidates:
            if not self._affordable(one, limits):
                continue
            after = self.runner.loss({*self.kept, *one.nodes})
            if after is None:
                self.without_scale.add(one.title())
                continue
            if one.label:
                self.tried_groups.add(one.label)
            if after < self.loss and self.loss - after >= limits.gain * self.loss:
                found.append(replace(one, before=self.loss, after=after))
        return found

    def _best(self, steps: Sequence[FloatStep], worth: Callable[[FloatStep], float] | None = None) -> FloatStep | None:
        return max(steps, key=lambda one: ((worth or self._worth)(one), one.nodes), default=None)

    def _worth(self, step: FloatStep) -> float:
        gain = step.before - step.after
        return gain if self.policy.device is None else gain / self._cost(step)

    def _cost(self, step: FloatStep) -> float:
        if self.policy.device is None:
            return step.share
        return math.fsum(one.work.extra_microseconds(self.policy.device) for one in step.findings)

    # ------------------------------------------------------------------ what remains

    def _untried(self) -> tuple[str, ...]:
        alone = len(self.findings) - len(self.singles)
        phrases = [f"{alone} operators alone that lose less by themselves"] if alone else []
        dear = len(self.too_dear - self.tried_groups)
        if dear:
            phrases.append(f"{dear} groups with more than {self.policy.group.share:.0%} of the multiply-adds")
        if self.beyond_limit - self.tried_groups:
            phrases.append(f"{len(self.beyond_limit - self.tried_groups)} groups beyond the limit of {_GROUPS} runs")
        if self.without_scale:
            phrases.append(f"{len(self.without_scale)} that need a scale that was not calibrated")
        return tuple(phrases)

    def _reaching(self) -> FloatStep | None:
        """The cheaper of the shortest runs of blocks, from the input and from the outputs, that reach the goal.

        By bisection, as if each further block took some of the loss away; what is found was measured.
        """
        blocks = blocks_of(self.runner.view, self.runner.operators)
        steps = []
        for take in (blocks.last, blocks.first):
            low, high = 0, len(blocks.blocks)  # `high` of them reach it: then all are in float
            while high - low > 1:
                middle = (low + high) // 2
                loss = self.runner.loss({*self.kept, *take(middle).nodes})
                low, high = (low, middle) if loss is not None and loss <= self.policy.goal else (middle, high)
            group, kept = take(high), self.kept
            nodes = [node for node in group.nodes if node not in kept]
            after = self.runner.loss({*kept, *nodes})
            if after is not None and after <= self.policy.goal and len(nodes) + len(kept) < len(self.findings):
                findings = tuple(self.findings[node] for node in nodes)
                steps.append(FloatStep(findings, self.loss, after, group.label))
        return min(steps, key=lambda one: (one.share, one.nodes), default=None)
