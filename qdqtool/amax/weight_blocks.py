# SPDX-License-Identifier: Apache-2.0
"""Weights with one scale per block along the axis that a product sums over: scales, codes, and the search for scales.

    x = scale[k // block, n] * code[k, n]      scale rounded to its type in the file before there are codes

In NVFP4 the scale is a code of E4M3 times one scale of the tensor, `largest magnitude / 6 / 448`.

Works on arrays. Not which weights have blocks (`match/weight_points.py`), nor where their data come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.formats import NumberFormat

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Clipping values that the search tries, by the largest magnitude of a block. Seven eighths give the largest code to -8.
# Codes of FP4 lie closer together below 4: at one and a half, 4 is the code of the largest magnitude.
_RELATIVE_RATIOS = (1.0, 1.5, 1.4, 1.3, 1.2, 1.1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
RATIOS = (1.0, 0.95, 0.9, 0.875, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_ONE = np.float32(1)
_ONE_THREAD = 1 << 18  # multiply-adds up to which OpenBLAS computes a product in one thread
_ROWS = 256  # whose second moments are summed up in float32
_COLUMNS = 256  # that are searched at a time: what is held with them stays in the cache of a processor


def block_of(size: int, blocks: Sequence[int]) -> int:
    """The first length that divides an axis into two blocks or more; 0 where none does.

    TensorRT for RTX 1.7.1 does not build a single block into the product: a kernel of its own dequantizes it.
    """
    return next((block for block in blocks if size > block and size % block == 0), 0)


@dataclass(frozen=True)
class BlockLayout:
    """How a weight of two axes is cut.

    Attributes:
        axis: that the product sums over, 0 or 1.
        block: values of it that share a scale.
        format: of the codes.
        scale: element type, as in onnx.TensorProto, that scales are rounded to.
        tensor: the float32 scale of the tensor, of which those of blocks are multiples; 1 for formats without one.
    """

    axis: int
    block: int
    format: NumberFormat
    scale: int
    tensor: np.float32 = _ONE

    @classmethod
    def of(cls, axis: int, block: int, number_format: NumberFormat, weight: Float32) -> BlockLayout:
        """How a weight is cut in a format with blocks."""
        kind = int(onnx.TensorProto.DataType.Value(number_format.scale))
        amax = np.abs(weight).max(initial=0) if number_format.has_two_levels else 0
        return cls(axis, block, number_format, kind, np.float32(number_format.scale_of(amax)) if amax else _ONE)

    @property
    def smallest(self) -> np.float32:
        """The smallest positive scale, in those of the tensor."""
        if self.format.has_two_levels:
            return np.float32(2**-9)
        return np.float32(np.finfo(np.float16).smallest_subnormal if self.scale == onnx.TensorProto.FLOAT16 else 2e-38)

    def rounded(self, scales: npt.NDArray[np.floating[Any]]) -> Float32:
        """Scales as the file has them, in float32: to the nearest, at least the smallest, at most the largest.

        `scales` are multiples of the tensor's.
        """
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self.scale)
        largest = np.float32(np.finfo(np.float16).max if dtype == np.float16 else 3e38)
        if self.format.has_two_levels:
            largest = np.float32(self.format.span / self.format.largest)
        made: Float32 = np.clip(scales, self.smallest, largest).astype(dtype).astype(np.float32)
        return made * self.tensor

    def stored(self, scales: Float32) -> npt.NDArray[np.generic]:
        """What the file holds of the scales of blocks: codes where there are two levels."""
        return (scales / self.tensor).astype(self.format.scale_dtype) if self.format.has_two_levels else scales

    def cut(self, weight: Float32) -> Float32:
        """[blocks, values of a block, channels that are made], a view where the sum runs along the first axis."""
        turned = np.moveaxis(weight, self.axis, 0)
        return turned.reshape(-1, self.block, turned.shape[1])

    def joined(self, cut: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Back from `cut` into the shape of the weight."""
        return np.ascontiguousarray(np.moveaxis(cut.reshape(-1, cut.shape[-1]), 0, self.axis))

    def scales(self, weight: Float32) -> Float32:
        """Abs-max of each block by the largest code, rounded: the weight's shape, its axis `block` times shorter."""
        multiples = self._multiples(np.abs(self.cut(weight)).max(axis=1))
        return np.ascontiguousarray(np.moveaxis(self.rounded(multiples), 0, self.axis))

    def _multiples(self, amax: Float32) -> Float32:
        """Scales at which clipping values have the largest code, not rounded; that of zeros is 1 if it is a code."""
        multiples: Float32 = amax / (np.float32(self.format.largest) * self.tensor)
        return np.where(amax > 0, multiples, np.float32(1)) if self.format.has_two_levels else multiples

    def codes(self, weight: Float32, scales: Float32) -> npt.NDArray[np.generic]:
        """The nearest codes, ties to even, cut off at the lowest and the largest; of the weight's shape."""
        steps = self.cut(weight) / np.moveaxis(scales, self.axis, 0)[:, None]
        return self.joined(np.clip(self.format.nearest(steps), *self.format.codes).astype(self.format.dtype))

    def values(self, codes: npt.NDArray[np.generic], scales: Float32) -> Float32:
        """What the codes stand for, in float32."""
        return self.joined(self.cut(codes.astype(np.float32)) * np.moveaxis(scales, self.axis, 0)[:, None])

    def error(self, weight: Float32, scales: Float32, moments: Float64) -> float:
        """The error e' M e of all channels at some scales, with the moments of `searched`."""
        cut = self.cut(self.values(self.codes(weight, scales), scales) - weight)
        return float(np.einsum("bkn,bkn->", moments.astype(np.float32) @ cut, cut, dtype=np.float64))

    def searched(self, weight: Float32, moments: Float64 | None) -> tuple[Float32, Float64]:
        """Scales at which the product of a block loses least: e' M e, where e is the error of the block's values.

        Args:
            weight: float32, of two axes.
            moments: [blocks, block, block], the mean of x x' over the rows that the product reads; None for the error
                of the weight itself, which is what M = 1 gives.

        Returns:
            The scales, and the error of each channel at them, summed over its blocks.
        """
        found = np.empty((weight.shape[self.axis] // self.block, weight.shape[1 - self.axis]), np.float32)
        lost = np.zeros(found.shape[1])
        cut = self.cut(weight)
        for number, part in _parts(cut):
            columns = cut[number][:, part]
            means = None if moments is None else moments[number].astype(np.float32)
            found[number, part], error = self._best(np.ascontiguousarray(columns), means)
            lost[part] += error
        return np.ascontiguousarray(np.moveaxis(found, 0, self.axis)), lost

    def _best(self, columns: Float32, moments: Float32 | None) -> tuple[Float32, Float32]:
        """The best scale of each column of one block, and its error."""
        largest = self._multiples(np.abs(columns).max(axis=0))
        best, least = self.rounded(largest), np.full(columns.shape[1], np.inf, np.float32)
        lowest, highest = map(np.float32, self.format.codes)
        for ratio in _RELATIVE_RATIOS if self.format.is_relative else RATIOS:
            scale = self.rounded(largest * np.float32(ratio))
            error = np.clip(self.format.nearest(columns / scale), lowest, highest)
            error *= scale
            error -= columns
            seen = error if moments is None else _product(moments, error)
            lost = np.einsum("kn,kn->n", seen, error)
            better = lost < least
            best, least = np.where(better, scale, best), np.where(better, lost, least)
        return best, np.maximum(least, 0)


def _product(moments: Float32, error: Float32) -> Float32:
    """`moments @ error`, some columns at a time: a larger product is spread over threads, which take more than it."""
    width = max(1, _ONE_THREAD // moments.size)
    with np.errstate(over="ignore", invalid="ignore"):  # callers refuse an overflow, or it never wins
        parts = [moments @ error[:, begin : begin + width] for begin in range(0, error.shape[1], width)]
    return np.concatenate(parts, axis=1)


def _parts(cut: Float32) -> Iterator[tuple[int, slice]]:
    """Block by block, some columns at a time."""
    for number in range(cut.shape[0]):
        for begin in range(0, cut.shape[2], _COLUMNS):
            yield number, slice(begin, begin + _COLUMNS)


@cache
def _upper_half(block: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(block)


class Moments:
    """Second moments of what a product reads, block by block; as large however many rows there are.

    Attributes:
        rows: how many were counted.
        largest: the largest magnitude of a value in them.
    """

    def __init__(self, size: int, block: int) -> None:
        """Begin with no rows of `size` values."""
        self.rows, self.largest, self._block = 0, np.float32(0), block
        self._halves = np.zeros((size // block, block * (block + 1) // 2))  # of symmetric matrices

    @property
    def is_finite(self) -> bool:
        """Whether no NaN, no Inf and no value with a square beyond float32 was counted."""
        return bool(np.isfinite(self._halves).all())

    @property
    def sums(self) -> Float64:
        """float64 [blocks, block, block], the sum of x x'."""
        made = np.empty((len(self._halves), self._block, self._block))
        rows, columns = _upper_half(self._block)
        made[:, rows, columns] = made[:, columns, rows] = self._halves
        return made

    def add(self, values: Float32) -> None:
        """Count rows: every axis but the last is one of them."""
        blocks, half = len(self._halves), _upper_half(self._block)
        rows = values.reshape(-1, blocks, self._block)
        for begin in range(0, len(rows), _ROWS):
            for number in range(blocks):
                part = np.ascontiguousarray(rows[begin : begin + _ROWS, number])
                self._halves[number] += _product(part.T, part)[half]
        self.rows += len(rows)
        self.largest = max(self.largest, np.abs(values).max(initial=0))
