# SPDX-License-Identifier: Apache-2.0
"""Which attentions data let be INT8: all that cost little, found by halves, within a number of runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from qdqtool.match.plan import PlanOptions
from qdqtool.measuring import attention_choice
from qdqtool.measuring.attention_choice import MOST_RUNS, _Choice, tentative
from qdqtool.measuring.policies import AUTO_FLOOR, AUTO_GAIN


class Runner:
    """Attentions whose losses add up."""

    def __init__(self, losses: dict[str, float], rest: float, more: tuple[str, ...] = ()) -> None:
        self.losses, self.rest, self.asked = losses, rest, 0
        self.plan = SimpleNamespace(attentions=[SimpleNamespace(int8=True, key=key) for key in (*losses, *more)])

    def loss(self, floats: Collection[str]) -> float | None:
        self.asked += 1
        assert set(floats) <= {one.key for one in self.plan.attentions}
        return self.rest + sum(loss for key, loss in self.losses.items() if key not in floats)


def chosen(losses: dict[str, float], rest: float = 0.0, most: float | None = None, **more: Any) -> dict[str, str]:
    return _Choice(Runner(losses, rest, **more), list(losses), most).reasons()  # type: ignore[arg-type]


def test_all_are_int8_where_the_loss_stays_small() -> None:
    runner = Runner({"a": 0.001, "b": 0.001}, 0.001)
    assert _Choice(runner, ["a", "b"], None).reasons() == {"a": "", "b": ""}  # type: ignore[arg-type]
    assert runner.asked == 2, "all in float, all in INT8"


def test_a_loss_that_was_there_before_may_grow_by_a_quarter_of_it() -> None:
    assert chosen({"a": 0.02}, 0.1) == {"a": ""}
    (reason,) = chosen({"a": 0.03}, 0.1).values()
    assert re.search(r"from 0.1 to 0.13, .* 0.125$", reason)
    assert pytest.approx(0.125) == 0.1 / (1 - AUTO_GAIN) and AUTO_FLOOR < 0.1


def test_the_one_that_costs_much_is_found_by_halves() -> None:
    found = chosen({"a": 0.0001, "b": 0.0001, "c": 0.3, "d": 0.0001})
    assert [key for key, reason in found.items() if not reason] == ["a", "b", "d"]
    assert "to 0.3" in found["c"] and "others" not in found["c"]


def test_a_loss_that_was_asked_for_is_the_limit() -> None:
    assert chosen({"a": 0.02}, 0.0, most=0.05) == {"a": ""}
    assert "more than 0.01" in chosen({"a": 0.02}, 0.0, most=0.01)["a"]
    assert chosen({"a": 0.0}, 0.1, most=0.05)["a"], "the rest alone loses more"


def test_runs_are_bounded_and_what_was_not_run_says_so() -> None:
    runner = Runner({f"a{index}": 1.0 for index in range(32)}, 0.0)
    found = _Choice(runner, list(runner.losses), None).reasons()  # type: ignore[arg-type]
    assert runner.asked == MOST_RUNS + 1 and all(found.values())
    assert "with 31 others" not in found["a0"] and "others it takes" in found["a31"]


def test_few_runs_leave_untried_what_they_do_not_reach() -> None:
    runner = Runner({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}, 0.0)
    found = _Choice(runner, list(runner.losses), None).reasons(1)  # type: ignore[arg-type]
    assert runner.asked == 2 and all("with 3 others" in reason for reason in found.values())


def test_attentions_that_are_not_asked_about_stay_in_float() -> None:
    class Strict(Runner):
        def loss(self, floats: Collection[str]) -> float | None:
            assert "free" in floats
            return super().loss(floats)

    runner = Strict({"a": 0.0}, 0.0, ("free",))
    assert _Choice(runner, ["a"], None).reasons() == {"a": ""}  # type: ignore[arg-type]


def test_what_cannot_be_measured_stays_in_float() -> None:
    class Broken(Runner):
        def loss(self, floats: Collection[str]) -> float | None:
            return None if not floats else super().loss(floats)

    found = _Choice(Broken({"a": 0.0}, 0.0), ["a"], None).reasons()  # type: ignore[arg-type]
    assert found.keys() == {"a"} and "measured" in found["a"]


def test_only_auto_is_tried_in_int8() -> None:
    assert tentative(PlanOptions()).attention == "int8"
    assert tentative(PlanOptions(attention="float")).attention == "float"
    assert attention_choice.MOST_RUNS < 10
