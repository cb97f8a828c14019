# SPDX-License-Identifier: Apache-2.0
"""Counts per channel, and the error that follows from them, against the error of the values themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.conditioning.channel_histograms import BINS, ChannelSpectrum, ErrorTable, bin_of, edges


def spectrum_of(values: npt.NDArray[np.float32], axis: int = 1) -> ChannelSpectrum:
    one = ChannelSpectrum(values.shape[axis], axis)
    for part in np.array_split(values, 10, axis=values.ndim - 1 if axis == 1 else 1):  # few places: all are counted
        one.add(part)
    return one


def test_values_lie_between_the_edges_of_their_bins() -> None:
    values = np.abs(np.random.default_rng(0).normal(size=1000).astype(np.float32)) + np.float32(1e-6)
    found, edge = bin_of(values), edges()
    assert (edge[found] <= values).all()
    assert (values < edge[found + 1]).all()
    assert bin_of(-values).tolist() == found.tolist()


def test_zero_tiny_and_huge_values_stay_inside() -> None:
    assert bin_of(np.array([0, -0.0, 1e-40, 1e38], np.float32)).tolist() == [0, 0, 0, BINS - 1]


def test_counts_do_not_depend_on_order_or_batch() -> None:
    values = np.random.default_rng(1).normal(size=(6, 3, 5, 5)).astype(np.float32)
    together, apart = spectrum_of(values), ChannelSpectrum(3, 1)
    for sample in values[::-1]:
        apart.add(sample[None])
    assert together.counts.tobytes() == apart.counts.tobytes()
    assert together.amax.tobytes() == apart.amax.tobytes()
    assert together.counts.sum(axis=1).tolist() == [150] * 3
    assert together.amax.tolist() == np.abs(values).max(axis=(0, 2, 3)).tolist()


def test_channels_along_the_last_axis() -> None:
    values = np.random.default_rng(2).normal(size=(4, 7, 3)).astype(np.float32)
    assert spectrum_of(values, 2).amax.tolist() == np.abs(values).max(axis=(0, 1)).tolist()


def test_of_many_places_a_part_is_counted_and_all_are_measured() -> None:
    values = np.zeros((1, 1, 10_000), np.float32)
    values[0, 0, 4321] = 7.0
    one = ChannelSpectrum(1, 1)
    one.add(values)
    assert 2048 <= one.counts.sum() <= 4096
    assert one.amax.tolist() == [7.0]


@pytest.mark.parametrize("clip", [8.0, 4.0, 2.0, 1.0, 0.5])
def test_the_error_is_that_of_rounding_and_clipping(clip: float) -> None:
    rng = np.random.default_rng(3)
    values = np.stack([rng.normal(size=20_000), rng.laplace(size=20_000) * 0.1]).astype(np.float32)[None]
    one = spectrum_of(values)
    table = ErrorTable(one.counts, one.amax)
    step = clip / 127
    rounded = np.clip(np.rint(values[0] / step), -127, 127) * step
    exact = np.square(rounded - values[0], dtype=np.float64).mean(axis=1)
    assert table.at(np.array([clip, clip])) == pytest.approx(
        exact, rel=0.15, abs=1e-9
    )  # bins are an eighth of an octave wide
    assert table.energy == pytest.approx(np.square(values[0], dtype=np.float64).mean(axis=1), rel=0.02)
