# SPDX-License-Identifier: Apache-2.0
"""Figures of times, and how subjects take turns, by a clock that is made up: no time is measured here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qdqtool.timing.latency import Latency, time_in_turn
from qdqtool.timing.options import Timing


def test_figures_of_times() -> None:
    found = Latency.of([number / 1000 for number in range(100, 0, -1)])
    assert (found.runs, found.least, found.most) == (100, 1.0, 100.0)
    assert found.mean == pytest.approx(50.5)
    assert [round(one) for one in (found.p50, found.p90, found.p95, found.p99)] == [51, 91, 96, 100]
    assert found.throughput(4) == pytest.approx(4000 / 50.5)
    assert list(found.to_json()) == ["mean", "p50", "p90", "p95", "p99", "least", "most"]


def test_one_run_is_all_its_figures() -> None:
    found = Latency.of([0.002])
    assert {found.mean, found.p50, found.p99, found.most} == {2.0}
    with pytest.raises(ValueError, match="no run"):
        Latency.of([])


class Machine:
    """A clock that only runs move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def subject(self, name: str, seconds: float, own: float | None = None) -> Callable[[], float | None]:
        def run() -> float | None:
            self.order.append(name)
            self.now += seconds
            return own

        return run


def test_subjects_take_turns() -> None:
    machine = Machine()
    subjects = [machine.subject("a", 0.1), machine.subject("b", 0.2)]
    a, b = time_in_turn(subjects, Timing(seconds=2.0, warm_up=0.35), machine.clock)
    assert "".join(machine.order[:6]) == "aaaabb"
    turns = "".join(machine.order[6:])
    assert turns.startswith(("aaaabb", "aaaaabb"))
    assert turns.count("a") == a.runs and turns.count("b") == b.runs
    assert a.mean == pytest.approx(100) and b.mean == pytest.approx(200)


def test_slow_subjects_run_ten_times() -> None:
    machine = Machine()
    (found,) = time_in_turn([machine.subject("a", 60.0)], Timing(seconds=1.0, warm_up=0.0), machine.clock)
    assert found.runs == 10 and len(machine.order) == 11, "and once before"


@pytest.mark.parametrize("runs", [1, 7, 20])
def test_a_number_of_runs(runs: int) -> None:
    machine = Machine()
    found = time_in_turn([machine.subject("a", 0.1)] * 2, Timing(runs=runs, warm_up=0), machine.clock)
    assert [one.runs for one in found] == [runs, runs]


def test_a_clock_of_its_own_counts() -> None:
    machine = Machine()
    (found,) = time_in_turn([machine.subject("a", 0.5, own=0.001)], Timing(seconds=1, warm_up=0), machine.clock)
    assert found.mean == pytest.approx(1.0)
