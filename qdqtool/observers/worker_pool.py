# SPDX-License-Identifier: Apache-2.0
"""Several threads count one walk over the data. The histograms are those that one thread would have counted.

Histograms that merge are counted by each thread for itself and added up. TensorRT's take the batches in file order:
there the threads run the model at once and count one after the other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qdqtool.data.loader import Task
from qdqtool.observers.data_passes import DataPass
from qdqtool.observers.observer_state import Counter, ObserverState

_POLL_SECONDS = 0.2  # between two looks at whether a signal has come


class WorkerPool:
    """Threads that share one session and take their batches from one source."""

    def __init__(self, walk: DataPass, observed: ObserverState) -> None:
        """Prepare it."""
        self._walk = walk
        self._observed = observed
        self._source = TaskSource(walk.batches)
        self._gate = OrderedGate()
        self._counted: queue.SimpleQueue[None] = queue.SimpleQueue()  # one entry for each batch
        self._parts: queue.SimpleQueue[ObserverState | None] = queue.SimpleQueue()  # None: a thread has ended
        self._requests = 1  # how often parts were asked for: the first time at the first batch

    def count(self, stopping: Callable[[], bool]) -> None:
        """Count every batch, or what is in work when `stopping` becomes true.

        Raises:
            QdqError: the fault of the first batch in file order that has one.
        """
        work = self._count_in_order if self._walk.plan.ordered else self._count_parts
        threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for _ in range(self._walk.workers)]
        for thread in threads:
            thread.start()
        try:
            self._gather(len(threads), stopping)
        finally:
            self._source.stop()
            for thread in threads:
                thread.join()
        self._source.raise_first()

    # ------------------------------------------------------------------ the calling thread

    def _gather(self, running: int, stopping: Callable[[], bool]) -> None:
        """Add up the parts until every thread has ended; ask for parts when the checkpoint is due."""
        checkpoint = None if self._walk.plan.ordered else self._walk.checkpoint  # in order, who counts also writes
        while running:
            try:
                part = self._parts.get(timeout=_POLL_SECONDS)
                running -= part is None
            except queue.Empty:
                part = None
            self._report()
            if part is not None:
                self._observed.merge(part)
                self._walk.write_when_due()
            elif checkpoint is not None and checkpoint.due():
                self._requests += 1
            if stopping():
                self._source.stop()
        self._report()

    def _report(self) -> None:
        while not self._counted.empty():
            self._counted.get()
            self._walk.on_batch()

    # ------------------------------------------------------------------ the threads

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._parts.put(None)

    def _count_parts(self) -> None:
        """Count into histograms of this thread; hand them over when they are asked for, and at the end."""
        part, counter = self._new_part()
        answered = 0
        for _, batch in self._source:
            with self._source.recording(batch.index):
                counter.add(batch, self._walk.arrays(batch))
                self._counted.put(None)
                if answered != self._requests and self._walk.checkpoint is not None:
                    answered = self._requests
                    self._parts.put(part)
                    part, counter = self._new_part()
        self._parts.put(part)

    def _new_part(self) -> tuple[ObserverState, Counter]:
        part = ObserverState(self._walk.plan)
        part.passed = self._observed.passed
        return part, self._walk.counter(part)

    def _count_in_order(self) -> None:
        """Run the model at once, count in file order."""
        counter = self._walk.counter(self._observed)
        for place, batch in self._source:
            with self._source.recording(batch.index), self._gate.place(place) as wait:
                arrays = list(self._walk.arrays(batch))
                if not wait():
                    return
                counter.add(batch, arrays)
                self._counted.put(None)
                self._walk.write_when_due()


class TaskSource:
    """Hands out the batches, each to one thread, and remembers the first fault in file order."""

    def __init__(self, batches: Iterator[Task]) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._taken = 0
        self._next_index = 0  # of the batch that is read next, for a fault while it is read
        self._stopped = False
        self._faults: list[tuple[int, BaseException]] = []

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        """The batches for one thread, with how many were handed out before each."""
        while (taken := self.take()) is not None:
            yield taken

    def take(self) -> tuple[int, Task] | None:
        """The next batch, with how many were handed out before it; None where there is none, or after a fault."""
        with self._lock:
            batch = None if self._stopped else self._read()
            if batch is None:
                self._stopped = True
                return None
            self._taken, self._next_index = self._taken + 1, batch.index + 1
            return self._taken - 1, batch

    def _read(self) -> Task | None:
        try:
            return next(self._batches, None)
        except BaseException as error:
            self._faults.append((self._next_index, error))
            return None

    @contextmanager
    def recording(self, index: int) -> Iterator[None]:
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


class OrderedGate:
    """Lets threads pass one after the other, in the order of the places they hold."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._broken = False

    @contextmanager
    def place(self, number: int) -> Iterator[Callable[[], bool]]:
        """Give a function that waits for the place's turn and says whether it came; the block's end passes it on.

        Where a block fails, no later place gets its turn.
        """
        try:
            yield lambda: self._wait(number)
        except BaseException:
            with self._changed:
                self._changed.wait_for(lambda: self._next == number or self._broken)
                self._broken = True
                self._changed.notify_all()
            raise
        with self._changed:
            if not self._broken:
                self._next = number + 1
            self._changed.notify_all()

    def _wait(self, number: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._next == number or self._broken)
            return not self._broken
