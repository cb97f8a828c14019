# SPDX-License-Identifier: Apache-2.0
"""How much of the FP32 model's outputs is kept, for models whose outputs nobody can read as boxes or classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqtool.errors import QdqError
from qdqtool.evaluation.detections import Array
from qdqtool.evaluation.metrics import Float64, Int64, MeasuredModel

Sums = Float64  # [outputs, 2]: squared error and squared reference of one run


def error_sums(reference: Mapping[str, Array], found: Mapping[str, Array]) -> Sums:
    """Squared error and squared reference of every float output, summed over one run: float64[outputs, 2].

    Where all outputs are integers or booleans, such as a map of classes: how many values differ, how many there are.

    Raises:
        QdqError: no output of numbers, or outputs of different shapes.
    """
    names = [name for name, values in reference.items() if values.dtype.kind == "f"]
    names = names or [name for name, values in reference.items() if values.dtype.kind in "iub"]
    if not names:
        raise QdqError("model", "has no output of numbers to compare", "give --labels")
    return np.array([_sums(name, reference[name], found[name]) for name in names], np.float64)


def _sums(name: str, one: Array, other: Array) -> tuple[float, float]:
    if one.shape != other.shape:
        raise QdqError(name, f"is {list(other.shape)} in INT8 and {list(one.shape)} in FP32", "give --labels")
    if one.dtype.kind != "f":
        return float(np.count_nonzero(one != other)), float(one.size)
    first, second = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    fine = np.isfinite(first)
    gap = np.where(np.isfinite(second), second - first, first)[fine]  # what is not a number any more is lost
    return float(gap @ gap), float(first[fine] @ first[fine])


def fidelity(runs: Sequence[Sums]) -> MeasuredModel:
    """One less the share of error in the signal, at the worst output: 1 for the same outputs, 0 for all lost.

    1 - sum |found - reference|^2 / sum |reference|^2, so that 0.99 is an SQNR of 20 dB.
    """
    sums = np.stack(runs)

    def kept(totals: Float64) -> Float64:
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(totals[..., 1] > 0, totals[..., 0] / totals[..., 1], (totals[..., 0] > 0) * 1.0)
        return np.asarray(1 - np.clip(shares, 0, 1).max(-1), np.float64)

    def resampled(weights: Int64) -> Float64:
        totals = np.tensordot(weights.astype(np.float64), sums, axes=(1, 0))
        return kept(totals)[:, None, None]

    return MeasuredModel(("fidelity",), kept(sums.sum(0))[None, None], (), len(runs), resampled)
