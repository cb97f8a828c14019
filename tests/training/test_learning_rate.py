# SPDX-License-Identifier: Apache-2.0
"""A given rate follows its schedule; a searched one warms up, is measured early and may spoil more at first."""

from __future__ import annotations

import pytest

from qdqtool.training.learning_rate import GivenRate, SearchedRate, rate_of
from qdqtool.training.options import RunOptions, TrainingOptions, UpdateOptions
from qdqtool.training.schedules import Schedule

COURSE = Schedule("constant", warmup=0.1)


@pytest.mark.parametrize("rise", [None, 1.05])
def test_options_with_a_rise_ask_for_a_search(rise: float | None) -> None:
    options = TrainingOptions(update=UpdateOptions(lr=0.1, rise=rise), run=RunOptions(schedule=COURSE))
    assert isinstance(rate_of(options, 100), GivenRate if rise is None else SearchedRate)


def test_a_given_rate_warms_up_once_and_a_searched_one_wherever_it_begins_anew() -> None:
    given, searched = GivenRate(0.1, COURSE, 1000), SearchedRate(0.1, 1.05, COURSE, 1000)
    assert given.of_step(500, 0, 1) == pytest.approx(0.05)
    assert searched.of_step(500, 0, 2) == pytest.approx(0.1 / 4 / 24), "24 steps at most"
    assert searched.of_step(524, 24, 2) == pytest.approx(0.1 / 4)
    assert (given.averaged_steps(500, 3), searched.averaged_steps(500, 3)) == (500, 3)


def test_a_searched_rate_is_measured_where_its_leave_to_spoil_ends() -> None:
    searched = SearchedRate(0.1, 1.05, COURSE, 1000)
    ends = [since for since in range(1, 200) if searched.is_measured(since)]
    assert all(searched.most_risen(one) > searched.most_risen(one + 1) for one in ends)
    assert searched.most_risen(ends[-1] + 1) == pytest.approx(1.05)
    assert not any(GivenRate(0.1, COURSE, 1000).is_measured(since) for since in range(200))
