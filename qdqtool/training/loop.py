# SPDX-License-Identifier: Apache-2.0
"""The loop: batches to gradients to steps, measured now and then, the best kept. Not where gradients come from.

All that the next step depends on is in `Progress` and `Loop.arrays`: a run taken up again ends with the same bits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.observers.interruption import Interruption
from qdqtool.training.averages import WeightAverage
from qdqtool.training.log import Listener
from qdqtool.training.optimizers import clip_to_norm
from qdqtool.training.task import Computed, Float32, LoopOptions, TrainingProblem, Values

Arrays = dict[str, Float32]

HALVINGS = 3
_RISEN = 5.0  # times the measure of the start: it runs away; twice is common while the rate is high
_GAIN = 0.999  # of the best measure: a smaller gain is none


@dataclass
class Progress:
    """What changes while the loop runs, beside arrays.

    Attributes:
        step: updates taken.
        halvings: how often the rate was halved.
        stale: measurements since the last gain.
        start: the measure before the first step.
        best: the least there was.
        best_step: where; 0 for the start.
        seconds: CPU seconds so far.
        reason: why it ended; "" while it runs.
        broken: what was no number or rose, the last time.
    """

    step: int = 0
    halvings: int = 0
    stale: int = 0
    start: float = math.nan
    best: float = math.nan
    best_step: int = 0
    seconds: float = 0.0
    reason: str = ""
    broken: str = ""


Keep = Callable[[Mapping[str, Any], Mapping[str, Float32]], None]


class Loop:
    """One training run.

    Attributes:
        progress: how far it is.
    """

    def __init__(
        self, subject: TrainingProblem, options: LoopOptions, listener: Listener, keep: Keep | None = None
    ) -> None:
        """Prepare it.

        Args:
            subject: what is trained.
            options: how.
            listener: is told what happens.
            keep: writes a checkpoint of facts and arrays; None where none is wanted.
        """
        self._subject, self._options, self._listener, self._keep = subject, options, listener, keep
        self.progress = Progress()
        size = subject.parameters.vector.size
        self._gradient, self._move = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._average = WeightAverage(subject.parameters.vector, options.average) if options.average else None
        self._best = self._now()
        self._begun = False
        self._measured = 0
        self._wall = time.monotonic()

    # ------------------------------------------------------------------------------------------------ taking up again

    def arrays(self) -> Arrays:
        """Everything but `progress` that the next step depends on, by name; not copied."""
        found = {"vector": self._subject.parameters.vector}
        found |= {f"optimizer.{name}": array for name, array in self._subject.optimizer.state().items()}
        found |= {f"best.{name}": array for name, array in self._best.items()}
        if self._average is not None:
            found["average"] = self._average.vector
        if self._subject.maxima is not None:
            found["amax"] = self._subject.maxima.amax
        return found

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Float32]) -> None:
        """Go on from a checkpoint.

        Raises:
            QdqError: the arrays are of another run.
        """
        own = self.arrays()
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in arrays.items()}:
            raise QdqError("the checkpoint", "holds other weights than the model", "remove it and start again")
        for name, array in own.items():
            array[...] = arrays[name]
        self.progress = Progress(**facts)
        self._begun = True

    # ------------------------------------------------------------------------------------------------------- running

    def run(self) -> Progress:
        """Train until the steps are taken, nothing is gained any more, time is over or it went wrong three times.

        Raises:
            KeyboardInterrupt: a signal came; with a checkpoint, the work is in it.
            QdqError: what making batches or running the student refuses; a start that cannot be measured.
        """
        if self._keep is None:
            self._run(None)
        else:
            with Interruption() as stop:
                self._run(stop)
        return self.progress

    def best_values(self) -> Arrays:
        """The parameters and moving scales that measured best, as copies."""
        values = self._values_of(self._best["vector"], self._best.get("amax"))
        return {name: np.array(value) for name, value in values.items()}

    def _run(self, stop: Interruption | None) -> None:
        self._clock = time.process_time() - self.progress.seconds
        if not self._begun:
            self._begin()
        options, progress = self._options, self.progress
        samples = options.batch * options.accumulate
        batches = self._subject.supply.from_sample(progress.step * samples)
        while not progress.reason:
            if progress.step >= options.steps:
                progress.reason = "all steps were taken"
                break
            self._step(batches)
            if not progress.reason and self._out_of_time():
                if self._measured != progress.step:
                    self._measure()
                progress.reason = progress.reason or "its time was over"
            if stop is not None and stop.requested:
                self._checkpoint()
                raise KeyboardInterrupt("the work is in the checkpoint: continue with --resume")
            if progress.step % options.keep_every == 0:
                self._checkpoint()
        self._checkpoint()

    def _begin(self) -> None:
        measure = self._subject.judge(self._values())
        if not math.isfinite(measure):
            raise QdqError("training", f"the model measures {measure} before the first step", "check model and data")
        self.progress.start = self.progress.best = measure
        self._listener.event({"event": "measure", "step": 0, "measure": measure})
        self._checkpoint()

    def _out_of_time(self) -> bool:
        limit = self._options.seconds
        return limit is not None and time.process_time() - self._clock > limit

    def _checkpoint(self) -> None:
        self.progress.seconds = time.process_time() - self._clock
        if self._keep is not None:
            self._keep(asdict(self.progress), self.arrays())

    # ------------------------------------------------------------------------------------------------------ one step

    def _step(self, batches: Iterator[Batch]) -> None:
        options, progress, subject = self._options, self.progress, self._subject
        begun = time.monotonic()
        values = self._values()
        computed = [subject.student.compute(batch, values) for batch in itertools.islice(batches, options.accumulate)]
        loss = math.fsum(one.loss for one in computed) / len(computed)
        norm = self._gather(computed, values)
        rate = options.rate * options.schedule.factor(progress.step, options.steps) * 0.5**progress.halvings
        progress.step += 1
        if not math.isfinite(loss) or not math.isfinite(norm):
            self._back_off(f"{'the loss' if not math.isfinite(loss) else 'a gradient'} is no number")
            return
        self._move_by(rate)
        if subject.maxima is not None:
            for one in computed:
                subject.maxima.add(one.largest)
        if self._average is not None:
            self._average.add(subject.parameters.vector, progress.step)
        passed = time.monotonic() - begun
        self._tell(loss, computed, rate, norm, passed)
        if progress.step % options.every == 0 or progress.step == options.steps:
            self._measure()

    def _gather(self, computed: list[Computed], values: Values) -> float:
        """The gradient of the step, and its norm before it is clipped."""
        gradient, options = self._gradient, self._options
        gradient[...] = 0
        for one in computed:
            self._subject.parameters.gather(one.gradients, values, gradient)
        if len(computed) > 1:
            gradient *= np.float32(1 / len(computed))
        if options.l1:
            np.sign(self._subject.parameters.vector, out=self._move)
            self._move *= self._subject.decayed
            self._move *= np.float32(options.l1)
            gradient += self._move
        return clip_to_norm(gradient, options.clip)

    def _move_by(self, rate: float) -> None:
        """Weights -= rate * (pace * direction + decay * weights)."""
        vector, move = self._subject.parameters.vector, self._move
        np.multiply(self._subject.optimizer.direction(self._gradient), self._subject.pace, out=move)
        move *= np.float32(rate)
        if self._options.weight_decay:
            shrunk = np.multiply(vector, self._subject.decayed, out=self._gradient)
            shrunk *= np.float32(rate * self._options.weight_decay)
            move += shrunk
        vector -= move
        if self._subject.bounds is not None:
            np.clip(vector, -self._subject.bounds, self._subject.bounds, out=vector)

    def _tell(self, loss: float, computed: list[Computed], rate: float, norm: float, passed: float) -> None:
        parts = {name: math.fsum(one.parts[name] for one in computed) / len(computed) for name in computed[0].parts}
        images = self._options.batch * self._options.accumulate
        self._listener.step(
            {
                "step": self.progress.step,
                "loss": loss,
                "parts": parts,
                "rate": rate,
                "norm": norm,
                "images_per_second": images / max(passed, 1e-9),
                "seconds": time.monotonic() - self._wall,
                "cpu_seconds": time.process_time() - self._clock,
            }
        )

    # ------------------------------------------------------------------------------------------ measuring, going back

    def _measure(self) -> None:
        progress = self.progress
        self._measured = progress.step
        measure = self._subject.judge(self._judged())
        self._listener.event({"event": "measure", "step": progress.step, "measure": measure})
        if not math.isfinite(measure) or measure > _RISEN * progress.start:
            self._back_off(
                f"the measure rose to {measure:.4g}" if math.isfinite(measure) else "the measure is no number"
            )
            return
        gained = measure < progress.best * _GAIN
        if measure < progress.best:
            progress.best, progress.best_step = measure, progress.step
            self._best = {name: array.copy() for name, array in self._judged_arrays().items()}
        early = 2 * progress.step < self._options.steps  # much is won as the rate falls
        progress.stale = 0 if gained or early else progress.stale + 1
        if progress.stale >= self._options.patience:
            progress.reason = f"{progress.stale} measurements brought no gain"

    def _back_off(self, why: str) -> None:
        """Halve the rate and go on from the best; end where that has been done often enough."""
        progress, subject = self.progress, self._subject
        progress.halvings += 1
        progress.broken = f"{why} at step {progress.step}"
        told = {"event": "halved", "step": progress.step, "reason": why, "halvings": progress.halvings}
        self._listener.event(told)
        subject.parameters.vector[...] = self._best["vector"]
        if subject.maxima is not None:
            subject.maxima.amax[...] = self._best["amax"]
        if self._average is not None:
            self._average.vector[...] = self._best["vector"]
        subject.optimizer.forget()
        if progress.halvings >= HALVINGS:
            progress.reason = f"the rate was halved {HALVINGS} times, last because {progress.broken}"

    def _values(self) -> Arrays:
        """What the student is fed."""
        amax = None if self._subject.maxima is None else self._subject.maxima.amax
        return self._values_of(self._subject.parameters.vector, amax)

    def _judged(self) -> Arrays:
        """What is measured: the moving average of the weights where there is one."""
        arrays = self._judged_arrays()
        return self._values_of(arrays["vector"], arrays.get("amax"))

    def _judged_arrays(self) -> Arrays:
        found = {"vector": self._subject.parameters.vector if self._average is None else self._average.vector}
        if self._subject.maxima is not None:
            found["amax"] = self._subject.maxima.amax
        return found

    def _now(self) -> Arrays:
        return {name: array.copy() for name, array in self._judged_arrays().items()}

    def _values_of(self, vector: Float32, amax: Float32 | None) -> Arrays:
        values = self._subject.parameters.values(vector)
        if self._subject.maxima is not None and amax is not None:
            values |= self._subject.maxima.values(amax)
        return values
