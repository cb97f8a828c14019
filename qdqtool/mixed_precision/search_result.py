# SPDX-License-Identifier: Apache-2.0
"""What a search for operators that stay in float found: its steps, what it tried, and what it left untried."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qdqtool.mixed_precision.quantized_form import QuantizedForm
from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss


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
        untried: what was not tested, a phrase each.
        missed: whether a goal that was asked for is not reached.
        form: what the last loss was measured with, to know whether it is that of a model which is written.
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
    form: QuantizedForm | None = None

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
            phrases.append(f"{self.runs} runs tried {self.singles} operators{groups}")
        if self.singles and self.untried:
            phrases.append(f"not tried: {', '.join(self.untried)}")
        if self.reaching is not None:
            one = self.reaching
            also = f" as well ({one.share:.0%} of the multiply-adds)"
            phrases.append(f"{one.label} in float{also} would bring it to {one.after:.4g}")
        elif self.missed:
            phrases.append("no run of blocks in float would reach it, except all operators")
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
