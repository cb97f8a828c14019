# SPDX-License-Identifier: Apache-2.0
"""Which operators hurt in INT8, and which few of them are worth keeping in float: the ways to ask for that.

`sensitivity_runner.py` measures, `float_search.py` searches; here is what each way to ask allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqtool.display import counted
from qdqtool.measuring.budget import MacBudget
from qdqtool.measuring.float_search import (
    FloatLimits,
    SearchPolicy,
    measure_groups,
    search,
    shortlist,
    shortlist_length,
)
from qdqtool.measuring.output_loss import LARGE_LOSS
from qdqtool.measuring.search_result import FloatStep, SearchResult
from qdqtool.measuring.sensitivity_runner import OperatorLoss, Quantized, SensitivityRunner
from qdqtool.progress import silent, steps

__all__ = [
    "FloatStep",
    "OperatorLoss",
    "Quantized",
    "SearchResult",
    "SensitivityRanking",
    "keep_most_harmful",
    "keep_where_concentrated",
    "keep_within_loss",
    "rank_operators",
]

# `auto`: at most this share of the multiply-adds stays in float, and each operator that does must take this share of
# the loss that is left with it: a loss that is spread evenly is nothing that a few operators could mend.
AUTO_MACS = 0.03
AUTO_GAIN = 0.2
# In a network of fewer operators one of them is no small part: its float tensors cost more than its share of the
# multiply-adds tells, and nothing is concentrated in it.
AUTO_OPERATORS = 4
# Below this loss at the outputs there is nothing to mend: no figure of a labeled model was seen to gain, and what is
# kept costs conversions around it.
AUTO_FLOOR = 0.005
# Where `auto` found no single operator and the loss is large (`LARGE_LOSS`), a group may cost more, since without
# it there is no INT8 model worth having; two thirds stay in INT8, and the group must take half of the loss away. It has
# no more operators than the shortlist: Casts and quantization around many of them cost more than INT8 saves.
AUTO_GROUP_MACS = 1 / 3
AUTO_GROUP_GAIN = 0.5
# Where every operator loses about the same part (FP8), a large loss is the sum of many: the fewest operators stay in
# float that bring it below what labeled models lose whose task holds (see `LARGE_LOSS`).
AUTO_RELATIVE_GOAL = 0.14
# A loss that was asked for costs no more than this share of the multiply-adds, unless only more reach it.
ASKED_MACS = 0.5
# What `auto` may cost: this share of the walk over the calibration data, or the least of `MacBudget.beside_walk`.
AUTO_WALKS = 0.5


@dataclass(frozen=True)
class SensitivityRanking:
    """What a model loses in INT8, and by what.

    Attributes:
        findings: every operator, those that lose most first.
        loss: at the outputs, with all of them in INT8.
        groups: where that is large, groups of operators, `after` with all but the group in INT8, the least first.
    """

    findings: tuple[OperatorLoss, ...]
    loss: float
    groups: tuple[FloatStep, ...] = ()


def rank_operators(
    quantized: Quantized, *, ends: bool = True, say: Callable[[str], None] = silent
) -> SensitivityRanking:
    """Rank the operators of a model.

    Raises:
        QdqError: the model has no float32 output; what `shadow_pass` and `OrtActivations` refuse.
    """
    runner = SensitivityRunner(quantized)
    findings = runner.local()
    if findings:
        most = findings[0]
        say(f"{counted(len(findings), 'operator')}, each alone: {most.name or most.node} loses most, {most.cells()[0]}")
    if ends:
        # The findings, those of the shortlist with both runs end to end
        chosen, measured = shortlist(findings, runner.plan), dict[str, OperatorLoss]()
        for one in steps(chosen, "operator"):
            measured[one.node] = runner.ends(one)
            say(f"{measured[one.node].line()}, operator {len(measured)} of {len(chosen)}")
        findings = [measured.get(one.node, one) for one in findings]
    loss = runner.base_loss()
    groups = measure_groups(runner, findings, say) if ends and loss >= LARGE_LOSS else []
    return SensitivityRanking(tuple(findings), loss, tuple(groups))


def keep_most_harmful(quantized: Quantized, count: int) -> SearchResult:
    """At most `count` operators, those that lose most alone; as few as take as much of the loss away."""
    policy = SearchPolicy(0.0, (FloatLimits(count=count),) if count else (), weighs_cost=False)
    return search(SensitivityRunner(quantized), policy)


def keep_where_concentrated(quantized: Quantized) -> SearchResult:
    """A few operators that each cause much of the loss, within `AUTO_MACS`.

    Where there are none and the loss is large, as many of the shortlist as take half of it away. In a format of floats,
    if the loss is large, the fewest that bring it to `AUTO_RELATIVE_GOAL`. None in a network of fewer than
    `AUTO_OPERATORS`.
    """
    runner = SensitivityRunner(quantized)
    small = len(runner.operators) < AUTO_OPERATORS
    attempts = (
        FloatLimits(AUTO_MACS, each=AUTO_GAIN),
        FloatLimits(AUTO_GROUP_MACS, AUTO_GROUP_GAIN, above=LARGE_LOSS, count=shortlist_length(len(runner.operators))),
    )
    budget = MacBudget.beside_walk(runner.macs, quantized.source.counted, AUTO_WALKS)
    if runner.is_relative and not small and runner.base_loss() >= LARGE_LOSS:
        limits = FloatLimits(AUTO_GROUP_MACS, AUTO_GROUP_GAIN)
        return search(runner, SearchPolicy(AUTO_RELATIVE_GOAL, (limits,), budget))
    return search(runner, SearchPolicy(AUTO_FLOOR, () if small else attempts, budget))


def keep_within_loss(quantized: Quantized, most: float) -> SearchResult:
    """The cheapest operators, by the loss that each causes alone, that bring the loss at the outputs to `most`.

    Those within `ASKED_MACS` first, then any; where no operators but all do, as few within it as come as near.
    """
    runner = SensitivityRunner(quantized)
    needed = 1 - most / max(runner.base_loss(), most) if most else 1.0
    attempts = FloatLimits(ASKED_MACS, gain=needed), FloatLimits(gain=needed), FloatLimits(ASKED_MACS)
    return search(runner, SearchPolicy(most, attempts, seeks_goal=True))
