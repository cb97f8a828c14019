# SPDX-License-Identifier: Apache-2.0
"""The reference executor for tensors that are too many to be held at once: they come stage by stage, the same ones.

What executor.py computes does not depend on which tensors are asked for, so it does not depend on stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy.typing as npt

from qdqtool.graph.model import Model
from qdqtool.graph.shapes import known_lengths, sample_lengths
from qdqtool.graph.view import GraphView
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.executor import Executor, RunsInParts
from qdqtool.runtime.staged_activations import StagedActivations

Array = npt.NDArray[Any]


class _StagedExecutor:
    """One model in stages, ready to run batches."""

    def __init__(self, staged: StagedActivations) -> None:
        self._staged = staged

    def parts(self, feed: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """The wanted tensors of one batch, those of one stage in a part.

        Raises:
            QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
        """
        made = self._staged.run(feed)
        for count in self._staged.lengths:
            yield dict(islice(made, count))


def run_in_parts(model: Model, outputs: Sequence[str], where: object, provider: str = "cpu") -> RunsInParts:
    """A model that gives tensors stage by stage where they are too many to be held at once, else all together.

    Raises:
        QdqError, MissingPackageError: see `Executor`.
    """
    view = model.view
    wanted = tuple(dict.fromkeys(outputs))
    if all(name in view.inputs or (name in view.producers and not view.is_constant(name)) for name in wanted):
        ready = ObservableModel(model, provider, where, as_written=True)
        at_hand = (ready.is_input(name) if name in view.inputs else name not in ready.behind for name in wanted)
        staged = StagedActivations.of(ready, wanted, _lengths(view)) if all(at_hand) else None
        if staged is not None and frozenset(staged.names) == frozenset(wanted):
            return _StagedExecutor(staged)
    return Executor(model, outputs, where, provider)


def _lengths(view: GraphView) -> dict[str, int] | None:
    """The lengths of tensors in a batch of one sample, where batches may have other shapes."""
    fixed = known_lengths(view)
    return None if all(name in fixed for name in view.inputs) else sample_lengths(view)
