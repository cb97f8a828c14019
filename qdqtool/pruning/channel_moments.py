# SPDX-License-Identifier: Apache-2.0
"""Mean and mean square of each channel over data, for scores and corrected biases. Not what they decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.pruning.probe import Array, Feed, ProbeRun

Float64 = npt.NDArray[np.float64]
Place = tuple[str, int]  # a tensor and one of its axes


def channel_moments(places: Sequence[Place], run: ProbeRun, batches: Iterable[Feed]) -> dict[Place, Float64]:
    """For each tensor and axis of length n: float64[2, n], the means of x and of its square over all other axes.

    Raises:
        QdqError: onnxruntime cannot run the model; a tensor holds NaN or infinity (named).
    """
    executor = run.executor(run.model, list(dict.fromkeys(name for name, _ in places)))
    sums: dict[Place, Float64] = {}
    count = 0
    for feed in batches:
        found = executor.run(feed)
        samples = len(next(iter(feed.values())))
        count += samples
        for place in places:
            sums[place] = sums.get(place, np.zeros(1)) + samples * _moments(found[place[0]], place[1])
    for (name, _), total in sums.items():
        if not np.isfinite(total).all():
            raise QdqError(name, "holds NaN or infinity", "repair the model or leave the sample out")
    return {place: total / count for place, total in sums.items()}


def _moments(array: Array, axis: int) -> Float64:
    others = tuple(place for place in range(array.ndim) if place != axis)
    with np.errstate(invalid="ignore"):  # infinity less infinity; the caller refuses it
        return np.stack(
            [array.mean(axis=others, dtype=np.float64), np.square(array, dtype=np.float64).mean(axis=others)]
        )
