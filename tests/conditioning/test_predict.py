# SPDX-License-Identifier: Apache-2.0
"""What a division is predicted to win: much where channels lie apart, nothing where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.conditioning.channel_histograms import ChannelSpectrum, ErrorTable
from qdqtool.conditioning.predict import Rounding, Weight, choose_factors, predicted_noise

ALL = np.ones(8, bool)


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


def test_channels_apart_are_evened_out_for_a_depthwise_reader() -> None:
    table = table_of(2.0)
    choice = choose_factors(table, [depthwise()], ALL)
    assert choice.gain > 10
    divided = table.amax / choice.factors
    assert divided.max() / divided.min() < 2
    assert divided.max() == pytest.approx(table.amax.max(), rel=1e-5)


def test_equal_channels_win_next_to_nothing() -> None:
    assert choose_factors(table_of(1.0), [depthwise(even=1.0)], ALL).gain < 0.5


def test_a_channel_that_may_not_be_divided_keeps_its_size() -> None:
    mask = ALL.copy()
    mask[[1, 5]] = False
    choice = choose_factors(table_of(2.0), [depthwise()], mask)
    assert choice.factors[[1, 5]].tolist() == [1.0, 1.0]
    assert choice.gain > 0


@pytest.mark.parametrize("share", [0.3, 1.0, 4.0])
def test_no_channel_grows_beyond_a_clipping_value_that_stays(share: float) -> None:
    table = table_of(2.0)
    clip = share * float(table.amax.max())
    choice = choose_factors(table, [depthwise()], ALL, clip=clip)
    assert choice.gain > 5
    assert ((table.amax / choice.factors)[table.amax < clip] <= min(clip, table.amax.max()) * (1 + 1e-6)).all()
    assert (choice.factors[table.amax >= clip] >= 1 - 1e-6).all()
    assert choice.before.sum() == pytest.approx(
        predicted_noise(table, [depthwise()], np.ones(8, np.float32), clip).sum()
    )


@pytest.mark.parametrize("rounding", ["float", "power-of-two"])
def test_powers_of_two_where_asked_for(rounding: Rounding) -> None:
    factors = choose_factors(table_of(2.3), [depthwise()], ALL, rounding).factors
    mantissas = np.frexp(factors)[0]
    assert bool((mantissas == 0.5).all()) == (rounding == "power-of-two")
    assert (factors != 1).any()


def test_a_dead_channel_keeps_one() -> None:
    spectrum = ChannelSpectrum(8, 1)
    values = np.random.default_rng(0).normal(size=(1, 8, 400)) * (2.0 ** -np.arange(8))[None, :, None]
    values[:, 3] = 0
    spectrum.add(values.astype(np.float32))
    assert choose_factors(ErrorTable(spectrum.counts, spectrum.amax), [depthwise()], ALL).factors[3] == 1.0


def test_nothing_alive_nothing_chosen() -> None:
    choice = choose_factors(ErrorTable(np.zeros((8, 384), np.int64), np.zeros(8, np.float32)), [depthwise()], ALL)
    assert choice.gain == 0.0
    assert (choice.factors == 1).all()


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
