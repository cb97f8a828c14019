# SPDX-License-Identifier: Apache-2.0
"""The gradients of one update: of batches computed here, or by several processes. Not how weights move by them.

Batch i * W + r of an update is computed by rank r of W. Rank 0 adds the gradients in the order of the batches, which is
what one process does that accumulates as many: the sum has the same bits. It sends the weights to the others.

By all-reduce each rank adds up its own batches, gets the sum of all ranks and moves its weights by itself. The sum is
the same on all ranks, in an order that the library chooses. What a GPU computed stays there until it is summed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.training.reducers import Array, Reducer
from qdqtool.training.training_run import Computed, Float32, TrainingRun, Values
from qdqtool.training.weight_update import WeightUpdate

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

    def __init__(
        self, run: TrainingRun, accumulated: int, reducer: Reducer | None = None, *, all_reduce: bool = False
    ) -> None:
        """Each rank computes `accumulated` batches for one update."""
        self._run, self._accumulated, self._reducer = run, accumulated, reducer
        self._all_reduce = all_reduce and reducer is not None
        self._sends_all = True  # what all-reduce keeps equal on all ranks
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
                self._reducer.broadcast(np.array([_COMPUTE, step, self._sends_all]))
                for array in self._sent(everything=self._sends_all):
                    self._reducer.broadcast(array)
            self._sends_all = False
        if self._all_reduce:
            return self._reduced(step, values, total)
        total[...] = 0
        found = []
        for computed in self._computed(step, values):
            if self.batches == 1:
                self._write(computed, values, total)
                return [_facts(computed)]
            self._write(computed, values, self._own)
            if self._reducer is None:
                total += self._own
                found.append(_facts(computed))
                continue
            with self._timed("exchange"):
                for one in self._reducer.gather(self._own):
                    total += one
                found += self._gathered(_facts(computed))
        total *= np.float32(1 / self.batches)
        return found

    def decide(self, rate: float | None) -> None:
        """On rank 0: tell ranks that move their own weights at which rate; None for no update."""
        if self._all_reduce and self._reducer is not None:
            with self._timed("exchange"):
                self._reducer.broadcast(np.array([math.nan if rate is None else rate]))

    def send_all(self) -> None:
        """On rank 0: the next update begins from its weights on all ranks."""
        self._sends_all = True

    def serve(self, update: WeightUpdate) -> None:
        """On the other ranks: compute for rank 0 until it stops.

        Raises:
            KeyboardInterrupt: rank 0 was interrupted.
            QdqError: a batch cannot be made, or rank 0 is lost.
        """
        assert self._reducer is not None
        order, rate = np.zeros(3), np.zeros(1)
        while True:
            self._reducer.broadcast(order)
            if order[0] == _INTERRUPT:
                raise KeyboardInterrupt
            if order[0] == _STOP:
                return
            for array in self._sent(everything=bool(order[2])):
                self._reducer.broadcast(array)
            step, values = int(order[1]), self._run.values()
            if not self._all_reduce:
                for computed in self._computed(step, values):
                    self._write(computed, values, self._own)
                    for _ in self._reducer.gather(self._own):
                        pass
                    self._gathered(_facts(computed))
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                self._reduced(step, values, update.gradient)
                update.regularize()
            self._reducer.broadcast(rate)
            if not math.isnan(rate[0]):
                update.move(float(rate[0]))

    def stop(self, *, interrupted: bool = False) -> None:
        """On rank 0: end `serve` on the other ranks."""
        if self._reducer is not None:
            self._reducer.broadcast(np.array([_INTERRUPT if interrupted else _STOP, 0, 0]))

    def _sent(self, *, everything: bool) -> list[Array]:
        """What the other ranks get before they compute."""
        run = self._run
        found: list[Array] = [] if self._all_reduce and not everything else [run.parameters.vector]
        if self._all_reduce and everything:
            found += run.optimizer.state().values()
        if run.maxima is not None:
            found.append(run.maxima.amax)
        if run.loss_scale is not None:
            found.append(run.loss_scale.state)
        return found

    def _reduced(self, step: int, values: Values, total: Float32) -> list[BatchFacts]:
        """The mean gradient of all ranks, on each of them; on rank 0 the facts of all batches in order."""
        assert self._reducer is not None
        total[...] = 0
        own, held = list[BatchFacts](), None
        for computed in self._computed(step, values):
            if isinstance(computed.gradients, Mapping):
                self._run.parameters.gather(computed.gradients, values, total)
            else:
                held = self._reducer.added(held, computed.gradients)
            own.append(_facts(computed))
        with self._timed("exchange"):
            reduced = self._reducer.all_reduce(total if held is None else held)
            found = [one for facts in own for one in self._gathered(facts)]
        np.multiply(reduced, np.float32(1 / self.batches), out=total)
        return found

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

    def _write(self, computed: Computed, values: Values, into: Float32) -> None:
        into[...] = 0
        if isinstance(computed.gradients, Mapping):
            self._run.parameters.gather(computed.gradients, values, into)
        else:
            into += computed.gradients.numpy()

    def _gathered(self, own: BatchFacts) -> list[BatchFacts]:
        """On rank 0 the facts of all ranks, in order: float64 on their way, so that they are the same."""
        assert self._reducer is not None
        found = []
        for row in self._reducer.gather(np.array([own.loss, *own.parts.values(), *own.largest])):
            loss, *rest = row.tolist()
            parts, largest = rest[: len(own.parts)], rest[len(own.parts) :]
            found.append(BatchFacts(loss, dict(zip(own.parts, parts, strict=True)), tuple(largest)))
        return found


def _facts(computed: Computed) -> BatchFacts:
    return BatchFacts(computed.loss, computed.parts, computed.largest)
