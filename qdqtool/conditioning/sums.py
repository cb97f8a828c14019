# SPDX-License-Identifier: Apache-2.0
"""Sums of float32 vectors that are exact, so that they depend on no order. Of one size, however many are added."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_PLACES = 16  # exponents that share one integer: 24 + 15 bits a value, so 2**24 of them fit into int64
_BUCKETS = 256 // _PLACES
_UNIT = -149  # a float32 is an integer times 2**(exponent - 1 - 149)


class ExactVectorSum:
    """The sum of many float32 vectors of one length, element by element, without rounding."""

    __slots__ = ("_buckets", "_rows")

    def __init__(self, size: int) -> None:
        self._buckets = np.zeros((size, _BUCKETS), np.int64)
        self._rows = np.arange(size)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Add one vector (float32 [size], finite).

        Raises:
            ValueError: a value is NaN or Inf.
        """
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.int64)
        exponent = (bits >> 23) & 0xFF
        if (exponent == 0xFF).any():
            raise ValueError("NaN or Inf has no exact sum")
        mantissa = (bits & 0x7FFFFF) | np.where(exponent > 0, 1 << 23, 0)
        place = np.maximum(exponent, 1) - 1
        signed = np.where(bits >> 31, -mantissa, mantissa) << (place % _PLACES)
        self._buckets[self._rows, place // _PLACES] += signed

    def total(self) -> npt.NDArray[np.float64]:
        """The sums, each rounded once: float64 [size]."""
        return np.array([_joined(row) for row in self._buckets.tolist()], np.float64)


def _joined(buckets: list[int]) -> float:
    whole = sum(value << (_PLACES * place) for place, value in enumerate(buckets))
    shift = max(0, abs(whole).bit_length() - 1000)  # more than a float's exponents hold: sums of numbers near 2**127
    return math.ldexp(float(whole >> shift), _UNIT + shift)
