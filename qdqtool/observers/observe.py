# SPDX-License-Identifier: Apache-2.0
"""One walk over the data: each batch through the session into the histograms, by one thread or several.

What is counted does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable

from qdqtool.observers.data_passes import DataPass
from qdqtool.observers.interruption import Interruption
from qdqtool.observers.observer_state import ObserverState
from qdqtool.observers.worker_pool import WorkerPool


def observe(walk: DataPass, observed: ObserverState) -> None:
    """Count every batch of a walk.

    Raises:
        QdqError: what reading, running or counting a batch refuses: of several faults the first in file order.
        KeyboardInterrupt: a signal came; where there is a checkpoint, it holds what was counted.
    """
    if walk.checkpoint is None:
        _count(walk, observed, lambda: False)
        return
    with Interruption() as interruption:
        _count(walk, observed, lambda: interruption.requested)
        if interruption.requested:
            walk.checkpoint.write()
            raise KeyboardInterrupt("the progress is saved: run the same command with --resume to continue")


def _count(walk: DataPass, observed: ObserverState, stopping: Callable[[], bool]) -> None:
    if walk.workers > 1:
        WorkerPool(walk, observed).count(stopping)
        return
    counter = walk.counter(observed)
    for batch in walk.batches:
        counter.add(batch, walk.arrays(batch))
        walk.write_when_due()
        walk.on_batch()
        if stopping():
            return
