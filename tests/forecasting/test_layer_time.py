# SPDX-License-Identifier: Apache-2.0
"""Times of layers by hand: what multiplies, what moves, what is launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.engine.layer_work import LayerWork, Product, Unit
from qdqtool.forecasting.devices import load_constants, load_device
from qdqtool.forecasting.layer_time import LayerTimes
from tests.toy_device import toy_times


def layer(
    unit: Unit = "half", product: Product | None = None, moved: int = 0, weights: int = 0, kind: str = "product"
) -> LayerWork:
    return LayerWork("a", kind, ("a",), unit, () if product is None else (product,), {"x": moved}, {}, weights)


SQUARE = Product(1, 64, 64, 64)


@pytest.mark.parametrize(
    ("work", "time"),
    [
        (layer("int8", SQUARE), 64**3 / 2e3 + 1),
        (layer("half", SQUARE), 64**3 / 1e3 + 1),
        (layer("half", SQUARE, moved=10_000_000), 1e7 / 1e4 + 1),
        (layer("fp8", SQUARE), 64**3 / 1e3 + 1),  # the device has no FP8: as FP16
        (layer("int8", Product(1, 64, 40, 33)), 64 * 64 * 64 / 2e3 + 1),  # whole blocks of 32
        (layer("half", Product(1, 64, 40, 33)), 64 * 40 * 40 / 1e3 + 1),  # of 8
        (layer("int8", Product(64, 49, 1, 9, 9)), 64 * 49 * 9 / 1e3 + 1),  # depthwise: no Tensor Cores
        (layer(), 1),
    ],
)
def test_what_takes_longest_and_a_launch(work: LayerWork, time: float) -> None:
    assert toy_times(int8=2e3, half=1e3, memory=1e4, launch=1.0).of(work) == pytest.approx(time)


def test_tensors_that_fit_are_read_from_the_cache_and_weights_if_all_do() -> None:
    times = LayerTimes(load_device("rtx4090"))
    assert times.moving(layer(moved=2**20)) < times.moving(layer(moved=2**30)) / 2**10
    work = layer(weights=2**20)
    assert times.of_each([work])[0] < times.of_each([work, *[layer(weights=2**25)] * 3])[0]


def test_few_tiles_leave_multiprocessors_idle() -> None:
    """Two products that one multiprocessor computes take no longer than one, on a device that has many."""
    times = LayerTimes(load_device("h100"))
    small, twice = (layer("half", Product(1, 64 * count, 64, 64)) for count in (1, 2))
    assert times.computing(small) == pytest.approx(times.computing(twice), rel=0.5)
    large, larger = (layer("half", Product(1, 65536 * count, 4096, 4096)) for count in (1, 2))
    assert times.computing(larger) == pytest.approx(2 * times.computing(large))


def test_a_larger_batch_repeats_activations_and_not_weights() -> None:
    one = LayerWork("a", "product", ("a",), "half", (SQUARE,), {"x": 10}, {"y": 20}, 40)
    eight = one.in_batch(8)
    assert (eight.macs, eight.moved, eight.products[0].count) == (8 * one.macs, 8 * 30 + 40, 1)
    scores = replace(one, products=(replace(SQUARE, weighted=False),)).in_batch(8)
    assert (scores.products[0].count, scores.products[0].rows) == (8, 64)


def test_scaled_times_are_multiplied_and_surer() -> None:
    times = LayerTimes(load_device())
    scaled = times.scaled(2.0)
    work = layer("half", SQUARE, moved=1000)
    assert scaled.of(work) == pytest.approx(2 * times.of(work)) and scaled.launch == pytest.approx(2 * times.launch)
    assert scaled.constants.spread < load_constants().spread
