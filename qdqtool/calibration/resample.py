# SPDX-License-Identifier: Apache-2.0
"""Resizing an image array the two ways deployments do (OpenCV's INTER_LINEAR and INTER_AREA); Pillow has neither."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_Float32 = npt.NDArray[np.float32]


def resize_linear(pixels: Pixels, width: int, height: int) -> Pixels:
    """Sample between the two nearest pixels a side, whatever the factor: shrinking skips pixels, edges repeat.

    Pixel centres are at ``i + 0.5``, so output column x looks at ``(x + 0.5) * old / new - 0.5``; ties round to even.

    Args:
        pixels: uint8, (H, W, C).
        width: columns of the result.
        height: rows of the result.
    """
    columns = _between(pixels.astype(np.float32), width, 1)
    return np.rint(_between(columns, height, 0)).astype(np.uint8)


def resize_area(pixels: Pixels, width: int, height: int) -> Pixels:
    """The mean over the area that each output pixel covers, fractions counted; where it grows, `resize_linear`.

    Args:
        pixels: uint8, (H, W, C).
        width: columns of the result.
        height: rows of the result.
    """
    if width > pixels.shape[1] or height > pixels.shape[0]:
        return resize_linear(pixels, width, height)
    rows = _mean_over(pixels.astype(np.float64), height, 0)
    return np.rint(_mean_over(rows, width, 1)).astype(np.uint8)


def _between(values: _Float32, count: int, axis: int) -> _Float32:
    last = values.shape[axis] - 1
    place = np.clip((np.arange(count) + 0.5) * (values.shape[axis] / count) - 0.5, 0, last)
    low = np.floor(place).astype(np.intp)
    weight = (place - low).astype(np.float32)
    weight = weight.reshape(-1, 1) if axis == 1 else weight.reshape(-1, 1, 1)
    start = values.take(low, axis)
    mixed: _Float32 = start + (values.take(np.minimum(low + 1, last), axis) - start) * weight
    return mixed


def _mean_over(values: npt.NDArray[np.float64], count: int, axis: int) -> npt.NDArray[np.float64]:
    """Running sums, read between pixels at the borders of the output's cells; their differences are the cells' sums."""
    sums = np.insert(values.cumsum(axis), 0, 0.0, axis)
    cell = values.shape[axis] / count
    place = np.arange(count + 1) * cell
    low = np.minimum(np.floor(place).astype(np.intp), values.shape[axis] - 1)
    weight = (place - low).reshape(-1, 1) if axis == 1 else (place - low).reshape(-1, 1, 1)
    at_borders = sums.take(low, axis) * (1 - weight) + sums.take(low + 1, axis) * weight
    means: npt.NDArray[np.float64] = np.diff(at_borders, axis=axis) / cell
    return means
