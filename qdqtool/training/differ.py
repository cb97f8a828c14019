# SPDX-License-Identifier: Apache-2.0
"""How far two runs of what should be the same graph are apart. Not what is to be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TOLERANCE = 2e-5
"""Largest difference of the two forwards, relative to the largest magnitude of the tensor."""


def largest_difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[float, str]:
    """The largest difference, relative to the largest magnitude of its tensor, and that tensor's name.

    Infinity where shapes differ, or the places of values that are not finite.
    """
    worst, where = 0.0, next(iter(ours), "")
    for name, value in ours.items():
        other = theirs[name]
        if value.shape != other.shape or not np.array_equal(np.isfinite(value), np.isfinite(other)):
            return float("inf"), name
        both = np.isfinite(value)
        size = max(float(np.abs(other[both]).max(initial=0)), float(np.finfo(np.float32).tiny))
        gap = np.abs(value[both].astype(np.float64) - other[both].astype(np.float64)).max(initial=0) / size
        if gap > worst:
            worst, where = float(gap), name
    return worst, where
