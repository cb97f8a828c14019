# SPDX-License-Identifier: Apache-2.0
"""The order of operators by what each loses alone in INT8 for its share, and what is taken of its beginning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import pytest

from qdqtool.engine.layer_work import Product
from qdqtool.mixed_precision.float_ranking import first_within, rank_alone, shortest_start
from qdqtool.mixed_precision.roofline import OperatorWork
from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss, SensitivityRunner

WORK = OperatorWork(Product(1, 1, 1, 1), 1, 1, 1)


def operator(node: str, share: float) -> OperatorLoss:
    return OperatorLoss(node, node, "Conv", 0.0, WORK, share)


class Alone:
    """The loss with one operator in INT8 by a table."""

    def __init__(self, losses: dict[str, float | None]) -> None:
        self.losses, self.kept = losses, list[frozenset[str]]()

    def keep(self, floats: Collection[str]) -> None:
        self.kept.append(frozenset(floats))

    def loss(self, floats: Collection[str]) -> float | None:
        (alone,) = set(self.losses) - set(floats)
        return self.losses[alone]


def test_those_come_first_that_lose_most_for_their_share() -> None:
    runner = Alone({"large": 0.4, "small": 0.1, "tiny": 0.1, "sound": 0.0, "unknown": None})
    shares = {"large": 0.5, "small": 0.05, "tiny": 0.01, "sound": 0.2, "unknown": 0.24}
    findings = [operator(node, share) for node, share in shares.items()]
    found = rank_alone(cast("SensitivityRunner", runner), findings)
    assert [(one.node, one.only) for one in found] == [("tiny", 0.1), ("small", 0.1), ("large", 0.4)]
    assert runner.kept == [frozenset(shares)]  # each run begins at the operator that is in INT8
    again = rank_alone(cast("SensitivityRunner", runner), findings[::-1])
    assert again == found


def test_what_is_too_large_is_passed_over() -> None:
    ranked = [operator("a", 0.2), operator("b", 0.5), operator("c", 0.2), operator("d", 0.2)]
    assert [one.node for one in first_within(ranked, 0.45)] == ["a", "c"]
    assert first_within(ranked, 0.1) == []


@pytest.mark.parametrize(("goal", "count"), [(0.75, 1), (0.5, 2), (0.3, 3), (0.0, 4)])
def test_no_more_are_taken_than_reach_the_goal(goal: float, count: int) -> None:
    ranked = [operator(node, 0.25) for node in "abcd"]

    def loss(some: Sequence[OperatorLoss]) -> float | None:
        return 1.0 - 0.25 * len(some)

    assert shortest_start(ranked, goal, loss) == count
    assert shortest_start(ranked, goal, lambda some: None) == 4  # all of them are known to reach it
