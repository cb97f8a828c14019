# SPDX-License-Identifier: Apache-2.0
"""A training block by block as the verb asks for it: options worked out, log and bar, and whether the outputs gain."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.graph.model import Model
from qdqtool.training.batches import Batches
from qdqtool.training.blocks.block_training import STEPS, BlockOptions
from qdqtool.training.blocks.reconstruct import Reconstruction, reconstruct
from qdqtool.training.finished_model import output_gains
from qdqtool.training.log import reporting
from qdqtool.training.loop import Progress
from qdqtool.training.options import TrainingOptions
from qdqtool.training.student import SessionOptions
from qdqtool.training.train import Trained
from qdqtool.training.training_graph import TrainingGraph


@dataclass(frozen=True, eq=False)
class TrainedBlocks:
    """What came of it.

    Attributes:
        done: the values, and how far it came; `measure` is the mean error of the blocks.
        trained: how many numbers.
        checked: largest relative differences of the checks: forward, gradients.
        notes: for the user, a sentence each.
    """

    done: Trained
    trained: int
    checked: tuple[float, float]
    notes: tuple[str, ...]


def train_blocks(
    opened: Model, form: TrainingGraph, batches: Batches, backend: GradientBackend, options: TrainingOptions
) -> TrainedBlocks:
    """Train a network block by block; where its outputs lose more on held-out samples, the start comes back.

    Raises:
        QdqError: what `reconstruct` refuses.
    """
    run = options.run
    sessions = SessionOptions(run.threads, options.provider)
    how = BlockOptions(
        run.steps or STEPS, update=options.update, schedule=run.schedule, seed=run.seed, sessions=sessions
    )
    with ExitStack() as stack:
        found = reconstruct(
            form,
            batches,
            backend,
            how,
            options.memory // 2,
            lambda total: stack.enter_context(reporting(run.log, 0, total, run.progress)),
        )
    worse = _worse(opened, form, found, batches)
    steps = how.steps * len(found.blocks)
    progress = Progress(
        step=steps,
        start=found.before,
        best=found.before if worse else found.after,
        best_step=0 if worse or not found.values else steps,
        seconds=found.seconds,
        reason=f"{found.gained} of {len(found.blocks)} blocks improved{', but not the outputs' if worse else ''}",
    )
    values = {} if worse else found.values
    trained = sum(one.trained for one in found.blocks)
    moved = sum(len(form.activations[name]) for name in values if name in form.activations)
    notes = (*found.notes, *([worse] if worse else []))
    if moved:
        notes += (f"the scales of {moved} tensors changed: calibration caches made before are no longer valid",)
    return TrainedBlocks(Trained(progress, values, steps), trained, found.checked, notes)


def _worse(opened: Model, form: TrainingGraph, found: Reconstruction, batches: Batches) -> str:
    """What to say where the outputs would lose more than before; "" where they do not."""
    gains = output_gains(form, opened, form.write(found.values), batches) if found.values else ()
    ends = [(one.before, one.after) for one in gains if np.isfinite((one.before, one.after)).all()]
    if not ends:
        return ""
    before, after = np.mean(ends, axis=0).tolist()
    return f"the SQNR of the outputs would go from {before:.1f} to {after:.1f} dB" if after < before else ""
