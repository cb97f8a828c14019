# SPDX-License-Identifier: Apache-2.0
"""Times of many runs to the usual figures, and runs of several subjects in turn. What is run, others say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtool.timing.options import Timing

Clock = Callable[[], float]
_ROUNDS = 5  # turns of each subject: what else the machine does falls on all alike
_LEAST = 10  # runs that are measured, however long they take


@dataclass(frozen=True)
class Latency:
    """The times of the runs of one subject, in milliseconds."""

    runs: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The figures of some times in seconds, one or more; percentiles are times that were measured, the next above.

        Raises:
            ValueError: there is no time.
        """
        times = np.sort(np.asarray(seconds, np.float64)) * 1000
        if not times.size:
            raise ValueError("no run was measured")
        p50, p90, p95, p99 = (float(value) for value in np.percentile(times, (50, 90, 95, 99), method="higher"))
        return cls(len(times), float(times.mean()), p50, p90, p95, p99, float(times[0]), float(times[-1]))

    def throughput(self, batch: int) -> float:
        """Samples a second, one run after the other."""
        return 1000 * batch / self.mean if self.mean else float("inf")

    def to_json(self) -> dict[str, float]:
        """As `bench --json` prints it."""
        return {key: value for key, value in vars(self).items() if key != "runs"}


def time_in_turn(
    subjects: Sequence[Callable[[], float | None]], timing: Timing, clock: Clock = time.perf_counter
) -> list[Latency]:
    """Run subjects in turn and time each run.

    Args:
        subjects: a run each; it may return the seconds that it took by its own clock, which then count.
        timing: how long.
        clock: seconds.
    """
    for run in subjects:
        _until(run, clock() + timing.warm_up, 1, clock)
    found: list[list[float]] = [[] for _ in subjects]
    for turn in range(_ROUNDS):
        for run, times in zip(subjects, found, strict=True):
            if timing.runs is None:
                times += _until(run, clock() + timing.seconds / _ROUNDS, -(-_LEAST // _ROUNDS), clock)
            else:
                share = timing.runs * (turn + 1) // _ROUNDS - timing.runs * turn // _ROUNDS
                times += [_timed(run, clock) for _ in range(share)]
    return [Latency.of(times) for times in found]


def _until(run: Callable[[], float | None], end: float, least: int, clock: Clock) -> list[float]:
    """The times of runs until a point in time, of some in any case."""
    times: list[float] = []
    while len(times) < least or clock() < end:
        times.append(_timed(run, clock))
    return times


def _timed(run: Callable[[], float | None], clock: Clock) -> float:
    start = clock()
    own = run()
    return clock() - start if own is None else own
