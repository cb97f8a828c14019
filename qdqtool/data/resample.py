# SPDX-License-Identifier: Apache-2.0
"""Resizing an image array the two ways deployments do (OpenCV's INTER_LINEAR and INTER_AREA); Pillow has neither."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_BLOCK_BYTES = 32 << 20  # of running sums at a time: an image of 80 million pixels would take gigabytes
_Float32 = npt.NDArray[np.float32]


def resize_linear(pixels: Pixels, width: int, height: int) -> Pixels:
    """Sample between the two nearest pixels a side, whatever the factor: shrinking skips pixels, edges repeat.

    Pixel centers are at ``i + 0.5``, so output column x looks at ``(x + 0.5) * old / new - 0.5``; ties round to even.

    Args:
        pixels: uint8, (H, W, C).
        width: columns of the result.
        height: rows of the result.
    """
    low, high, weight = _neighbors(pixels.shape[0], height)
    above, below = (_across(pixels.take(rows, 0), width) for rows in (low, high))
    return np.rint(_mixed(above, below, weight.reshape(-1, 1, 1))).astype(np.uint8)


def resize_area(pixels: Pixels, width: int, height: int) -> Pixels:
    """The mean over the area that each output pixel covers, fractions counted; where it grows, `resize_linear`.

    Args:
        pixels: uint8, (H, W, C).
        width: columns of the result.
        height: rows of the result.
    """
    if width > pixels.shape[1] or height > pixels.shape[0]:
        return resize_linear(pixels, width, height)
    wide = max(1, _BLOCK_BYTES // (8 * pixels.shape[0] * pixels.shape[2]))
    blocks = (pixels[:, start : start + wide].astype(np.float64) for start in range(0, pixels.shape[1], wide))
    rows = np.concatenate([_mean_over(block, height, 0) for block in blocks], 1)
    return np.rint(_mean_over(rows, width, 1)).astype(np.uint8)


def interpolated(values: _Float32, axis: int, places: npt.NDArray[np.float64]) -> _Float32:
    """Linear interpolation along one axis of float32[channels, height, width]; places beyond the ends are the ends."""
    last = values.shape[axis] - 1
    places = np.clip(places, 0, last)
    low = np.minimum(places.astype(np.intp), max(last - 1, 0))
    shape = [1, 1, 1]
    shape[axis] = places.size
    part = (places - low).astype(np.float32).reshape(shape)
    return _mixed(np.take(values, low, axis), np.take(values, np.minimum(low + 1, last), axis), part)


def _across(pixels: Pixels, width: int) -> _Float32:
    """Rows between their pixels."""
    low, high, weight = _neighbors(pixels.shape[1], width)
    left, right = (pixels.take(columns, 1).astype(np.float32) for columns in (low, high))
    return _mixed(left, right, weight.reshape(-1, 1))


def _mixed(start: _Float32, end: _Float32, weight: _Float32) -> _Float32:
    mixed: _Float32 = start + (end - start) * weight
    return mixed


def _neighbors(old: int, count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], _Float32]:
    """For each of `count` places along a side of `old` pixels: the two pixels around it, and the second's share."""
    place = np.clip((np.arange(count) + 0.5) * (old / count) - 0.5, 0, old - 1)
    low = np.floor(place).astype(np.intp)
    return low, np.minimum(low + 1, old - 1), (place - low).astype(np.float32)


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
