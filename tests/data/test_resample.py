# SPDX-License-Identifier: Apache-2.0
"""Resizing against slow loops over the definition, on seeded images."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.data.resample import Pixels, resize_area, resize_linear


def image(height: int, width: int, channels: int = 3) -> Pixels:
    return np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def slow_linear(pixels: Pixels, width: int, height: int) -> npt.NDArray[np.float64]:
    out = np.zeros((height, width, pixels.shape[2]))
    for y in range(height):
        for x in range(width):
            sy = min(max((y + 0.5) * pixels.shape[0] / height - 0.5, 0), pixels.shape[0] - 1)
            sx = min(max((x + 0.5) * pixels.shape[1] / width - 0.5, 0), pixels.shape[1] - 1)
            top, left = math.floor(sy), math.floor(sx)
            for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
                weight = (sy - top if dy else 1 - sy + top) * (sx - left if dx else 1 - sx + left)
                if weight:
                    out[y, x] += weight * pixels[top + dy, left + dx]
    return out


def slow_area(pixels: Pixels, width: int, height: int) -> npt.NDArray[np.float64]:
    def overlap(cell: int, pixel: int, new: int, old: int) -> float:
        return max(0.0, min((cell + 1) * old / new, pixel + 1) - max(cell * old / new, pixel))

    rows = np.array([[overlap(y, i, height, pixels.shape[0]) for i in range(pixels.shape[0])] for y in range(height)])
    columns = np.array([[overlap(x, i, width, pixels.shape[1]) for i in range(pixels.shape[1])] for x in range(width)])
    area = pixels.shape[0] * pixels.shape[1] / height / width
    return np.einsum("yi,xj,ijc->yxc", rows, columns, pixels.astype(np.float64)) / area


@pytest.mark.parametrize(("old", "new"), [((12, 17), (5, 7)), ((5, 7), (12, 17)), ((9, 9), (3, 20)), ((1, 1), (4, 4))])
def test_linear_is_its_definition(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    got = resize_linear(pixels, new[1], new[0])
    assert got.shape == (*new, 3)
    # float32 weights move a value that lies halfway between two levels to one or the other
    assert np.abs(got - slow_linear(pixels, new[1], new[0])).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(("old", "new"), [((12, 17), (5, 7)), ((12, 16), (3, 4)), ((9, 9), (9, 2)), ((8, 8), (1, 1))])
def test_area_is_its_definition(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = image(*old)
    got = resize_area(pixels, new[1], new[0])
    assert got.shape == (*new, 3)
    assert np.abs(got - slow_area(pixels, new[1], new[0])).max() <= 0.5 + 1e-6


def test_area_that_grows_is_linear() -> None:
    pixels = image(6, 5, 1)
    assert np.array_equal(resize_area(pixels, 4, 9), resize_linear(pixels, 4, 9))


def test_same_size_changes_nothing() -> None:
    pixels = image(7, 6)
    assert np.array_equal(resize_linear(pixels, 6, 7), pixels)
    assert np.array_equal(resize_area(pixels, 6, 7), pixels)


@pytest.mark.parametrize("interpolation", ["linear", "area"])
def test_opencv_agrees_within_one_level(interpolation: str) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is only a witness here")
    pixels = image(120, 161)
    if interpolation == "linear":
        got, want = resize_linear(pixels, 64, 50), cv2.resize(pixels, (64, 50), interpolation=cv2.INTER_LINEAR)
    else:
        got, want = resize_area(pixels, 64, 50), cv2.resize(pixels, (64, 50), interpolation=cv2.INTER_AREA)
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1  # OpenCV computes in fixed point
