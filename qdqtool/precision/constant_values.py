# SPDX-License-Identifier: Apache-2.0
"""What a type must hold of the constants of a model: the largest value, the sums of magnitudes, read in blocks.

A weight of gigabytes is never in memory as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.tensors import BLOCK_BYTES
from qdqtool.graph.view import DEQUANTIZE, GraphView

_REAL = "fiu"
_LEVELS = 255  # of 8 bits; signed ones have half


@dataclass(frozen=True)
class ConstantValues:
    """The magnitudes of one constant.

    Attributes:
        largest: the largest finite magnitude; 0 for an empty one.
        smallest: the smallest that is not 0; infinity where all are 0.
    """

    largest: float
    smallest: float


def values_of(view: GraphView, name: str) -> ConstantValues | None:
    """The magnitudes of a constant of numbers; None where its values cannot be had.

    Of integers behind a DequantizeLinear the largest is what their scale allows, and nothing is read.
    """
    maker = view.producers.get(name)
    if maker is not None and maker.op == DEQUANTIZE:
        scale = view.array(maker.inputs[1])
        return None if scale is None else ConstantValues(_LEVELS * float(np.abs(scale).max(initial=0.0)), 0.0)
    array = view.array(name)
    if array is None or array.dtype.kind not in _REAL:
        return None
    flat, largest, smallest = array.reshape(-1), 0.0, np.inf
    step = max(1, BLOCK_BYTES // max(1, array.itemsize))
    for start in range(0, flat.size, step):
        block = np.abs(flat[start : start + step].astype(np.float32, copy=False))
        block = block[np.isfinite(block)]
        largest = max(largest, float(block.max(initial=0.0)))
        smallest = min(smallest, float(block[block > 0].min(initial=np.inf)))
    return ConstantValues(largest, smallest)


def largest_sum(weight: npt.NDArray[Any], axis: int) -> tuple[float, float, int]:
    """What the outputs of a product add up at most: max over the channels of sum |w|.

    Args:
        weight: real numbers, mapped from a file where it is large.
        axis: the axis of the outputs.
    """
    rows, at = weight.shape[axis], axis % weight.ndim
    terms = weight.size // max(rows, 1)
    sums, largest = np.zeros(rows, np.float64), 0.0
    others = tuple(other for other in range(weight.ndim) if other != at)
    for part in _parts(weight):
        block = np.abs(weight[part].astype(np.float32, copy=False))
        sums[slice(None) if at else part] += block.sum(axis=others, dtype=np.float64)
        largest = max(largest, float(block.max(initial=0.0)))
    return float(sums.max(initial=0.0)), largest, terms


def _parts(weight: npt.NDArray[Any]) -> list[slice]:
    """Slices along the outermost axis, each of one block where a row is not larger."""
    row = weight.size // max(weight.shape[0], 1) * weight.itemsize
    step = max(1, BLOCK_BYTES // max(1, row))
    return [slice(start, start + step) for start in range(0, weight.shape[0], step)]
