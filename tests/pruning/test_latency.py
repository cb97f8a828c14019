# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The forecast of a pruned network by hand, and the choice of what pays in it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.pruning import latency
from qdqtool.pruning.channel_groups import ChannelMap
from qdqtool.pruning.choice import choose, parse_criterion
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.latency import LatencyForecast
from qdqtool.pruning.latency_choice import choose_by_latency
from tests.graphs import model_of
from tests.pruning.nets import CASES, case, channels_of
from tests.toy_device import toy_times

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

MULTIPLIES = toy_times(int8=1e3, half=5e2)  # time is that of multiply-adds
MOVES = toy_times(memory=1.0)  # time is that of bytes
STARTS = toy_times(launch=2.0)


def chain(inner: int, kind: str = "float") -> onnx.ModelProto:
    text = f"g ({kind}[1,32,4,4] x) => ({kind}[1,32,4,4] y) <float[{inner},32,1,1] w, float[32,{inner},1,1] u> {{ a = Conv(x, w)  r = Relu(a)  y = Conv(r, u) }}"
    return model_of(text)


def time_of(model: onnx.ModelProto, times: LayerTimes, gone: int = 0) -> float:
    channels = channels_of(model)
    classes = channels.groups[0].classes[:gone].tolist()
    return LatencyForecast(channels, times).microseconds(Cut(channels, classes))


@pytest.mark.parametrize(("inner", "gone", "blocks"), [(64, 0, 2), (64, 31, 2), (64, 32, 1), (40, 0, 2), (40, 8, 1)])
def test_multiply_adds_are_those_of_whole_blocks_of_32_channels(inner: int, gone: int, blocks: int) -> None:
    macs = 2 * 16 * 32 * 32 * blocks
    assert time_of(chain(inner), MULTIPLIES, gone) == pytest.approx(macs / 1e3)


def test_bytes_are_those_of_whole_blocks() -> None:
    """Two layers: x and a; a and y; a byte each, 40 channels stored as 64, in weights, too."""
    weights = 2 * 32 * 64
    moved = 16 * (32 + 64) + 16 * (64 + 32) + weights
    assert time_of(chain(40), MOVES) == pytest.approx(moved / 1.0)


def test_every_layer_is_started() -> None:
    assert time_of(chain(64), STARTS) == pytest.approx(4.0, rel=1e-3)


def test_halves_count_by_8_channels_and_two_bytes() -> None:
    channels = channels_of(chain(40))
    forecast = LatencyForecast(channels, MULTIPLIES, half=True)
    assert forecast.microseconds(Cut(channels, ())) == pytest.approx(2 * 16 * 32 * 40 / 5e2)
    assert "not measured" in forecast.source


def test_a_q_dq_model_counts_by_what_each_layer_computes() -> None:
    placed = insert(chain(64), data={"x": np.random.default_rng(0).normal(size=(2, 32, 4, 4)).astype(np.float32)}).model
    channels = channels_of(placed)
    both, none = (
        LatencyForecast(channels, MULTIPLIES).microseconds(Cut(channels, gone))
        for gone in ((), channels.groups[0].classes[:32].tolist())
    )
    assert none == pytest.approx(both / 2)


@pytest.mark.parametrize("name", CASES)
def test_a_cut_is_never_forecast_to_take_longer(name: str) -> None:
    channels = channels_of(case(name))
    forecast = LatencyForecast(channels, toy_times(1e4, 5e3, 1e3, 0.1))
    half = [one for group in channels.groups for one in group.classes[: len(group.classes) // 2].tolist()]
    assert forecast.microseconds(Cut(channels, half)) <= forecast.microseconds(Cut(channels, ()))
    touched = forecast.touched(Cut(channels, half))
    assert bool(touched) == bool(half)


# ---------------------------------------------------------------------- the choice


def two_layers() -> ChannelMap:
    text = "g (float[1,32,4,4] x) => (float[1,32,4,4] y) <float[96,32,1,1] w, float[64,96,1,1] v, float[32,64,1,1] u> { a = Conv(x, w)  b = Conv(a, v)  y = Conv(b, u) }"
    return channels_of(model_of(text))


def kept_after(share: float, **more: int) -> dict[str, int]:
    channels = two_layers()
    criterion = parse_criterion(latency=share, **more)  # type: ignore[arg-type]
    gone = set(choose(channels, criterion, None, LatencyForecast(channels, MULTIPLIES)).tolist())
    return {group.name: sum(one not in gone for one in group.classes.tolist()) for group in channels.groups}


def test_channels_go_by_32() -> None:
    assert kept_after(1.0) == {"a": 96, "b": 64}
    for share in (0.9, 0.7, 0.5, 0.3):
        assert all(count % 32 == 0 for count in kept_after(share).values())
    assert kept_after(0.3) == {"a": 32, "b": 32}


def test_what_is_worth_least_for_its_time_goes_first() -> None:
    channels = two_layers()
    scores = {group.name: np.full(len(group.classes), 1.0 if group.name == "a" else 0.1) for group in channels.groups}
    gone = choose_by_latency(channels, channels.groups, scores, LatencyForecast(channels, MULTIPLIES), 0.75)
    names = {group.name for group in channels.groups if set(group.classes.tolist()) & set(gone.tolist())}
    assert names == {"b"}


def test_what_pays_only_with_another_group_goes_in_the_end() -> None:
    """Two halves of 16 are one block together: neither pays alone, and the block of 32 of both is all that can go."""
    text = """g (float[1,32,4,4] x) => (float[1,32,4,4] y) <float[24,32,1,1] w, float[24,32,1,1] v, float[32,48,1,1] u>
    { a = Conv(x, w) b = Conv(x, v) c = Concat<axis=1>(a, b) y = Conv(c, u) }"""
    channels = channels_of(model_of(text))
    forecast = LatencyForecast(channels, MULTIPLIES)
    gone = choose(channels, parse_criterion(latency=0.8), None, forecast)
    kept = sum(len(group.classes) for group in channels.groups) - len(gone)
    assert kept <= 32
    assert forecast.microseconds(Cut(channels, gone.tolist())) <= 0.8 * forecast.microseconds(Cut(channels, ()))


def test_granularity_and_the_least_hold() -> None:
    assert kept_after(0.75, granularity=64) == {"a": 64, "b": 64}
    assert min(kept_after(0.75, min_filters=64).values()) >= 64


def test_a_share_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(QdqError, match=r"--latency: 0\.01 .* 0\.\d+ "):
        kept_after(0.01)


@pytest.mark.parametrize(
    ("shape", "block", "elements"),
    [
        ((5,), 32, 5),
        ((2, 3, 4, 4), 32, 2 * 4 * 16),  # few channels: vectors of 4
        ((2, 5, 4, 4), 32, 2 * 32 * 16),
        ((2, 64, 4, 4), 32, 2 * 64 * 16),
        ((2, 7, 33), 8, 2 * 7 * 40),  # tokens: channels lie last
        ((), 32, 1),
    ],
)
def test_elements_in_memory_by_hand(shape: tuple[int, ...], block: int, elements: int) -> None:
    assert latency._blocked(shape, block) == elements
