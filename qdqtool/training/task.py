# SPDX-License-Identifier: Apache-2.0
"""What the loop works on: a student, its batches, its judge, how far and how fast. Nothing is done here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Batch
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.optimizers import Optimizer
from qdqtool.training.parameters import Parameters
from qdqtool.training.schedules import Schedule

Float32 = npt.NDArray[np.float32]
Values = Mapping[str, Float32]


@dataclass(frozen=True)
class Computed:
    """What one batch gave.

    Attributes:
        loss: its loss.
        parts: the terms of it, by name.
        gradients: parameter -> gradient.
        largest: max|x| of the tensors whose scales follow the data, in the order of `MovingMaxima.scales`.
    """

    loss: float
    parts: Mapping[str, float]
    gradients: Values
    largest: tuple[float, ...] = ()


class Student(Protocol):
    """The graph that is trained."""

    def compute(self, batch: Batch, values: Values) -> Computed:
        """Loss and gradients of one batch at these values of the parameters."""
        ...


class Supply(Protocol):
    """Where batches come from; see batches.py."""

    def from_sample(self, first: int) -> Iterator[Batch]:
        """Batches without end, from one place of the sequence on."""
        ...


@dataclass(frozen=True)
class LoopOptions:
    """How far and how fast.

    Attributes:
        steps: updates of the weights in all.
        batch: samples in one batch.
        accumulate: batches whose gradients are averaged for one update.
        rate: what a direction is multiplied by, along with `TrainingProblem.pace` and the schedule.
        schedule: course of the rate.
        clip: largest global norm of a gradient; 0 for any.
        l1: weight of sum |w| over what is decayed, its subgradient added to the gradient.
        weight_decay: part of each decayed weight that is taken away per unit of rate, beside the gradient.
        average: decay of the moving average of the weights that is measured and handed out; 0 for none.
        every: updates between two measurements.
        patience: measurements without a gain after which it ends.
        keep_every: updates between two checkpoints.
        seconds: CPU seconds after which it ends; None for any.
    """

    steps: int
    batch: int = 1
    accumulate: int = 1
    rate: float = 1.0
    schedule: Schedule = field(default_factory=Schedule)
    clip: float = 1.0
    l1: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    every: int = 50
    patience: int = 6
    keep_every: int = 50
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """What is trained, on what, judged by what.

    Attributes:
        parameters: the weights, moved in place.
        student: makes gradients.
        supply: makes batches.
        judge: a measure of values of the parameters on held-out data, the less the better; NaN where it broke.
        pace: float32[size], what the rate is multiplied by for each element.
        decayed: float32[size], 1 where decay and l1 hold, else 0.
        optimizer: turns gradients into directions.
        maxima: scales that follow the data; None where none do.
        bounds: float32[size], the largest magnitude of each element; None for any.
    """

    parameters: Parameters
    student: Student
    supply: Supply
    judge: Callable[[Values], float]
    pace: Float32
    decayed: Float32
    optimizer: Optimizer
    maxima: MovingMaxima | None = None
    bounds: Float32 | None = None
