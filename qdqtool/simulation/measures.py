# SPDX-License-Identifier: Apache-2.0
"""How far one tensor of a model lies from the same tensor of another: sums that no order of the samples changes.

Nothing is kept per sample. What a figure means for a task is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.display import figure, table

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

_HEAD = ("SQNR dB", "cosine", "largest error")
_BLOCK = 1 << 16  # elements summed at once, so that their float64 copies stay in the processor's cache
_LARGEST = 1e150  # its square is still a float64


class ExactSum:
    """A sum of floats without rounding, whatever their order (Shewchuk 1997: a few parts that do not overlap)."""

    def __init__(self) -> None:
        self._parts: list[float] = []

    def add(self, value: float) -> None:
        """Add one finite float64."""
        kept = 0
        for part in self._parts:
            if abs(value) < abs(part):
                value, part = part, value
            total = value + part
            low = part - (total - value)
            if low:
                self._parts[kept] = low
                kept += 1
            value = total
        self._parts[kept:] = [value]

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self._parts)


@dataclass(frozen=True)
class Measure:
    """One tensor of a model against the same of a reference, over all samples.

    Attributes:
        tensor: its name.
        sqnr: 10 log10(sum ref^2 / sum (ref - x)^2) in dB; inf where nothing differs, -inf where the reference is zero.
        noise: the same as a ratio, sum (ref - x)^2 / sum ref^2.
        cosine: sum ref x / sqrt(sum ref^2 sum x^2); nan where one of them is zero.
        largest_error: the largest |ref - x|.
        elements: how many were compared.
        broken: how many are NaN or Inf in one of the two and not the same in the other; no figure counts them.
    """

    tensor: str
    sqnr: float
    noise: float
    cosine: float
    largest_error: float
    elements: int
    broken: int

    def to_json(self) -> dict[str, Any]:
        """The measure as JSON has it: null for what is no finite number."""
        figures = {"sqnr_db": self.sqnr, "cosine": self.cosine, "largest_error": self.largest_error}
        told = {key: value if math.isfinite(value) else None for key, value in figures.items()}
        identical = self.noise == 0.0 and not self.broken
        return {"tensor": self.tensor, **told, "identical": identical, "elements": self.elements, "broken": self.broken}


class Running:
    """The sums of one tensor, while batches pass."""

    def __init__(self) -> None:
        self._reference, self._other, self._error = ExactSum(), ExactSum(), ExactSum()
        self._largest = 0.0
        self._elements = self._broken = 0

    def add(self, reference: Array, other: Array, samples: int) -> None:
        """Take one batch in; both arrays have one shape.

        Args:
            reference: float of any width.
            other: float of any width.
            samples: how many samples the batch has: where the first axis counts them, each is summed by itself, so
                that the size of a batch changes nothing.
        """
        rows = samples if reference.ndim and reference.shape[0] == samples else 1
        for one, two in zip(reference.reshape(rows, -1), other.reshape(rows, -1), strict=True):
            for start in range(0, one.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                self._add(one[block].astype(np.float64), two[block].astype(np.float64))

    def _add(self, x: Float64, y: Float64) -> None:
        signal, other = _square(x), _square(y)
        if not math.isfinite(signal + other):
            odd = ~((np.abs(x) < _LARGEST) & (np.abs(y) < _LARGEST))  # NaN, Inf, and what has no square
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            self._broken += int(np.count_nonzero(odd & ~same))
            x, y = x[~odd], y[~odd]
            signal, other = _square(x), _square(y)
        if not x.size:
            return
        error = x - y
        self._elements += x.size
        self._largest = max(self._largest, float(error.max()), -float(error.min()))
        self._reference.add(signal)
        self._other.add(other)
        self._error.add(_square(error))

    def measure(self, tensor: str) -> Measure:
        """What the sums say so far."""
        signal, other, error = self._reference.value, self._other.value, self._error.value
        noise = 0.0 if error == 0.0 else math.inf if signal == 0.0 else error / signal
        cosine = math.nan
        if signal > 0.0 < other:
            product = math.fsum((signal, other, -error)) / 2  # 2 ref x = ref^2 + x^2 - (ref - x)^2
            cosine = max(-1.0, min(1.0, product / math.sqrt(signal) / math.sqrt(other)))
        return Measure(tensor, decibel(noise), noise, cosine, self._largest, self._elements, self._broken)


def _square(x: Float64) -> float:
    """The sum of squares, on one thread and without a copy; Inf or NaN where it has none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.einsum("i,i->", x, x))


def decibel(noise: float) -> float:
    """A ratio of noise to signal as SQNR in dB."""
    if noise == 0.0:
        return math.inf
    return -math.inf if math.isinf(noise) else -10.0 * math.log10(noise)


def measure_rows(head: str, measures: Iterable[Measure]) -> list[str]:
    """One row per tensor below a head; a tensor with NaN or Inf says so."""
    rows = [(one.tensor, figure(one.sqnr), figure(one.cosine, 6), f"{one.largest_error:.4g}") for one in measures]
    broken = [one.broken for one in measures]
    lines = table((head, *_HEAD), rows)
    return lines[:1] + [
        line + (f"  NaN or Inf in {count} elements" if count else "")
        for line, count in zip(lines[1:], broken, strict=True)
    ]
