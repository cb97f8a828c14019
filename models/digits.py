# SPDX-License-Identifier: Apache-2.0
"""The handwritten digits of scikit-learn, parted once for both models. Needed to train, not to evaluate."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Split = Literal["train", "calib", "test"]
SPLITS: tuple[Split, ...] = ("train", "calib", "test")
SHARES = {"train": 0.60, "calib": 0.15, "test": 0.25}


class Digits(NamedTuple):
    """Images [K, 8, 8] float32 in [0, 1] (ink is 1) with their labels [K] int64."""

    images: np.ndarray
    labels: np.ndarray


def load_split() -> dict[Split, Digits]:
    """The 1,797 digits in three disjoint parts, each class in the same shares, always the same ones."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return part((bunch.images / 16.0).astype(np.float32), bunch.target.astype(np.int64))


def part(images: np.ndarray, labels: np.ndarray, seed: int = 20) -> dict[Split, Digits]:
    """Part images [K, ...] by class into the shares of `SHARES`; no image is in two parts."""
    rng = np.random.default_rng(seed)
    picked: dict[Split, list[np.ndarray]] = {split: [] for split in SPLITS}
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        first = round(SHARES["train"] * len(rows))
        second = first + round(SHARES["calib"] * len(rows))
        for split, chunk in zip(SPLITS, np.split(rows, [first, second]), strict=True):
            picked[split].append(chunk)
    rows_of = {split: np.sort(np.concatenate(chunks)) for split, chunks in picked.items()}
    return {split: Digits(images[rows], labels[rows]) for split, rows in rows_of.items()}


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resize of [H, W], pixel centers at half integers, edges repeated."""
    resized = _weights(image.shape[0], height) @ image @ _weights(image.shape[1], width).T
    return np.asarray(resized, np.float32)


def _weights(source: int, target: int) -> np.ndarray:
    """The matrix [target, source] of a bilinear resize along one axis; each row sums to 1."""
    position = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    low = np.minimum(position.astype(np.int64), max(source - 2, 0))
    matrix = np.zeros((target, source), np.float32)
    matrix[np.arange(target), low] = 1 - (position - low)
    matrix[np.arange(target), np.minimum(low + 1, source - 1)] += position - low
    return matrix
