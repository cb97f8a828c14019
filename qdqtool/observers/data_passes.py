# SPDX-License-Identifier: Apache-2.0
"""The walks over the data: how many the fetched tensors need where memory is limited, and what one of them takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.amax.histogram import BINS
from qdqtool.data.loader import Task
from qdqtool.data.model_inputs import Array
from qdqtool.errors import QdqError
from qdqtool.observers.checkpoint import Checkpoint
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import Counter, ObserverState
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.staged_activations import StagedActivations

HISTOGRAM_BYTES = 2 * BINS * 8
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class DataPass:
    """One walk over the data.

    Attributes:
        activations: runs a batch.
        batches: those that are to be counted, in file order.
        plan: what is counted.
        workers: how many threads.
        checkpoint: keeps what is counted while it grows; None where nothing is kept.
        on_batch: is called for each batch that has been counted, by the calling thread.
    """

    activations: OrtActivations | StagedActivations
    batches: Iterator[Task]
    plan: ObservationPlan
    workers: int
    checkpoint: Checkpoint | None
    on_batch: Callable[[], object]

    def arrays(self, batch: Task) -> Iterator[npt.NDArray[np.float32]]:
        """What the fetched tensors hold for a batch, in their order; taken one after the other, as the model runs."""
        return (array for _, array in self.activations.run(batch.load()))

    def counter(self, observed: ObserverState) -> Counter:
        """What counts the arrays of batches."""
        return observed.counter(self.activations.names, self.activations.lengths)

    def write_when_due(self) -> None:
        """Write the checkpoint where there is one and it is time to; no batch is half counted then."""
        if self.checkpoint is not None and self.checkpoint.due():
            self.checkpoint.write()


def split_passes(sizes: Mapping[str, int], workers: int, limit: int) -> tuple[int, ...]:
    """How many of the fetched tensors each pass takes, in order: arrays and histograms have `limit` bytes.

    All histograms are held all the time; each worker holds the arrays of one batch, and histograms of its own where
    there are several.

    Raises:
        QdqError: not even one tensor at a time stays below the limit; the least that does is named.
    """
    held = len(sizes) * HISTOGRAM_BYTES
    each = HISTOGRAM_BYTES if workers > 1 else 0
    least = held + workers * (max(sizes.values()) + each)
    if least > limit:
        hint = f"give at least {math.ceil(least / (1 << 20))}M, a smaller --batch or fewer --workers"
        raise QdqError(
            "--max-memory", f"{limit} bytes are too few for the activations and histograms of {held} bytes", hint
        )
    lengths = [0]
    room = 0
    for size in sizes.values():
        room += workers * (size + each)
        if held + room > limit and lengths[-1]:
            lengths.append(0)
            room = workers * (size + each)
        lengths[-1] += 1
    return tuple(lengths)


def bytes_of(model: ObservableModel, names: Sequence[str], batch: Mapping[str, Array]) -> dict[str, int]:
    """Tensor -> bytes of its float32 array for a batch; a size that is unknown counts as the largest known.

    Returns:
        Without those of `names` that prove to hold no float32.
    """
    known: dict[str, int] = {name: batch[name].nbytes for name in names if model.is_input(name)}
    made = [name for name in names if not model.is_input(name)]
    free = _free_sizes(model.view.graph.input, batch)
    for output in model.session(made).get_outputs() if made else ():
        if output.type == "tensor(float)":
            shape = [free.get(size, 0) if isinstance(size, str) else size or 0 for size in output.shape]
            known[output.name] = math.prod(shape) * _FLOAT_BYTES
    largest = max(known.values(), default=0)
    return {name: known[name] or largest for name in names if name in known}


def _free_sizes(inputs: Iterable[Any], batch: Mapping[str, Array]) -> dict[str, int]:
    """What the named free dimensions of the inputs are in a batch."""
    found: dict[str, int] = {}
    for value in inputs:
        shape = np.shape(batch[value.name]) if value.name in batch else ()
        axes = value.type.tensor_type.shape.dim
        found.update((axis.dim_param, size) for axis, size in zip(axes, shape, strict=False) if axis.dim_param)
    return found
