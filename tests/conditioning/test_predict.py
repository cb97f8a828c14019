# SPDX-License-Identifier: Apache-2.0
"""What rounding and clipping cost at the outputs of those that read a tensor."""

from __future__ import annotations

import numpy as np

from qdqtool.conditioning.channel_histograms import ChannelSpectrum, ErrorTable
from qdqtool.conditioning.predict import Weight, predicted_noise


def table_of(spread: float) -> ErrorTable:
    size = spread ** -np.arange(8)
    values = np.random.default_rng(0).normal(size=(1, 8, 4000)) * size[None, :, None]
    spectrum = ChannelSpectrum(8, 1)
    spectrum.add(values.astype(np.float32))
    return ErrorTable(spectrum.counts, spectrum.amax)


def depthwise(rounded: str = "channel", even: float = 2.0) -> Weight:
    cube = np.random.default_rng(1).normal(size=(8, 1, 1, 9)) * (even ** np.arange(8))[:, None, None, None]
    return Weight("y", cube, np.arange(8), rounded)


def dense() -> Weight:
    return Weight("z", np.random.default_rng(2).normal(size=(1, 6, 8, 1)), np.arange(8), "channel")


def test_rounding_of_weights_counts_where_they_are_rounded() -> None:
    table, ones = table_of(1.0), np.ones(8, np.float32)
    free, rounded = (predicted_noise(table, [depthwise(how, even=1.0)], ones)[0] for how in ("no", "channel"))
    assert rounded > free
    whole = predicted_noise(table, [depthwise("tensor", even=8.0)], ones)[0]
    assert whole > predicted_noise(table, [depthwise("channel", even=8.0)], ones)[0]


def test_the_prediction_meets_the_error_of_a_dense_reader() -> None:
    rng = np.random.default_rng(5)
    size = 2.0 ** -np.arange(8)
    values = (rng.normal(size=(8, 20_000)) * size[:, None]).astype(np.float32)
    spectrum = ChannelSpectrum(8, 1)
    spectrum.add(values[None])
    table, reader = ErrorTable(spectrum.counts, spectrum.amax), dense()
    weight = reader.cube[0, :, :, 0]
    step = float(np.abs(values).max()) / 127
    row = np.abs(weight).max(axis=1, keepdims=True) / 127
    made = np.rint(weight / row) * row @ (np.rint(values / step) * step)
    exact = weight @ values
    noise = float(np.square(made - exact).sum() / np.square(exact).sum())
    assert predicted_noise(table, [reader], np.ones(8, np.float32))[0] <= noise * 1.1  # its clipping may be better
    assert predicted_noise(table, [reader], np.ones(8, np.float32))[0] >= noise * 0.3
