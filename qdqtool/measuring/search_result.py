# SPDX-License-Identifier: Apache-2.0
"""What a search for operators that stay in float found: its steps, what it tried, and what it left untried."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from qdqtool.measuring.sensitivity_runner import OperatorLoss, QuantizedForm


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
        runs: of the model with pairs, in all.
        untried: what was not tested, a phrase each.
        missed: whether a goal that was asked for is not reached.
        form: what the last loss was measured with, to know whether it is that of a model which is written.
    """

    steps: tuple[FloatStep, ...]
    before: float
    operators: int
    singles: int = 0
    runs: int = 0
    untried: tuple[str, ...] = ()
    missed: bool = False
    form: QuantizedForm | None = field(default=None, repr=False)

    @property
    def loss(self) -> float:
        """At the outputs, with what is kept."""
        return self.steps[-1].after if self.steps else self.before

    @property
    def reasons(self) -> dict[str, str]:
        """First output of each operator that is kept -> why."""
        return {node: step.reason for step in self.steps for node in step.nodes}

    def summary(self) -> list[str]:
        """What is kept, what was tried and what was not: a phrase each."""
        number = len(self.reasons)
        phrases = [
            f"{number} of {self.operators} operators kept in float" if number else "nothing was found to keep in float"
        ]
        if self.singles:
            phrases.append(f"{self.runs} runs measured {self.singles} operators")
        if self.singles and self.untried:
            phrases.append(f"not tried: {', '.join(self.untried)}")
        if self.missed:
            phrases.append("only all operators in float would reach it")
        return phrases

    def to_json(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "before": self.before,
            "after": self.loss,
            "runs": self.runs,
            "operators": self.operators,
            "tried_alone": self.singles,
            "not_tried": list(self.untried),
            "steps": [step.to_json() for step in self.steps],
        }
