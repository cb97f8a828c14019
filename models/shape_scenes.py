# SPDX-License-Identifier: Apache-2.0
"""Scenes of one to four shapes with their boxes, drawn from a seed: what the small DETR finds. No file of them.

python models/shape_scenes.py    (writes scenes_calib.npz and scenes_test.npz into the current folder, or that of --out)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from shapes import SHAPES, write_arrays

SIDE = 64
NAMES = ("disk", "ring", "square", "triangle", "cross", "half disk")
CALIB, TEST, VALIDATION = (201, 64), (202, 500), (203, 300)  # seed and number of scenes
SMALLEST, LARGEST = 6.0, 14.0  # radius of a shape in pixels
MOST_SHAPES = 4
_TRIES = 20  # places that are looked at for a shape
_SPOTS = 4  # small bright or dark spots that belong to no shape

Array = npt.NDArray[Any]
_AXIS = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)  # centers of pixels


def draw_scene(draws: np.random.Generator) -> tuple[Array, Array, Array]:
    """One scene: image [3, 64, 64] float32 in steps of 1/255, boxes [m, 4] float32 and labels [m] int64.

    Boxes are corners in pixels (x1, y1, x2, y2) around the pixels whose center is inside. Shapes lie apart, each turned
    to any side and of any color over the ground.
    """
    image = _ground(draws)
    taken, boxes, labels = np.zeros((SIDE, SIDE), np.bool_), [], []
    for _ in range(int(draws.integers(1, MOST_SHAPES + 1))):
        label = int(draws.integers(len(NAMES)))
        mask = _place(draws, NAMES[label], taken)
        if mask is None:
            continue
        taken |= mask
        image[:, mask] += _contrast(draws)
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        labels.append(label)
    image += draws.standard_normal(image.shape, np.float32) * np.float32(draws.uniform(0.01, 0.08))
    pixels = (np.rint(image.clip(0, 1) * 255) / 255).astype(np.float32)
    return pixels, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64)


def draw(seed: int, count: int) -> dict[str, Array]:
    """Scenes as flat arrays: images [count, 3, 64, 64], boxes [M, 4], labels [M], scene [M]."""
    draws = np.random.default_rng(seed)
    images, boxes, labels = zip(*(draw_scene(draws) for _ in range(count)), strict=True)
    return {
        "images": np.stack(images),
        "boxes": np.concatenate(boxes),
        "labels": np.concatenate(labels),
        "scene": np.repeat(np.arange(count), [len(one) for one in labels]),
    }


def _place(draws: np.random.Generator, name: str, taken: Array) -> Array | None:
    """The pixels of a shape where it touches no other one, or None where there was no room."""
    for _ in range(_TRIES):
        radius, turn = draws.uniform(SMALLEST, LARGEST), draws.uniform(0, 2 * np.pi)
        right, down = draws.uniform(radius, SIDE - radius, 2)
        near = np.square(_AXIS - right) + np.square(_AXIS - down)[:, None] < radius**2
        if (near & taken).any():
            continue
        x, y = (_AXIS - right) / radius, (_AXIS[:, None] - down) / radius
        return SHAPES[name](x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)) & near
    return None


def _contrast(draws: np.random.Generator) -> Array:
    """How the color of a shape differs from its ground, [3, 1]."""
    direction = draws.normal(0, 1, (3, 1))
    return direction / np.linalg.norm(direction) * draws.uniform(0.4, 0.9)


def _ground(draws: np.random.Generator) -> Array:
    """A wave over one color, and spots, [3, 64, 64] float32."""
    kx, ky, phase = draws.uniform(-18, 18), draws.uniform(-18, 18), draws.uniform(-np.pi, np.pi)
    right, down = kx * _AXIS / SIDE + phase, ky * _AXIS / SIDE
    wave = np.outer(np.cos(down), np.sin(right)) + np.outer(np.sin(down), np.cos(right))  # the sine of the sum
    ground = draws.uniform(0.25, 0.75, (3, 1, 1)) + wave * draws.uniform(-0.1, 0.1, (3, 1, 1))
    for _ in range(_SPOTS):
        (column, row), reach = draws.uniform(0, SIDE, 2), draws.uniform(1, 3.2)
        near = np.square(_AXIS - column) + np.square(_AXIS - row)[:, None] < reach**2
        ground[:, near] += draws.uniform(-0.4, 0.4, (3, 1))
    return ground.astype(np.float32)


if __name__ == "__main__":
    write_arrays("scenes", draw(*CALIB)["images"], draw(*TEST))
