# SPDX-License-Identifier: Apache-2.0
"""Which of several pruned models comes nearest to the original where the network ends. How they were made is not known.

What groups lose one by one does not add up where much goes, and few samples measure it badly. So the choice by it is
held against plain ones, after weights are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqtool.graph.model import Model
from qdqtool.pruning.group_losses import EndLosses
from qdqtool.pruning.probe import Feed, ProbeRun


def nearest_model(run: ProbeRun, pruned: Sequence[Model], samples: Sequence[Feed], ends: EndLosses) -> int:
    """The place of the model that loses least at the ends; of equals the first one.

    Kinds of ends do not compare: each counts by its share of what all the models lose of it together.

    Raises:
        QdqError: onnxruntime cannot run one of them.
    """
    executors = [run.executor(model, ends.tensors) for model in (run.model, *pruned)]
    losses = np.zeros((len(pruned), 1))
    for feed in samples:
        whole, *others = (executor.run(feed) for executor in executors)
        losses = losses + np.stack([ends.measure(whole, found) for found in others])
    together = losses.sum(axis=0)
    shares = np.divide(losses, together, out=np.zeros_like(losses), where=together > 0)
    return int(np.argmin(shares.sum(axis=1)))
