# SPDX-License-Identifier: Apache-2.0
"""The loop: batches to gradients to steps, measured now and then, the best kept. Not where gradients come from.

How large a step is, and when a lower rate is tried, the learning rate says (learning_rate.py).
All that the next step depends on is in `Progress` and `Loop.arrays`: a run taken up again ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.observers.interruption import Interruption
from qdqtool.training.averages import WeightAverage
from qdqtool.training.learning_rate import rate_of
from qdqtool.training.log import Listener
from qdqtool.training.options import Length, TrainingOptions
from qdqtool.training.step_gradients import BatchFacts, StepGradients
from qdqtool.training.training_run import Float32, TrainingRun
from qdqtool.training.weight_update import WeightUpdate

Arrays = dict[str, Float32]

_GAIN = 0.999  # of the best measure: a smaller gain is none


@dataclass
class Progress:
    """What changes while the loop runs, beside arrays.

    Attributes:
        step: updates taken.
        halvings: how often the learning rate was halved.
        stale: measurements since the last gain.
        start: the measure before the first step.
        best: the least there was.
        best_step: where; 0 for the start.
        seconds: CPU seconds so far.
        reason: why it ended; "" while it runs.
        broken: what was no number or rose, the last time.
        began: the step at which it began, or last went on from the best.
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
    began: int = 0

    @property
    def since(self) -> int:
        """Steps since it began, or last went on from the best."""
        return self.step - self.began


Keep = Callable[[Mapping[str, Any], Mapping[str, Float32]], None]


class Loop:
    """One training run.

    Attributes:
        progress: how far it is.
    """

    def __init__(
        self,
        run: TrainingRun,
        options: TrainingOptions,
        length: Length,
        listener: Listener,
        keep: Keep | None = None,
        gradients: StepGradients | None = None,
    ) -> None:
        """Prepare it; `gradients` shares the batches of an update with other processes."""
        self._gradients = gradients or StepGradients(run, length.grad_accum)
        self._run, self._length, self._listener, self._keep = run, length, listener, keep
        self._update, self._options = WeightUpdate(run, options.update), options.run
        self._rate = rate_of(options, length.steps)
        self.progress = Progress()
        decay = options.update.ema_decay
        self._average = WeightAverage(run.parameters.vector, decay) if decay else None
        self._best = self._now()
        self._begun = False
        self._measured = 0
        self._wall = time.monotonic()

    # ------------------------------------------------------------------------------------------------ taking up again

    def arrays(self) -> Arrays:
        """Everything but `progress` that the next step depends on, by name; not copied."""
        found = {"vector": self._run.parameters.vector}
        found |= {f"optimizer.{name}": array for name, array in self._run.optimizer.state().items()}
        found |= {f"best.{name}": array for name, array in self._best.items()}
        if self._average is not None:
            found["average"] = self._average.vector
        if self._run.maxima is not None:
            found["amax"] = self._run.maxima.amax
        if self._run.loss_scale is not None:
            found["loss_scale"] = self._run.loss_scale.state
        return found

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Float32]) -> None:
        """Go on from a checkpoint.

        Raises:
            QdqError: the arrays are of another run.
        """
        own = self.arrays()
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in arrays.items()}:
            raise QdqError("the checkpoint", "has other weights than the model", "remove it and start again")
        for name, array in own.items():
            array[...] = arrays[name]
        self.progress = Progress(**facts)
        self._begun = True

    # ------------------------------------------------------------------------------------------------------- running

    def run(self) -> Progress:
        """Train until the steps are taken, nothing is gained any more, time is over or no rate serves.

        Raises:
            KeyboardInterrupt: a signal came; with a checkpoint, the work is in it.
            QdqError: what making batches or running the student refuses; a start that cannot be measured.
        """
        if self._keep is None:
            self._train(None)
        else:
            with Interruption() as stop:
                self._train(stop)
        return self.progress

    @property
    def how_far(self) -> str:
        """The step that it is at, for whoever watches."""
        return f"step {self.progress.step} of {self._length.steps}"

    def best_values(self) -> Arrays:
        """The parameters and moving scales that measured best, as copies."""
        values = self._values_of(self._best["vector"], self._best.get("amax"))
        return {name: np.array(value) for name, value in values.items()}

    def _train(self, stop: Interruption | None) -> None:
        self._clock = time.process_time() - self.progress.seconds
        if not self._begun:
            self._begin()
        progress, length = self.progress, self._length
        while not progress.reason:
            if progress.step >= length.steps:
                progress.reason = "all steps are done"
                break
            try:
                self._step()
            except QdqError:  # a sample that cannot be read, a worker that is gone: the update is not taken
                self._checkpoint()
                raise
            limit = self._options.seconds
            if not progress.reason and limit is not None and time.process_time() - self._clock >= limit:
                if self._measured != progress.step:
                    self._measure()
                progress.reason = progress.reason or "the time limit was reached"
            if stop is not None and stop.requested:
                self._checkpoint()
                self._gradients.stop(interrupted=True)
                raise KeyboardInterrupt("the progress is saved: run the same command with --resume to continue")
            if progress.step % self._options.checkpoint_every == 0:
                self._checkpoint()
        self._checkpoint()

    def _begin(self) -> None:
        measure = self._run.measure(self._run.values())
        if not math.isfinite(measure):
            raise QdqError(
                "training", f"the validation metric is {measure} before the first step", "check model and data"
            )
        self.progress.start = self.progress.best = measure
        self._listener.event({"event": "measure", "step": 0, "measure": measure})
        self._checkpoint()

    def _checkpoint(self) -> None:
        self.progress.seconds = time.process_time() - self._clock
        if self._keep is not None:
            self._keep(asdict(self.progress), self.arrays())

    # ------------------------------------------------------------------------------------------------------ one step

    def _step(self) -> None:
        progress, run, length = self.progress, self._run, self._length
        begun = time.monotonic()
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is seen in the sum
            computed = self._gradients.of_step(progress.step, run.values(), self._update.gradient)
            norm = self._update.regularize()
        loss = math.fsum(one.loss for one in computed) / len(computed)
        scale = run.loss_scale
        scaled_by = {} if scale is None else {"loss_scale": float(scale.value)}
        finite = math.isfinite(loss) and math.isfinite(norm)
        rate = self._rate.of_step(progress.step, progress.since, progress.halvings)
        self._gradients.decide(rate if finite else None)
        if not finite and scale is not None and scale.halve():  # no update: the same step comes again
            self._listener.event({"event": "overflow", "step": progress.step + 1, **scaled_by})
            return
        progress.step += 1
        if not finite:
            self._back_off(f"{'the loss' if not math.isfinite(loss) else 'a gradient'} is not a number")
            return
        if scale is not None:
            scale.count_clean()
        self._update.move(rate)
        if run.maxima is not None:
            for one in computed:
                run.maxima.add(one.largest)
        if self._average is not None:
            self._average.add(run.parameters.vector, self._rate.averaged_steps(progress.step, progress.since))
        passed = time.monotonic() - begun
        self._tell(loss, computed, rate, norm, passed, scaled_by)
        planned = progress.step % length.evaluate_every == 0 or progress.step == length.steps
        if planned or self._rate.is_measured(progress.since):
            self._measure()

    def _tell(
        self,
        loss: float,
        computed: list[BatchFacts],
        rate: float,
        norm: float,
        passed: float,
        more: Mapping[str, float],
    ) -> None:
        parts = {name: math.fsum(one.parts[name] for one in computed) / len(computed) for name in computed[0].parts}
        images = self._run.batches.samples_per_batch * self._gradients.batches
        seconds = self._gradients.seconds
        parts_of_time = {**seconds, "update": passed - math.fsum(seconds.values())}
        self._listener.step(
            {
                "step": self.progress.step,
                "loss": loss,
                "parts": parts,
                "rate": rate,
                "norm": norm,
                **more,
                "images_per_second": images / max(passed, 1e-9),
                **{f"{what}_seconds": taken for what, taken in parts_of_time.items()},
                "seconds": time.monotonic() - self._wall,
                "cpu_seconds": time.process_time() - self._clock,
            }
        )

    # ------------------------------------------------------------------------------------------ measuring, going back

    def _measure(self) -> None:
        progress = self.progress
        self._measured = progress.step
        self._gradients.send_all()  # processors of other kinds may have drifted
        measure = self._run.measure(self._measured_values())
        self._listener.event({"event": "measure", "step": progress.step, "measure": measure})
        if not math.isfinite(measure) or measure > self._rate.most_risen(progress.since) * progress.start:
            self._back_off(
                f"the validation metric rose to {measure:.4g}"
                if math.isfinite(measure)
                else "the validation metric is not a number"
            )
            return
        gained = measure < progress.best * _GAIN
        if measure < progress.best:
            progress.best, progress.best_step = measure, progress.step
            self._best = self._now()
        early = 2 * progress.step < self._length.steps  # much is won as the rate falls
        progress.stale = 0 if gained or early else progress.stale + 1
        if progress.stale >= (self._options.patience or self._length.steps):
            progress.reason = f"{progress.stale} measurements without improvement"

    def _back_off(self, why: str) -> None:
        """Lower the rate and go on from the best; end where that has been done often enough."""
        progress, run = self.progress, self._run
        progress.halvings += self._rate.halvings_at_once
        progress.began = progress.step
        progress.broken = f"{why} at step {progress.step}"
        event = {"event": "halved", "step": progress.step, "reason": why, "halvings": progress.halvings}
        self._listener.event(event)
        run.parameters.vector[...] = self._best["vector"]
        if run.maxima is not None:
            run.maxima.amax[...] = self._best["amax"]
        if self._average is not None:
            self._average.vector[...] = self._best["vector"]
        run.optimizer.forget()
        self._gradients.send_all()
        if progress.halvings >= self._rate.most_halvings:
            progress.reason = f"the learning rate was halved {progress.halvings} times, last because {progress.broken}"

    def _measured_values(self) -> Arrays:
        """What is measured: the moving average of the weights where there is one."""
        arrays = self._measured_arrays()
        return self._values_of(arrays["vector"], arrays.get("amax"))

    def _measured_arrays(self) -> Arrays:
        found = {"vector": self._run.parameters.vector if self._average is None else self._average.vector}
        if self._run.maxima is not None:
            found["amax"] = self._run.maxima.amax
        return found

    def _now(self) -> Arrays:
        return {name: array.copy() for name, array in self._measured_arrays().items()}

    def _values_of(self, vector: Float32, amax: Float32 | None) -> Arrays:
        values = self._run.parameters.values(vector)
        if self._run.maxima is not None and amax is not None:
            values |= self._run.maxima.values(amax)
        return values
