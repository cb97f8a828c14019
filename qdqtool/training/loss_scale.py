# SPDX-License-Identifier: Apache-2.0
"""The factor of the loss in mixed precision, and how it follows overflows. Not the graph; see mixed_precision.py."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdqtool.training.options import UpdateOptions

LOSS_SCALE = "qdqtool.loss_scale"
"""Input of the training graph that the loss is multiplied by."""


class LossScale:
    """What the loss is multiplied by: halved where a gradient overflows, doubled after 2,000 steps without that.

    Attributes:
        state: float32[2], the scale and the steps since it last changed.
    """

    START = 2.0**16
    CLEAN_STEPS = 2000

    def __init__(self, fixed: float | None = None) -> None:
        """Begin; a scale that is given stays."""
        self._dynamic = fixed is None
        self.state = np.array([self.START if fixed is None else fixed, 0], np.float32)

    @property
    def value(self) -> npt.NDArray[np.float32]:
        """The scale, shape ()."""
        return np.array(self.state[0])

    def halve(self) -> bool:
        """Halve it after an overflow; False where it is fixed or 1 already, and the fault is another."""
        if not self._dynamic or self.state[0] <= 1:
            return False
        self.state[:] = self.state[0] / 2, 0
        return True

    def count_clean(self) -> None:
        """Count a step without an overflow."""
        self.state[1] += 1
        if self._dynamic and self.state[1] == self.CLEAN_STEPS:
            self.state[:] = self.state[0] * 2, 0


def loss_scale_of(options: UpdateOptions) -> LossScale | None:
    """The loss scale that options ask for; None for FP32. BF16 has the exponents of FP32: 1 unless one is given."""
    if options.precision == "fp32":
        return None
    if options.loss_scale is None and options.precision == "bf16":
        return LossScale(1.0)
    return LossScale(None if options.loss_scale in (None, "dynamic") else float(options.loss_scale))
