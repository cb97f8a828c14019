# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of two float models lie apart, over data: proof that an edit kept the function, or its price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.calibration.backends.ort import OrtActivations
from qdqtool.calibration.feed import Batch
from qdqtool.calibration.loss import comparable_outputs
from qdqtool.conditioning.sums import ExactSum
from qdqtool.errors import QdqError

# What equalising and smoothing may change: the root of the sum of squares of the difference over that of the output.
# The largest single difference is told, not judged: onnxruntime itself moves single values of an unedited network by
# more than 1e-5 from one optimisation level to another.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Difference:
    """One output of two models.

    Attributes:
        relative: sqrt(sum of squares of the difference / sum of squares of the first model's output).
        largest: the largest difference over the largest value of the first model's.
        decibel: sum of squares of the first model's output over that of the difference; 999 where there is none.
    """

    relative: float
    largest: float
    decibel: float


class Outputs:
    """The float32 outputs of one model, ready to run: made before the model is edited, it stays what it was.

    Behind an operator that onnxruntime lacks nothing can be compared: then what that operator reads is an output here.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path | None) -> None:
        self._activations = OrtActivations(proto, folder, comparable_outputs(proto, folder))

    def run(self, sample: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """Each float32 output for one sample."""
        return dict(self._activations.run(sample))


def compare(before: Outputs, after: Sequence[Outputs], samples: Iterable[Batch]) -> list[dict[str, Difference]]:
    """Run models on the same samples; what each of `after` gives is held against what `before` gives.

    Raises:
        QdqError: an output has another shape: a selection (NMS, TopK) in the graph came out otherwise.
    """
    gaps: list[dict[str, _Gap]] = [{} for _ in after]
    for sample in samples:
        exact = before.run(sample)
        for found, model in zip(gaps, after, strict=True):
            for name, made in model.run(sample).items():
                found.setdefault(name, _Gap()).add(name, exact[name], made)
    return [{name: gap.told() for name, gap in found.items()} for found in gaps]


class _Gap:
    """What lies between two values of one output, over samples."""

    def __init__(self) -> None:
        self._sums = ExactSum(2)
        self._largest = self._size = 0.0

    def add(self, name: str, exact: npt.NDArray[np.float32], made: npt.NDArray[np.float32]) -> None:
        if made.shape != exact.shape:
            reason = f"has the shape {list(made.shape)} after the edits, {list(exact.shape)} before"
            raise QdqError(name, reason, "condition the model without the selection (NMS) at its end")
        off = made.astype(np.float64) - exact
        self._largest, self._size = max(self._largest, _largest(off)), max(self._size, _largest(exact))
        pair = np.array([np.square(exact, dtype=np.float64).sum(), np.square(off).sum()])
        self._sums.add(pair.astype(np.float32))

    def told(self) -> Difference:
        signal, noise = self._sums.total().tolist()
        relative = math.sqrt(noise / signal) if signal > 0 else float(noise > 0)
        decibel = -20 * math.log10(relative) if relative > 0 else 999.0
        return Difference(
            relative, self._largest / self._size if self._size > 0 else self._largest, min(decibel, 999.0)
        )


def _largest(values: npt.NDArray[Any]) -> float:
    return float(np.abs(values).max(initial=0.0))


def require_same(differences: dict[str, Difference]) -> None:
    """Refuse edits that should have kept the function and did not.

    Raises:
        QdqError: an output differs by more than 1e-5, relatively.
    """
    for name, one in differences.items():
        if not one.relative <= TOLERANCE:
            reason = f"equalising and smoothing changed this output by {one.relative:.1e} of itself"
            raise QdqError(name, reason, "use --factors power-of-two, which is exact; nothing was written")
