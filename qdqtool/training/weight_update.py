# SPDX-License-Identifier: Apache-2.0
"""How the gradient of a step moves the weights: regularization, clipping, optimizer, bounds. Not at which rate."""

from __future__ import annotations

import numpy as np

from qdqtool.training.optimizers import clip_to_norm
from qdqtool.training.options import UpdateOptions
from qdqtool.training.training_run import TrainingRun


class WeightUpdate:
    """The update of one process: rank 0's, and by all-reduce each rank's.

    Attributes:
        gradient: float32[size], of the step; the caller fills it.
    """

    def __init__(self, run: TrainingRun, options: UpdateOptions) -> None:
        """Prepare it for the weights of a run."""
        self._run, self._options = run, options
        self.gradient, self._move = np.zeros_like(run.parameters.vector), np.zeros_like(run.parameters.vector)

    def regularize(self) -> float:
        """Divide the gradient by the loss scale, add regularization and clip it; its norm before clipping."""
        gradient, options = self.gradient, self._options
        if self._run.loss_scale is not None:
            gradient /= self._run.loss_scale.value
        if options.l1:
            np.sign(self._run.parameters.vector, out=self._move)
            self._move *= self._run.decayed
            self._move *= np.float32(options.l1)
            gradient += self._move
        if options.l2:
            np.multiply(self._run.parameters.vector, self._run.decayed, out=self._move)
            self._move *= np.float32(2 * options.l2)
            gradient += self._move
        return clip_to_norm(gradient, options.grad_clip)

    def move(self, rate: float) -> None:
        """Weights -= rate * (lr_multiplier * direction + decay * weights)."""
        vector, move = self._run.parameters.vector, self._move
        np.multiply(self._run.optimizer.direction(self.gradient), self._run.lr_multiplier, out=move)
        move *= np.float32(rate)
        if self._options.weight_decay:
            shrunk = np.multiply(vector, self._run.decayed, out=self.gradient)
            shrunk *= np.float32(rate * self._options.weight_decay)
            move += shrunk
        vector -= move
        if self._run.bounds is not None:
            np.clip(vector, -self._run.bounds, self._run.bounds, out=vector)
