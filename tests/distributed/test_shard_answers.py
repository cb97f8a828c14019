# SPDX-License-Identifier: Apache-2.0
"""How long shards are waited for, on schedulers that are generated: no process is started, a second is a thousandth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from qdqtool.distributed import shard_answers
from qdqtool.distributed.shard_answers import WaitLimits, answers
from qdqtool.errors import QdqError

pytest.importorskip("distributed", reason='needs pip install "qdqtool[dask]"')

LIMITS = WaitLimits(look=0.01, stalled=0.06, no_workers=0.3)


class WaitingFuture:
    """A future that ends when the test says so, or when it is cancelled."""

    def __init__(self, key: str) -> None:
        self.key, self.status, self.calls = key, "pending", list[Callable[[Any], object]]()

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        self.calls.append(call)

    def end(self, status: str) -> None:
        self.status = status
        for call in self.calls:
            call(self)

    def result(self, timeout: float) -> str:
        if self.status != "finished":
            raise RuntimeError(self.status)
        return f"answer of {self.key}"


@dataclass
class Scheduler:
    """A client whose scheduler says what the test has it say; the last of `says` again and again."""

    says: list[Any]
    then: Callable[[], object] = lambda: None
    status: str = "running"
    asked: int = 0
    cancelled: list[str] = field(default_factory=list)

    def sync(self, call: Callable[..., Any], *arguments: Any, callback_timeout: float, **named: Any) -> Any:
        return call(*arguments, **named)

    def run_on_scheduler(self, question: object, keys: list[str], seconds: float) -> Any:
        self.asked += 1
        said = self.says[min(self.asked, len(self.says)) - 1]
        if self.asked == len(self.says):
            self.then()
        if isinstance(said, Exception):
            raise said
        return said

    def cancel(self, futures: list[WaitingFuture], force: bool) -> None:
        self.cancelled += [future.key for future in futures]
        for future in futures:
            future.end("cancelled")


def collect(client: Scheduler, *futures: WaitingFuture) -> dict[str, str]:
    pending = dict(zip(futures, range(len(futures)), strict=True))
    found = {}
    for future, answer in answers(client, pending, LIMITS):
        del pending[future]
        found[future.key] = str(answer)
    return found


def test_work_that_takes_long_is_waited_for() -> None:
    one = WaitingFuture("one")
    client = Scheduler(["at work"] * 12, then=lambda: one.end("finished"))
    start = time.monotonic()
    assert collect(client, one) == {"one": "answer of one"}
    assert time.monotonic() - start > LIMITS.stalled
    assert not client.cancelled


def test_shards_that_nobody_works_on_are_taken_back() -> None:
    client = Scheduler(["stalled"])
    assert collect(client, WaitingFuture("one"), WaitingFuture("two")) == {"one": "cancelled", "two": "cancelled"}
    assert client.cancelled == ["one", "two"]


def test_a_moment_without_work_is_no_standstill() -> None:
    one = WaitingFuture("one")
    client = Scheduler(["stalled", "at work"] * 8, then=lambda: one.end("finished"))
    assert collect(client, one) == {"one": "answer of one"}


def test_workers_are_waited_for_longer_but_not_without_end() -> None:
    start = time.monotonic()
    with pytest.raises(QdqError, match=r"dask: .*no workers for 0\.3 s") as caught:
        collect(Scheduler(["no workers"]), WaitingFuture("one"))
    assert time.monotonic() - start > LIMITS.no_workers
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (asyncio.TimeoutError(), r"dask: the scheduler has not answered within 0\.01 s; check that the scheduler"),
        (OSError("reset by peer"), r"dask: the connection to the scheduler is lost \(reset by peer\)"),
    ],
)
def test_a_scheduler_that_says_nothing_is_given_up(fault: Exception, message: str) -> None:
    client = Scheduler([fault])
    with pytest.raises(QdqError, match=message) as caught:
        collect(client, WaitingFuture("one"))
    assert client.asked > 1
    assert caught.value.exit_code == 2


def test_a_scheduler_that_answers_again_is_not_given_up() -> None:
    one = WaitingFuture("one")
    client = Scheduler([OSError("busy"), OSError("busy"), "at work"] * 5, then=lambda: one.end("finished"))
    assert collect(client, one) == {"one": "answer of one"}


def test_time_in_which_this_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an hour of standing still, one look in which nobody works is no standstill of a minute."""
    one = WaitingFuture("one")
    clock = time.monotonic
    client = Scheduler(["at work", "stalled", OSError("busy"), "at work"], then=lambda: one.end("finished"))
    monkeypatch.setattr(shard_answers.time, "monotonic", lambda: clock() + 3600 * client.asked)
    assert collect(client, one) == {"one": "answer of one"}
    assert not client.cancelled


def test_a_closed_connection_is_no_standstill() -> None:
    with pytest.raises(QdqError, match="scheduler is lost; "):
        collect(Scheduler(["at work"], status="closed"), WaitingFuture("one"))


# What the scheduler looks at.


@dataclass(eq=False)
class SeenWorker:
    """A worker as the scheduler sees it."""

    address: str
    last_seen: float
    executing: dict[str, float]


class SchedulerState:
    """A scheduler with workers (seconds since each was heard of, what it executes) and perhaps with the shard "k"."""

    def __init__(self, workers: dict[str, tuple[float, str]], shard: tuple[str, str] | None) -> None:
        from distributed.metrics import time as now

        self.workers = {
            name: SeenWorker(name, now() - age, {key: 1.0} if key else {}) for name, (age, key) in workers.items()
        }
        self.tasks = {}
        if shard is not None:
            self.tasks["k"] = SimpleNamespace(state=shard[0], processing_on=self.workers.get(shard[1]))

    async def remove_worker(self, address: str, stimulus_id: str) -> None:
        del self.workers[address]

    def look(self) -> str:
        return str(asyncio.run(shard_answers._question()(["k"], 60.0, dask_scheduler=self)))


@pytest.mark.parametrize(
    ("workers", "shard", "said"),
    [
        ({}, None, "no workers"),
        ({"a": (1, "k")}, ("processing", "a"), "at work"),
        ({"a": (1, "")}, ("processing", "a"), "stalled"),  # the worker knows nothing of it
        ({"a": (1, "other"), "b": (1, "")}, ("processing", "b"), "stalled"),
        ({"a": (1, "other")}, ("queued", ""), "at work"),  # after the work of somebody else
        ({"a": (1, "")}, ("queued", ""), "stalled"),
        ({"a": (1, "other")}, ("memory", ""), "stalled"),  # the answer never came
        ({"a": (1, "other")}, None, "stalled"),  # forgotten
        ({"a": (61, "k")}, ("processing", "a"), "no workers"),
        ({"a": (61, "k"), "b": (1, "")}, ("processing", "a"), "stalled"),
        ({"a": (61, "k"), "b": (1, "other")}, ("queued", ""), "at work"),
    ],
)
def test_who_is_at_work(workers: dict[str, tuple[float, str]], shard: tuple[str, str] | None, said: str) -> None:
    assert SchedulerState(workers, shard).look() == said


def test_a_worker_that_gives_no_sign_of_life_is_taken_out() -> None:
    state = SchedulerState({"a": (61, "k"), "b": (55, "")}, None)
    state.look()
    assert list(state.workers) == ["b"]
