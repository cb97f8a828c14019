# SPDX-License-Identifier: Apache-2.0
"""Batches through a session into an observation, by one thread or several. What is counted does not depend on how many.

Histograms that merge are counted by each thread for itself and added up; TensorRT's take the batches in file order, so
there the threads run the model at once and count one after the other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Task
from qdqtool.observers.interruption import Interruption
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import Counter, ObserverState
from qdqtool.runtime.activations import OrtActivations

Float32 = npt.NDArray[np.float32]
_PATIENCE = 0.2  # seconds between two looks at whether a signal has come


class Checkpointer(Protocol):
    """What keeps an observation while it grows; see checkpoint.py."""

    def due(self) -> bool:
        """Whether it is time to keep it."""

    def keep(self, observation: ObserverState) -> None:
        """Keep it: no batch is half counted."""


@dataclass(frozen=True)
class Run:
    """One walk over the data.

    Attributes:
        activations: runs a batch.
        tasks: the batches that are to be counted, in file order.
        plan: what is counted.
        workers: how many threads.
        checkpointer: keeps the observation now and then; None where nothing is kept.
        on_batch: is called with each batch that has been counted.
    """

    activations: OrtActivations
    tasks: Iterator[Task]
    plan: ObservationPlan
    workers: int
    checkpointer: Checkpointer | None
    on_batch: Callable[[], object]


def observe(run: Run, observation: ObserverState) -> None:
    """Count every batch of a run into an observation.

    Raises:
        QdqError: what reading, running or counting a batch refuses: of several faults the first in file order.
        KeyboardInterrupt: a signal came; where there is a checkpointer, it has kept what was counted.
    """
    if run.checkpointer is None:
        _walk(run, observation, None)
        return
    with Interruption() as stop:
        _walk(run, observation, stop)
        if stop.requested:
            run.checkpointer.keep(observation)
            raise KeyboardInterrupt("the work is in the checkpoint: continue with --resume")


def _walk(run: Run, observation: ObserverState, stop: Interruption | None) -> None:
    if run.workers > 1:
        _WorkerPool(run, observation).work(stop)
        return
    counter = observation.counter(run.activations.names)
    for task in run.tasks:
        _count(run, counter, task)
        if run.checkpointer is not None and run.checkpointer.due():
            run.checkpointer.keep(observation)
        run.on_batch()
        if stop is not None and stop.requested:
            return


def _count(run: Run, counter: Counter, task: Task) -> None:
    counter.add(task, _arrays(run.activations, task))


def _arrays(activations: OrtActivations, task: Task) -> list[Float32]:
    return [array for _, array in activations.run(task.load())]


class _WorkerPool:
    """Threads that share one session and one walk over the batches."""

    def __init__(self, run: Run, observation: ObserverState) -> None:
        self._run = run
        self._total = observation
        self._supply = _Supply(run.tasks)
        self._turn = _OrderedGate()
        self._hall: queue.SimpleQueue[ObserverState | None] = (
            queue.SimpleQueue()
        )  # a part counted; None: one thread less
        self._calls = 1  # how often the threads were asked for what they have; first for the first batch
        self._ticks: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self, stop: Interruption | None) -> None:
        """Let the threads work until the batches or the patience of the user end."""
        work = self._in_turn if self._run.plan.ordered else self._apart
        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for _ in range(self._run.workers)]
        for thread in threads:
            thread.start()
        try:
            self._gather(len(threads), stop)
        finally:
            self._supply.stop()
            for thread in threads:
                thread.join()
        self._supply.raise_first()

    def _gather(self, alive: int, stop: Interruption | None) -> None:
        """Add up what the threads bring, in the calling thread, and keep it when it is time to."""
        checkpointer = self._run.checkpointer
        while alive:
            try:
                part = self._hall.get(timeout=_PATIENCE)
            except queue.Empty:
                part = None
            else:
                alive -= part is None
            self._show()
            if part is not None:
                self._total.merge(part)
                if checkpointer is not None and checkpointer.due():
                    checkpointer.keep(self._total)
            elif checkpointer is not None and not self._run.plan.ordered and checkpointer.due():
                self._calls += 1
            if stop is not None and stop.requested:
                self._supply.stop()
        self._show()

    def _show(self) -> None:
        while not self._ticks.empty():
            self._ticks.get()
            self._run.on_batch()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._hall.put(None)

    def _apart(self) -> None:
        """Each thread counts for itself, and brings what it has when it is asked to and at the end."""
        part, answered = self._fresh(), 0
        counter = part.counter(self._run.activations.names)
        for _, task in self._supply:
            with self._supply.failing(task.index):
                _count(self._run, counter, task)
                self._ticks.put(None)
                if answered != self._calls and self._run.checkpointer is not None:
                    answered = self._calls
                    self._hall.put(part)
                    part = self._fresh()
                    counter = part.counter(self._run.activations.names)
        self._hall.put(part)

    def _fresh(self) -> ObserverState:
        part = ObserverState(self._run.plan)
        part.passed = self._total.passed
        return part

    def _in_turn(self) -> None:
        """Threads run the model at once and count in file order; whoever counts also keeps."""
        counter = self._total.counter(self._run.activations.names)
        for place, task in self._supply:
            with self._supply.failing(task.index), self._turn.holding(place) as wait:
                arrays = _arrays(self._run.activations, task)
                if not wait():
                    return
                counter.add(task, arrays)
                self._ticks.put(None)
                if self._run.checkpointer is not None and self._run.checkpointer.due():
                    self._run.checkpointer.keep(self._total)


class _Supply:
    """Hands out the batches, each to one thread, and remembers the first fault in file order."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._place = self._index = 0
        self._stopped = False
        self._faults: list[tuple[int, BaseException]] = []

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        """The batches for one thread, with how many were handed out before each."""
        while (taken := self._take()) is not None:
            yield taken

    def _take(self) -> tuple[int, Task] | None:
        with self._lock:
            if self._stopped:
                return None
            try:
                task = next(self._tasks, None)
            except BaseException as error:
                self._faults.append((self._index, error))
                task = None
            if task is None:
                self._stopped = True
                return None
            self._place, self._index = self._place + 1, task.index + 1
            return self._place - 1, task

    @contextmanager
    def failing(self, index: int) -> Iterator[None]:
        """Keep a fault of the block for `raise_first`; no more batches are handed out then."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._faults.append((index, error))
                self._stopped = True

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self._stopped = True

    def raise_first(self) -> None:
        """Raise the fault of the lowest batch: every batch before it had been handed out, and has been worked on."""
        if self._faults:
            raise min(self._faults, key=lambda fault: fault[0])[1]


class _OrderedGate:
    """Lets threads pass one after the other, in the order of the places they hold."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._next = 0
        self._broken = False

    @contextmanager
    def holding(self, place: int) -> Iterator[Callable[[], bool]]:
        """Give a function that waits for the place's turn and says whether it came; the block's end passes it on.

        Where a block fails, no later place gets its turn.
        """
        try:
            yield lambda: self._wait(place)
        except BaseException:
            with self._free:
                self._free.wait_for(lambda: self._next == place or self._broken)
                self._broken = True
                self._free.notify_all()
            raise
        with self._free:
            if not self._broken:
                self._next = place + 1
            self._free.notify_all()

    def _wait(self, place: int) -> bool:
        with self._free:
            self._free.wait_for(lambda: self._next == place or self._broken)
            return not self._broken
