# SPDX-License-Identifier: Apache-2.0
"""The loop with its checkpoint, log and bar: from a prepared run to the best values. Not what is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.training.batches import Batches
from qdqtool.training.log import reporting
from qdqtool.training.loop import Loop, Progress
from qdqtool.training.options import TrainingOptions
from qdqtool.training.run_length import choose_length, with_steps
from qdqtool.training.state import Saved, TrainingIdentity, open_state, write_state
from qdqtool.training.training_run import TrainingRun


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of it.

    Attributes:
        progress: how far it came, and why it ended.
        best: parameter or moving scale that goes into the file -> the value that measured best.
        planned: updates that were planned.
    """

    progress: Progress
    best: Mapping[str, npt.NDArray[np.float32]]
    planned: int


def train(
    training: TrainingRun, batches: Batches, options: TrainingOptions, identity: TrainingIdentity | None
) -> Trained:
    """Run the loop, from a checkpoint where there is one.

    Raises:
        QdqError: a checkpoint of another run; what the loop refuses.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    run = options.run
    path = run.checkpoint
    saved = None if path is None or identity is None else open_state(path, identity, resume=run.resume)
    if saved:
        length = with_steps(int(saved.facts["steps"]), int(saved.facts["accumulate"]), batches, run)
    else:
        length = choose_length(training, batches, run)
    plan = {"steps": length.steps, "accumulate": length.grad_accum}
    keep = None if path is None or identity is None else partial(_keep, path, identity, plan)
    done = int(saved.facts["progress"]["step"]) if saved else 0
    with reporting(run.log, done, length.steps, run.progress) as reporter:
        loop = Loop(training, options, length, reporter, keep)
        if saved:
            loop.restore(saved.facts["progress"], saved.arrays)
        progress = loop.run()
    best = {name: value for name, value in loop.best_values().items() if name in frozenset(training.exported)}
    return Trained(progress, best, length.steps)


def _keep(
    path: Path,
    identity: TrainingIdentity,
    plan: Mapping[str, int],
    progress: Mapping[str, Any],
    arrays: Mapping[str, Any],
) -> None:
    write_state(Saved(identity, {**plan, "progress": dict(progress)}, arrays), path)
