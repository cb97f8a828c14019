# SPDX-License-Identifier: Apache-2.0
"""What a training has at hand: student, batches, measure, parameters and their limits. Not what the user asked for.

What the user asked for is `options.TrainingOptions`; the loop takes the two, and no third value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.data.loader import Batch
from qdqtool.training.averages import MovingMaxima
from qdqtool.training.loss_scale import LOSS_SCALE, LossScale
from qdqtool.training.optimizers import Optimizer
from qdqtool.training.parameters import Parameters

Float32 = npt.NDArray[np.float32]
Values = Mapping[str, Float32]


@dataclass(frozen=True)
class Computed:
    """What one batch gave.

    Attributes:
        loss: its loss.
        parts: the terms of it, by name.
        gradients: parameter -> gradient; from a GPU the OrtValue there that holds the vector of them, until the next.
        largest: max|x| of the tensors whose scales follow the data, in the order of `MovingMaxima.scales`.
    """

    loss: float
    parts: Mapping[str, float]
    gradients: Values | Any
    largest: tuple[float, ...] = ()


class Student(Protocol):
    """The graph that is trained."""

    def compute(self, batch: Batch, values: Values) -> Computed:
        """Loss and gradients of one batch at these values of the parameters."""
        ...


class BatchSource(Protocol):
    """Where batches come from; see batches.py."""

    @property
    def samples_per_batch(self) -> int:
        """Samples in one batch, for images per second."""
        ...

    def from_batch(self, first: int, rank: int = 0, size: int = 1) -> Iterator[Batch]:
        """Batches without end, from one place of the sequence on; of `size` workers, those that fall to one."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What is trained, on what, measured by what. `prepare` makes it.

    Attributes:
        parameters: the weights, moved in place.
        student: makes gradients.
        batches: makes batches.
        measure: a measure of values of the parameters on held-out data, the less the better; NaN where it broke.
        optimizer: turns gradients into directions.
        lr_multiplier: float32[size], what the rate is multiplied by for each element.
        decayed: float32[size], 1 where decay and l1 hold, else 0.
        maxima: scales that follow the data; None where none do.
        loss_scale: what the student's gradients are multiplied by; None for nothing.
        bounds: float32[size], the largest magnitude of each element; None for any.
        exported: parameters that go into the file; projections do not.
        checked: largest relative differences of the checks at the start: forward, gradients.
        notes: for the user, a sentence each.
    """

    parameters: Parameters
    student: Student
    batches: BatchSource
    measure: Callable[[Values], float]
    optimizer: Optimizer
    lr_multiplier: Float32
    decayed: Float32
    maxima: MovingMaxima | None = None
    loss_scale: LossScale | None = None
    bounds: Float32 | None = None
    exported: tuple[str, ...] = ()
    checked: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()

    def values(self) -> dict[str, Float32]:
        """What the student is fed beside a batch: parameters, moving scales and loss scale, as they are now."""
        moving = {} if self.maxima is None else self.maxima.values()
        scale = {} if self.loss_scale is None else {LOSS_SCALE: self.loss_scale.value}
        return {**self.parameters.values(), **moving, **scale}
