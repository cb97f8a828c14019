# SPDX-License-Identifier: Apache-2.0
"""The learning rate of each step, given or searched for, and when the loop goes back to its best with a lower one.

Both follow a schedule, and both are lowered where the run diverges; what else a step needs is the loop's (loop.py).
`since` is the number of steps since the run began, or last went back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qdqtool.training.options import TrainingOptions
from qdqtool.training.schedules import Schedule


@dataclass(frozen=True)
class GivenRate:
    """A rate that serves as far as is known: one warm-up, halved three times at most.

    Attributes:
        rate: before the schedule and without halvings.
        schedule: its course.
        steps: of the whole run.
    """

    rate: float
    schedule: Schedule
    steps: int

    halvings_at_once: ClassVar[int] = 1
    most_halvings: ClassVar[int] = 3
    _RISEN: ClassVar[float] = 5.0  # it runs away; twice is common while the rate is high

    def of_step(self, step: int, since: int, halvings: int) -> float:
        """The rate of a step, counted from 0."""
        return self.rate * self.schedule.factor(step, self.steps) * 0.5**halvings

    def is_measured(self, since: int) -> bool:
        """Whether the loop measures after this step beside its plan."""
        return False

    def most_risen(self, since: int) -> float:
        """Times the measure of the start that a measure may be."""
        return self._RISEN

    def averaged_steps(self, step: int, since: int) -> int:
        """How many steps the average of the weights has seen."""
        return step


@dataclass(frozen=True)
class SearchedRate:
    """A rate that may be far too high: quartered until it serves; each time a short warm-up and early measurements.

    Attributes:
        rate: the highest that is tried.
        rise: times its start that the measure may rise once the first steps are over.
        schedule: its course.
        steps: of the whole run.
    """

    rate: float
    rise: float
    schedule: Schedule
    steps: int

    halvings_at_once: ClassVar[int] = 2  # a rate that is four times too high takes no two tries
    most_halvings: ClassVar[int] = 12  # 0.1 to 0.00002
    # Steps up to which the measure may rise so many times as much: Adam's first directions are signs, and what they
    # spoil comes back. At their ends is measured, too.
    _EARLY: ClassVar[Mapping[int, float]] = {6: 20.0, 24: 5.0, 96: 2.0}
    _WARM: ClassVar[int] = 24  # steps of a warm-up at most

    def of_step(self, step: int, since: int, halvings: int) -> float:
        """The rate of a step, counted from 0: it rises anew, and soon, wherever the run began anew."""
        course = self.schedule.shaped(step, self.steps) * self.schedule.rising(since, self.steps, self._WARM)
        return self.rate * course * 0.5**halvings

    def is_measured(self, since: int) -> bool:
        """Whether the loop measures after this step beside its plan."""
        return since in self._EARLY

    def most_risen(self, since: int) -> float:
        """Times the measure of the start that a measure may be."""
        factor = next((factor for steps, factor in self._EARLY.items() if since <= steps), 1.0)
        return 1 + factor * (self.rise - 1)

    def averaged_steps(self, step: int, since: int) -> int:
        """How many steps the average of the weights has seen: it begins anew where the run does."""
        return since


LearningRate = GivenRate | SearchedRate


def rate_of(options: TrainingOptions, steps: int) -> LearningRate:
    """The rate that options ask for, over so many steps."""
    update, schedule = options.update, options.run.schedule
    if update.rise is None:
        return GivenRate(update.rate, schedule, steps)
    return SearchedRate(update.rate, update.rise, schedule, steps)
