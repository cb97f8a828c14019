# SPDX-License-Identifier: Apache-2.0
"""The gradients of one update: of batches computed here, or by several processes. Not what is done with them.

Batch i * W + r of an update is computed by rank r of W. Rank 0 adds the gradients in the order of the batches, which is
what one process does that accumulates as many: the sum has the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.training.reducers import Array, Reducer
from qdqtool.training.training_run import Computed, Float32, TrainingRun, Values

_COMPUTE, _STOP, _INTERRUPT = 1.0, 0.0, -1.0


@dataclass(frozen=True)
class BatchFacts:
    """What is known of one batch beside its gradients; see `Computed`."""

    loss: float
    parts: Mapping[str, float]
    largest: tuple[float, ...]


class StepGradients:
    """Computes the batches of each update, alone or with the other ranks of a reducer.

    Attributes:
        batches: how many there are in one update.
        seconds: of the last update on this rank, by what was done: "data", "gradient" and "exchange" with other ranks,
            waiting for them included.
    """

    def __init__(self, run: TrainingRun, accumulated: int, reducer: Reducer | None = None) -> None:
        """Each rank computes `accumulated` batches for one update."""
        self._run, self._accumulated, self._reducer = run, accumulated, reducer
        self.batches = accumulated * (1 if reducer is None else reducer.size)
        self._source: Iterator[Batch] = iter(())
        self._next = -1  # the update that `_source` comes to
        self._own = np.zeros(run.parameters.vector.size, np.float32)
        self.seconds = dict.fromkeys(("data", "gradient", "exchange"), 0.0)

    def of_step(self, step: int, values: Values, total: Float32) -> list[BatchFacts]:
        """On rank 0: the mean gradient of an update, written to `total`, and the facts of its batches in order.

        Raises:
            QdqError: a batch cannot be made, or a worker is lost.
        """
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        if self._reducer is not None:
            with self._timed("exchange"):
                self._reducer.broadcast(np.array([_COMPUTE, step]))
                for array in self._weights():
                    self._reducer.broadcast(array)
        total[...] = 0
        found = []
        for computed in self._computed(step, values):
            if self.batches == 1:
                self._run.parameters.gather(computed.gradients, values, total)
                return [BatchFacts(computed.loss, computed.parts, computed.largest)]
            self._add_up(computed, values)
            if self._reducer is None:
                total += self._own
                found += self._facts(computed)
                continue
            with self._timed("exchange"):
                for one in self._reducer.gather(self._own):
                    total += one
                found += self._facts(computed)
        total *= np.float32(1 / self.batches)
        return found

    def serve(self) -> None:
        """On the other ranks: compute for rank 0 until it stops.

        Raises:
            KeyboardInterrupt: rank 0 was interrupted.
            QdqError: a batch cannot be made, or rank 0 is lost.
        """
        assert self._reducer is not None
        order = np.zeros(2)
        while True:
            self._reducer.broadcast(order)
            if order[0] == _INTERRUPT:
                raise KeyboardInterrupt
            if order[0] == _STOP:
                return
            for array in self._weights():
                self._reducer.broadcast(array)
            values = self._run.values()
            for computed in self._computed(int(order[1]), values):
                self._add_up(computed, values)
                for _ in self._reducer.gather(self._own):
                    pass
                self._facts(computed)

    def stop(self, *, interrupted: bool = False) -> None:
        """On rank 0: end `serve` on the other ranks."""
        if self._reducer is not None:
            self._reducer.broadcast(np.array([_INTERRUPT if interrupted else _STOP, 0]))

    def _weights(self) -> tuple[Array, ...]:
        maxima, scale = self._run.maxima, self._run.loss_scale
        more = (None if maxima is None else maxima.amax, None if scale is None else scale.state)
        return (self._run.parameters.vector, *(array for array in more if array is not None))

    def _computed(self, step: int, values: Values) -> Iterator[Computed]:
        """The batches of this rank; their order goes on from update to update, without a second read."""
        if step != self._next:
            rank, size = (0, 1) if self._reducer is None else (self._reducer.rank, self._reducer.size)
            self._source = self._run.batches.from_batch(step * self.batches, rank, size)
        self._next = step + 1
        for _ in range(self._accumulated):
            with self._timed("data"):
                batch = next(self._source)
            with self._timed("gradient"):
                computed = self._run.student.compute(batch, values)
            yield computed

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[what] += time.monotonic() - begun

    def _add_up(self, computed: Computed, values: Values) -> None:
        self._own[...] = 0
        self._run.parameters.gather(computed.gradients, values, self._own)

    def _facts(self, computed: Computed) -> list[BatchFacts]:
        """On rank 0 the facts of all ranks, in order: float64 on their way, so that they are the same."""
        if self._reducer is None:
            return [BatchFacts(computed.loss, computed.parts, computed.largest)]
        own = np.array([computed.loss, *computed.parts.values(), *computed.largest])
        found = []
        for row in self._reducer.gather(own):
            loss, *rest = row.tolist()
            parts, largest = rest[: len(computed.parts)], rest[len(computed.parts) :]
            found.append(BatchFacts(loss, dict(zip(computed.parts, parts, strict=True)), tuple(largest)))
        return found
