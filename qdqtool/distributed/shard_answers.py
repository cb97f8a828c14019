# SPDX-License-Identifier: Apache-2.0
"""The answers of shards as they come, and when to stop waiting. Not what is done with them (dask_calibration.py).

Dask waits without end for a task whose worker was lost unnoticed, for workers where there are none, and for a scheduler
that stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from qdqtool.distributed.dask_cluster import call_cluster
from qdqtool.errors import QdqError

_TICK = 0.5  # seconds in which an interruption is seen on every system


@dataclass(frozen=True)
class WaitLimits:
    """How long is waited for what may never come, in seconds.

    Attributes:
        look: without an answer, until the scheduler is asked who is at work; also how long it may take to say so.
        stalled: with nobody at work, until the shards that are left are taken back; also how old the last sign of life
            of a worker, or of the scheduler, may be.
        no_workers: with no worker, until the calibration ends.
    """

    look: float = 10.0
    stalled: float = 60.0
    no_workers: float = 300.0


def answers(client: Any, pending: Mapping[Any, int], limits: WaitLimits) -> Iterator[tuple[Any, Any]]:
    """Each future that ended, with its result or an exception; those that nobody works on are cancelled, and end so.

    Raises:
        QdqError: the scheduler does not answer, or has no workers.
    """
    ended: SimpleQueue[Any] = SimpleQueue()
    for future in pending:
        future.add_done_callback(ended.put)
    watch = _Watch(client, limits)
    while pending:
        try:
            future = ended.get(timeout=min(_TICK, limits.look))
        except Empty:
            if watch.is_stalled(pending):
                client.cancel(list(pending), force=True)
            continue
        yield future, _answer(future, limits.stalled)
        watch = _Watch(client, limits)


def _answer(future: Any, seconds: float) -> Any:
    try:
        return future.result(timeout=seconds)
    except Exception as error:
        return error


class _Watch:
    """What the cluster is at while no answer comes, and since when it was seen to be."""

    def __init__(self, client: Any, limits: WaitLimits) -> None:
        self._client, self._limits = client, limits
        self._looked = self._since = time.monotonic()
        self._state = ""

    def is_stalled(self, pending: Mapping[Any, int]) -> bool:
        """Whether nobody works on any of these; the scheduler is asked once in `look` seconds.

        Raises:
            QdqError: the scheduler does not answer, or has no workers.
        """
        if time.monotonic() - self._looked < self._limits.look:
            return False
        keys, fault = [future.key for future in pending], None
        try:
            state = call_cluster(
                self._client, "run_on_scheduler", _question(), keys, self._limits.stalled, seconds=self._limits.look
            )
        except QdqError as error:
            state, fault = "silent", error
        self._looked = time.monotonic()
        if state != self._state:  # not since the last look: this process may have been stopped between
            self._state, self._since = state, self._looked
        lasted = self._looked - self._since
        if fault is not None and lasted > self._limits.stalled:
            raise fault
        if state == "no workers" and lasted > self._limits.no_workers:
            reason = f"has had no workers for {self._limits.no_workers:g} s"
            raise QdqError("dask", reason, "start workers, then try again; see the workers' logs")
        return bool(state == "stalled" and lasted > self._limits.stalled)


def _question() -> Callable[..., Any]:
    """What the scheduler is asked. It travels as code, as the scheduler's machine may lack this package."""

    async def look(keys: list[str], seconds: float, dask_scheduler: Any) -> str:
        from distributed.metrics import time

        workers = list(dask_scheduler.workers.values())
        silent = {one for one in workers if time() - one.last_seen > seconds}
        for one in silent:
            await dask_scheduler.remove_worker(one.address, stimulus_id="qdqtool-silent-worker")
        busy = {one for one in workers if one.executing} - silent
        tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
        if not dask_scheduler.workers:
            return "no workers"
        if any(task.processing_on in busy for task in tasks):
            return "at work"
        queued = any(task.state in ("queued", "waiting", "no-worker") for task in tasks)
        return "at work" if busy and queued else "stalled"

    return look
