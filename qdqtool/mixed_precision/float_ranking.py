# SPDX-License-Identifier: Apache-2.0
"""Operators by what each loses at the outputs when it alone is in INT8, for what it costs in float.

What a network loses is near the sum of what its operators lose alone, so the first of this order are the cheapest
way to a smaller loss where no few operators are to blame. What is taken of it is decided in `float_search.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss, SensitivityRunner
from qdqtool.progress import steps

_LEAST_SHARE = 1e-6


def rank_alone(runner: SensitivityRunner, findings: Sequence[OperatorLoss]) -> list[OperatorLoss]:
    """Operators with `only` measured, those first that lose most for their share; without those that lose nothing."""
    every = {one.node for one in findings}
    runner.keep(every)
    alone = [replace(one, only=runner.loss(every - {one.node})) for one in steps(findings, "operator")]
    found = [(one.only / max(one.share, _LEAST_SHARE), one.node, one) for one in alone if one.only]
    return [one for _, _, one in sorted(found, key=lambda entry: (-entry[0], entry[1]))]


def first_within(ranked: Sequence[OperatorLoss], share: float) -> list[OperatorLoss]:
    """In their order those that stay within a share of the multiply-adds; what is too large is passed over."""
    found, left = [], share
    for one in ranked:
        if one.share <= left:
            found.append(one)
            left -= one.share
    return found


def shortest_start(
    ranked: Sequence[OperatorLoss], goal: float, loss: Callable[[Sequence[OperatorLoss]], float | None]
) -> int:
    """How many of the first ones bring the loss to a goal; all of them bring it there.

    By bisection, as if each further one took some of the loss away.
    """
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        after = loss(ranked[:middle])
        low, high = (low, middle) if after is not None and after <= goal else (middle, high)
    return high
