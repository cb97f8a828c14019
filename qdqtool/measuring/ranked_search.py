# SPDX-License-Identifier: Apache-2.0
"""The search for what stays in float: parts ranked by the loss that each causes alone, then the shortest prefix.

What a network loses is near the sum of what its parts lose alone, so the first of this order are the cheapest way to a
smaller loss. Parts are operators that run in INT8 or islands that run in a half type. What a part costs and how a form
of the model is run is decided elsewhere: see `MeasuredForms`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qdqtool.progress import steps

_LEAST_COST = 1e-6


class MeasuredForms(Protocol):
    """A model of which any operators can be in float."""

    def loss(self, floats: Collection[str] = ()) -> float | None:
        """The loss at the outputs with some operators in float; None where that form cannot be run."""

    def keep(self, floats: Collection[str]) -> None:
        """Hold what forms near this one can start from."""


@dataclass(frozen=True)
class Part:
    """Operators that are in float together or not at all.

    Attributes:
        nodes: their first outputs.
        cost: of having them in float, in a unit of the caller's.
        alone: loss at the outputs with everything else in float.
    """

    nodes: tuple[str, ...]
    cost: float = 1.0
    alone: float = 0.0


def rank_alone(forms: MeasuredForms, parts: Sequence[Part], every: Collection[str]) -> list[Part]:
    """The parts with `alone` measured, the largest loss for its cost first; without those that lose nothing."""
    whole = frozenset(every)
    forms.keep(whole)
    measured = [replace(one, alone=forms.loss(whole.difference(one.nodes)) or 0.0) for one in steps(parts, "part")]
    lossy = (one for one in measured if one.alone > 0)
    return sorted(lossy, key=lambda one: (-one.alone / max(one.cost, _LEAST_COST), one.nodes))


def fewest(ranked: Sequence[Part], goal: float, forms: MeasuredForms) -> list[Part]:
    """The shortest prefix that, in float, brings the loss to a goal; all parts bring it there.

    By bisection, as if each further part took some of the loss away. Where the part of the prefix that loses most alone
    reaches the goal by itself, that part only: cheap parts come first in the order, and it can do without them.
    """
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(ranked[:middle], goal, forms) else (middle, high)
    prefix = list(ranked[:high])
    worst = sorted(prefix, key=lambda one: (-one.alone, one.nodes))[:1]
    return worst if high > 1 and _reaches(worst, goal, forms) else prefix


def _reaches(parts: Sequence[Part], goal: float, forms: MeasuredForms) -> bool:
    after = forms.loss(nodes_of(parts))
    return after is not None and after <= goal


def nodes_of(parts: Sequence[Part]) -> list[str]:
    """First outputs of the operators of some parts."""
    return [node for part in parts for node in part.nodes]
