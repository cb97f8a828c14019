# SPDX-License-Identifier: Apache-2.0
"""The order of parts by what each loses alone for its cost, and the fewest of them that reach a goal."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from qdqtool.measuring.ranked_search import Part, fewest, nodes_of, rank_alone


class TableForms:
    """The loss is the sum of what parts that are not in float lose; None where one of unknown loss is among them."""

    def __init__(self, losses: dict[str, float | None]) -> None:
        self.losses, self.kept, self.runs = losses, list[frozenset[str]](), 0

    def keep(self, floats: Collection[str]) -> None:
        self.kept.append(frozenset(floats))

    def loss(self, floats: Collection[str] = ()) -> float | None:
        self.runs += 1
        found = [lost for node, lost in self.losses.items() if node not in floats]
        return None if None in found else sum(one or 0.0 for one in found)


def test_those_come_first_that_lose_most_for_their_cost() -> None:
    forms = TableForms({"large": 0.4, "small": 0.1, "tiny": 0.1, "sound": 0.0, "unknown": None})
    costs = {"large": 0.5, "small": 0.05, "tiny": 0.01, "sound": 0.2, "unknown": 0.24}
    parts = [Part((node,), cost) for node, cost in costs.items()]
    found = rank_alone(forms, parts, costs)
    assert [(one.nodes, one.alone) for one in found] == [(("tiny",), 0.1), (("small",), 0.1), (("large",), 0.4)]
    assert forms.kept == [frozenset(costs)]  # each run begins at the operator that is in INT8
    assert rank_alone(forms, parts[::-1], costs) == found


@pytest.mark.parametrize(("goal", "count"), [(0.75, 1), (0.5, 2), (0.25, 3), (0.0, 4)])
def test_no_more_are_taken_than_reach_the_goal(goal: float, count: int) -> None:
    ranked = [Part((node,), 1.0, 0.25) for node in "abcd"]
    forms = TableForms(dict.fromkeys("abcd", 0.25))
    assert nodes_of(fewest(ranked, goal, forms)) == list("abcd")[:count]
    assert forms.runs <= 3


def test_cheap_parts_are_left_out_where_a_dear_one_is_enough() -> None:
    ranked = [Part(("cheap",), 0.01, 0.1), Part(("dear",), 1.0, 0.8), Part(("more",), 1.0, 0.05)]
    forms = TableForms({"cheap": 0.1, "dear": 0.8, "more": 0.05})
    assert nodes_of(fewest(ranked, 0.2, forms)) == ["dear"]


def test_parts_that_are_known_to_reach_the_goal_do_where_nothing_can_be_run() -> None:
    ranked = [Part((node,), 1.0, 0.25) for node in "abcd"]
    assert len(fewest(ranked, 0.0, TableForms(dict.fromkeys("abcd")))) == 4
