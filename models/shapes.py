# SPDX-License-Identifier: Apache-2.0
"""Pictures of one shape each, drawn from a seed: what the vision transformer names. No file of them is kept.

python models/shapes.py    (writes shapes_calib.npz and shapes_test.npz into the current folder, or that of --out)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 32
CALIB, TEST, VALIDATION = (101, 64), (102, 2500), (103, 1000)  # seed and number of pictures
_CLUTTER = 3  # small bright or dark spots that belong to no shape

Array = npt.NDArray[Any]


def _bars(u: Array, v: Array) -> Array:
    return (abs(v) < 0.9) & ((abs(u) < 0.16) | (abs(abs(u) - 0.65) < 0.16))


def _star(u: Array, v: Array) -> Array:
    return np.hypot(u, v) < 0.62 + 0.34 * np.cos(5 * np.arctan2(v, u))


def _crescent(u: Array, v: Array) -> Array:
    return (np.hypot(u, v) < 0.95) & (np.hypot(u - 0.45, v) > 0.75)


# Name -> whether a point (u to the right, v down, the shape within a circle of radius 1) is inside.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "disk": lambda u, v: np.hypot(u, v) < 0.85,
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.72) < 0.2,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 0.72,
    "frame": lambda u, v: abs(np.maximum(abs(u), abs(v)) - 0.62) < 0.16,
    "triangle": lambda u, v: (v < 0.6) & (v > 2 * abs(u) - 0.95),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.22) & (np.maximum(abs(u), abs(v)) < 0.92),
    "star": _star,
    "half disk": lambda u, v: (np.hypot(u, v) < 0.95) & (v > 0),
    "crescent": _crescent,
    "bars": _bars,
    "corner": lambda u, v: (np.maximum(abs(u), abs(v)) < 0.8) & ((u < -0.3) | (v > 0.3)),
    "two disks": lambda u, v: np.hypot(abs(u) - 0.55, v) < 0.38,
}


def draw(seed: int, count: int) -> tuple[Array, Array]:
    """Pictures [count, 3, 32, 32] float32 in steps of 1/255, and the number of the shape in each, [count] int64.

    A shape is 16 to 28 pixels wide, turned to any side, of any color over another one, with a wavy ground and noise.
    """
    draws = np.random.default_rng(seed)
    labels = draws.integers(len(SHAPES), size=count)
    grid = np.arange(SIDE, dtype=np.float32) + 0.5
    turn, radius = draws.uniform(0, 2 * np.pi, (count, 1, 1)), draws.uniform(8, 14, (count, 1, 1))
    right, down = (draws.uniform(14, 18, (count, 1, 1)) for _ in range(2))
    x, y = (grid[None, None, :] - right) / radius, (grid[None, :, None] - down) / radius
    u, v = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    inside = np.zeros((count, SIDE, SIDE), np.bool_)
    for number, shape in enumerate(SHAPES.values()):
        rows = labels == number
        inside[rows] = shape(u[rows], v[rows])
    images = _ground(draws, count) + inside[:, None] * _contrast(draws, count)
    images += draws.normal(0, 1, images.shape) * draws.uniform(0.02, 0.12, (count, 1, 1, 1))
    return (np.rint(images.clip(0, 1) * 255) / 255).astype(np.float32), labels.astype(np.int64)


def _contrast(draws: np.random.Generator, count: int) -> Array:
    """How a shape's color differs from its ground, [count, 3, 1, 1]: by two fifths of the range or more in all."""
    direction = draws.normal(0, 1, (count, 3, 1, 1))
    return direction / np.linalg.norm(direction, axis=1, keepdims=True) * draws.uniform(0.4, 0.9, (count, 1, 1, 1))


def _ground(draws: np.random.Generator, count: int) -> Array:
    """A wave over one color, and spots, [count, 3, 32, 32]."""
    grid = np.arange(SIDE) / SIDE
    kx, ky, phase = (draws.uniform(-top, top, (count, 1, 1)) for top in (18, 18, np.pi))
    wave = np.sin(kx * grid[None, None, :] + ky * grid[None, :, None] + phase)[:, None]
    ground = draws.uniform(0.25, 0.75, (count, 3, 1, 1)) + wave * draws.uniform(-0.1, 0.1, (count, 3, 1, 1))
    for _ in range(_CLUTTER):
        column, row = (draws.uniform(0, 1, (count, 1, 1)) for _ in range(2))
        near = np.hypot(grid[None, None, :] - column, grid[None, :, None] - row) < draws.uniform(
            0.03, 0.1, (count, 1, 1)
        )
        ground += near[:, None] * draws.uniform(-0.4, 0.4, (count, 3, 1, 1))
    return ground


def write_arrays(stem: str, calib: Array, test: Mapping[str, Array]) -> None:
    """Write the images to calibrate on, and those to judge by with their labels, into the folder of --out."""
    parser = argparse.ArgumentParser(description=f"draw {stem}_calib.npz and {stem}_test.npz")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="default: the current folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / f"{stem}_calib.npz", images=calib)
    np.savez_compressed(out / f"{stem}_test.npz", **test)  # type: ignore[arg-type]


if __name__ == "__main__":
    pictures, names = draw(*TEST)
    write_arrays("shapes", draw(*CALIB)[0], {"images": pictures, "y": names})
