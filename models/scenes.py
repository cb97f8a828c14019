# SPDX-License-Identifier: Apache-2.0
"""Scenes for the detector: one to four handwritten digits over a noisy, cluttered background, with their boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from digits import Digits, resize

SIDE = 96
GREYS = 51  # grey levels above black; few enough that the files stay small, and each is a step of 5/255
SMALLEST, LARGEST = 16, 32
MOST_DIGITS = 4
MOST_OVERLAP = 0.05
INK = 0.25  # a pixel darker than this does not count when the box is drawn
CALIB, TEST, VALIDATION = (8, 64), (9, 200), (10, 200)  # seed and number of scenes


class Scene(NamedTuple):
    """An image [96, 96] uint8, boxes [m, 4] float32 (x1, y1, x2, y2 in pixels) and labels [m] int64."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


def compose(rng: np.random.Generator, digits: Digits) -> Scene:
    """Draw one scene from the digits at hand: background, clutter, digits, sensor noise."""
    canvas = _background(rng)
    sign = 1.0 if rng.random() < 0.7 else -1.0
    _scribble(rng, canvas, sign)
    boxes: list[np.ndarray] = []
    labels: list[int] = []
    for _ in range(int(rng.integers(1, MOST_DIGITS + 1))):
        row = int(rng.integers(len(digits.labels)))
        box = _draw(rng, canvas, digits.images[row], sign, boxes)
        if box is not None:
            boxes.append(box)
            labels.append(int(digits.labels[row]))
    canvas += rng.normal(0.0, rng.uniform(0.01, 0.06), canvas.shape)
    image = (np.rint(np.clip(canvas, 0, 1) * GREYS) * (255 // GREYS)).astype(np.uint8)
    return Scene(image, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64))


def compose_many(seed: int, count: int, digits: Digits) -> list[Scene]:
    """`count` scenes; the same seed and digits give the same scenes."""
    rng = np.random.default_rng(seed)
    return [compose(rng, digits) for _ in range(count)]


def as_input(images: np.ndarray) -> np.ndarray:
    """Images [N, 96, 96] uint8 as the model takes them: [N, 1, 96, 96] float32, value / 255."""
    return (images[:, None].astype(np.float32) / np.float32(255)).astype(np.float32)


def labeled(scenes: list[Scene]) -> dict[str, np.ndarray]:
    """The scenes as flat arrays: images [N, 96, 96] uint8, boxes [M, 4], labels [M], scene [M]."""
    counts = [len(scene.labels) for scene in scenes]
    return {
        "images": np.stack([scene.image for scene in scenes]),
        "boxes": np.concatenate([scene.boxes for scene in scenes]),
        "labels": np.concatenate([scene.labels for scene in scenes]),
        "scene": np.repeat(np.arange(len(scenes)), counts),
    }


def _background(rng: np.random.Generator) -> np.ndarray:
    """A mid grey with slow waves of light, [96, 96]."""
    waves = resize(rng.uniform(-1, 1, (5, 5)).astype(np.float32), SIDE, SIDE)
    return np.asarray(rng.uniform(0.3, 0.6) + rng.uniform(0.05, 0.18) * waves, np.float64)


def _scribble(rng: np.random.Generator, canvas: np.ndarray, sign: float) -> None:
    """Up to four strokes as bright and as thick as a digit's, which are no digit."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    for _ in range(int(rng.integers(0, 5))):
        start, angle = rng.uniform(0, SIDE, 2), rng.uniform(0, 2 * np.pi)
        length, half = rng.uniform(8, 34), rng.uniform(0.8, 2.0)
        along = np.clip((columns - start[0]) * np.cos(angle) + (rows - start[1]) * np.sin(angle), 0, length)
        away = np.hypot(columns - start[0] - along * np.cos(angle), rows - start[1] - along * np.sin(angle))
        canvas += sign * rng.uniform(0.15, 0.45) * np.clip(half + 0.5 - away, 0, 1)


def _draw(
    rng: np.random.Generator, canvas: np.ndarray, digit: np.ndarray, sign: float, taken: list[np.ndarray]
) -> np.ndarray | None:
    """Draw a digit where there is room and return its box, or None where twenty places were taken."""
    height = int(rng.integers(SMALLEST, LARGEST + 1))
    width = int(np.clip(round(height * rng.uniform(0.75, 1.2)), SMALLEST, LARGEST))
    ink = resize(digit, height, width)
    rows, columns = (np.flatnonzero((ink > INK).any(axis)) for axis in (1, 0))
    tight = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], np.float32)
    for _ in range(20):
        x, y = (int(rng.integers(0, SIDE - size + 1)) for size in (width, height))
        box = tight + np.array([x, y, x, y], np.float32)
        if all(_shared(box, other) <= MOST_OVERLAP for other in taken):
            canvas[y : y + height, x : x + width] += sign * rng.uniform(0.25, 0.6) * ink
            return box
    return None


def _shared(a: np.ndarray, b: np.ndarray) -> float:
    """The part of the smaller box that lies in the other one."""
    size = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
    return float(size.prod() / min((a[2:] - a[:2]).prod(), (b[2:] - b[:2]).prod()))
