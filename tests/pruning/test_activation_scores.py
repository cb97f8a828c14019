# SPDX-License-Identifier: Apache-2.0

"""What a channel is worth by what operators sum up of it, by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.pruning.activation_scores import activation_scores, summed_axes
from qdqtool.pruning.probe import ProbeRun
from tests.graphs import model_of
from tests.pruning.nets import CHAIN, WEIGHTS, case, channels_of, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def batches(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 1, 1, 1), value, np.float32)} for value in values]


def scores(model: onnx.ModelProto, data: list[dict[str, np.ndarray]], **more: bool) -> dict[str, list[float]]:
    found = activation_scores(channels_of(model), ProbeRun(Model(model), data), data, ("max", "union"), **more)
    return {name: own.tolist() for name, own in found.items()}


def test_a_channel_counts_by_its_spread_times_what_is_read_of_it() -> None:
    model = with_values(model_of(CHAIN), **WEIGHTS)
    assert scores(model, batches(1, 3))["a"] == pytest.approx([1.0, 2 / 3]), "std 1 and 2, weights 3 and 1"


def test_a_constant_channel_is_worth_nothing_where_the_mean_is_made_up_for() -> None:
    model = with_values(model_of(CHAIN), **WEIGHTS)
    assert scores(model, batches(2, 2))["a"] == [0.0, 0.0]
    found = scores(model, batches(2, 2), centered=False)["a"]
    assert found == pytest.approx([1.0, 2 / 3]), "root mean squares 2 and 4, weights 3 and 1"


def test_batches_count_by_their_samples() -> None:
    model = with_values(model_of(CHAIN), **WEIGHTS)
    whole = [{"x": np.array([1, 3, 3, 5], np.float32).reshape(4, 1, 1, 1)}]
    parted = [{"x": whole[0]["x"][:1]}, {"x": whole[0]["x"][1:]}]
    assert scores(model, whole) == scores(model, parted)


def test_the_places_of_grouped_convolutions_are_those_of_each_group() -> None:
    model = case("grouped")
    channels = channels_of(model)
    group = next(one for one in channels.groups if any(axis.groups > 1 for axis in one.axes))
    data = [{"x": np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)}]
    found = activation_scores(channels, ProbeRun(Model(model), data), data, ("max", "union"))[group.name]
    assert len(found) == len(group.classes) and 0 < found.min() < found.max() <= 1


def test_what_nothing_sums_up_counts_where_it_is_made() -> None:
    from tests.pruning.nets import ATTENTION

    channels = channels_of(model_of(ATTENTION))
    assert all(summed_axes(group) for group in channels.groups)
    roles = {axis.role for group in channels.groups for axis in summed_axes(group)}
    assert roles <= {"read", "made"}
