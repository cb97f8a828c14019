# SPDX-License-Identifier: Apache-2.0
"""Courses of the rate: where they begin, turn and end, and which numbers make none."""

from __future__ import annotations

import math

import pytest

from qdqtool.errors import QdqError
from qdqtool.training.schedules import SHAPES, Schedule


def course(schedule: Schedule, total: int = 1000) -> list[float]:
    return [schedule.factor(step, total) for step in range(total + 1)]


def test_cosine_falls_from_one_to_the_least() -> None:
    factors = course(Schedule("cosine", warmup=0, min_lr_ratio=0.1))
    assert factors[0] == 1
    assert factors[-1] == pytest.approx(0.1)
    assert factors[500] == pytest.approx(0.55)
    assert factors == sorted(factors, reverse=True)


def test_linear_and_constant() -> None:
    assert course(Schedule("linear", warmup=0, min_lr_ratio=0.2))[250] == pytest.approx(0.8)
    assert set(course(Schedule("constant", warmup=0))) == {1.0}


def test_soft_start_rises_and_falls_evenly_in_the_logarithm() -> None:
    """The least, in its tenth up to 1; 1 until 0.7; back to the least at the end."""
    factors = course(Schedule("soft-start", warmup=0, min_lr_ratio=0.01))
    assert factors[0] == pytest.approx(0.01)
    assert factors[50] == pytest.approx(0.1)
    assert factors[100:701] == [1.0] * 601
    assert factors[850] == pytest.approx(0.1)
    assert factors[1000] == pytest.approx(0.01)
    assert factors == course(Schedule("soft-start=.1:.7", warmup=0, min_lr_ratio=0.01))
    assert course(Schedule("soft-start=.2:.5"))[200:501] == [1.0] * 301


def test_soft_start_has_no_second_warm_up() -> None:
    assert course(Schedule("soft-start", warmup=0.3)) == course(Schedule("soft-start", warmup=0))


def test_soft_start_of_no_length() -> None:
    assert Schedule("soft-start=0:.7", warmup=0).factor(0, 10) == 1


def test_steps_multiply_at_their_percents() -> None:
    """factor^k after k of the percents, each from its own step on."""
    factors = course(Schedule("step=30:60:80", warmup=0))
    for begin, end, k in ((0, 300, 0), (300, 600, 1), (600, 800, 2), (800, 1001, 3)):
        assert set(factors[begin:end]) == {0.1**k}
    assert Schedule("step=50,factor=.5", warmup=0).factor(2, 3) == 0.5
    assert Schedule("step=50,factor=.5", warmup=0).factor(1, 3) == 1


def test_warmup_rises_on_top_of_steps() -> None:
    assert Schedule("step=5,factor=.5", warmup=0.1).factor(4, 100) == pytest.approx(0.5)
    assert Schedule("step=5,factor=.5", warmup=0.1).factor(5, 100) == pytest.approx(0.3)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "soft-start"])
def test_warmup_rises_on_top(shape: str) -> None:
    plain, warm = Schedule(shape, warmup=0), Schedule(shape, warmup=0.1)
    assert warm.factor(0, 100) == pytest.approx(plain.factor(0, 100) / 10)
    assert warm.factor(4, 100) == pytest.approx(plain.factor(4, 100) / 2)
    assert warm.factor(9, 100) == pytest.approx(plain.factor(9, 100))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_factor_is_a_part(shape: str) -> None:
    for total in (0, 1, 3):
        for step in range(total + 2):
            assert 0 < Schedule(shape).factor(step, total) <= 1
            assert math.isfinite(Schedule(shape).factor(step, total))


@pytest.mark.parametrize(
    ("schedule", "reported"),
    [
        (Schedule("cosin"), "--schedule: 'cosin' is not one; choose one of cosine"),
        (Schedule("step"), "--schedule: 'step' does not list steps; give percents"),
        (Schedule("step=30,60"), "--schedule: 'step=30,60' does not list steps"),
        (Schedule("step=a:b"), "--schedule: 'step=a:b' does not list steps"),
        (Schedule("step=60:30"), "--schedule: the percents of 'step=60:30' do not rise between 0 and 100"),
        (Schedule("step=0:50"), "--schedule: the percents of 'step=0:50' do not rise"),
        (Schedule("step=nan"), "--schedule: the percents of 'step=nan' do not rise"),
        (Schedule("step=50:100"), "--schedule: the percents of 'step=50:100' do not rise"),
        (Schedule("step=50,factor=1"), "--schedule: the factor 1 is not between 0 and 1"),
        (Schedule("step=50,factor=nan"), "--schedule: the factor nan is not between 0 and 1"),
        (Schedule(warmup=1.0), "--warmup: 1 is not a share"),
        (Schedule("soft-start=0.8:0.7"), "--schedule: 'soft-start=0.8:0.7' has not two shares of the run in order"),
        (Schedule("soft-start=0.1:1"), "--schedule: 'soft-start=0.1:1' has not two"),
        (Schedule("soft-start=a:b"), "--schedule: 'soft-start=a:b' has not two"),
        (Schedule("soft-starts"), "--schedule: 'soft-starts' has not two"),
        (Schedule(min_lr_ratio=0.0), "--min-lr-ratio: 0 is not a share"),
    ],
)
def test_what_makes_no_course_is_refused(schedule: Schedule, reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        schedule.check()
    assert caught.value.line().startswith(reported)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_defaults_are_a_course(shape: str) -> None:
    Schedule(shape).check()
