# SPDX-License-Identifier: Apache-2.0
"""Where fine-tuning starts: the model as it is, or with its channels equalized where that alone loses less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from qdqtool.conditioning.equalize_fixed_scales import equalize_within
from qdqtool.data.loader import Batch, inputs_of
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.progress import barred
from qdqtool.training.batches import Batches
from qdqtool.training.finished_model import InputSamples, output_gains
from qdqtool.training.training_graph import TrainingGraph

MakeForm = Callable[[Model], TrainingGraph]
_MOST = 512  # samples that channels are measured on


@dataclass(frozen=True, eq=False)
class Start:
    """What is trained.

    Attributes:
        given: the training form of the model as it was given.
        form: that of what is trained: the same, or one of the same graph with equalized weights.
        equalized: the tensors whose channels were equalized.
        notes: what was done about it, a sentence each.
    """

    given: TrainingGraph
    form: TrainingGraph
    equalized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Few:
    """At most `_MOST` samples, at even distances along the data, a bar on stderr at each walk."""

    def __init__(self, opened: Model, batches: Batches, progress: bool | None) -> None:
        self._samples = InputSamples(batches, [one.name for one in inputs_of(opened.proto.graph)])
        self._total = batches.count + batches.held_samples
        self._progress = progress

    def __iter__(self) -> Iterator[Batch]:
        step = -(-self._total // _MOST)
        few = islice(self._samples, 0, None, step)
        return barred(few, "equalize", "sample", -(-self._total // step), self._progress)


def start_equalized(
    opened: Model, make: MakeForm, form: TrainingGraph, batches: Batches, progress: bool | None = None
) -> Start:
    """Even out channels within the scales of the activations, unless outputs on held-out samples then lose more."""
    try:
        equalized = equalize_within(opened, _Few(opened, batches, progress))
    except QdqError as error:
        return Start(form, form, notes=(f"channels are not equalized: {error.where} {error.reason}",))
    if not equalized.tensors:
        return Start(
            form, form, notes=(f"channels are not equalized: {equalized.why_not}",) if equalized.why_not else ()
        )
    gains = output_gains(form, opened, equalized.model, batches)
    ends = np.array([(one.before, one.after) for one in gains if np.isfinite((one.before, one.after)).all()])
    before, after = ends.reshape(-1, 2).mean(axis=0).tolist() if len(ends) else (0.0, 0.0)
    if after < before:
        change = f"the SQNR of the outputs would go from {before:.1f} to {after:.1f} dB"
        return Start(form, form, notes=(f"channels are not equalized: {change}",))
    count = len(equalized.tensors)
    whose = "1 tensor had its" if count == 1 else f"{count} tensors had their"
    change = (
        f": the SQNR of the outputs went from {before:.1f} to {after:.1f} dB before the first step" if len(ends) else ""
    )
    return Start(form, make(equalized.model), equalized.tensors, (f"{whose} channels equalized{change}",))
