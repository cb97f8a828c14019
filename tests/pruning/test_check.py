# SPDX-License-Identifier: Apache-2.0
"""The check before anything is written: it lets a right edit through and stops a wrong one, by name of the group."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.pruning import check, run
from qdqtool.pruning.channel_groups import find_groups
from qdqtool.pruning.check import masked_original, measure_differences, relative_difference, without_activation_pairs
from qdqtool.pruning.choice import choose, parse_criterion
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.probe import ProbeRun, look, seeded_input
from qdqtool.pruning.remove import remove_channels
from tests.pruning.nets import case, halved

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("expected", "got", "difference"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [2.0, -4.0], 0.25),
        ([0.0, 0.0], [0.5, 0.0], 0.5),
        ([1.0, INF], [1.0, INF], 0.0),
        ([1.0, INF], [1.0, 3.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([NAN, 2.0], [NAN, 2.0], 0.0),
        ([1.0], [1.0, 2.0], INF),
    ],
)
def test_a_difference_is_in_units_of_the_largest(expected: list[float], got: list[float], difference: float) -> None:
    assert relative_difference(np.array(expected, np.float32), np.array(got, np.float32)) == difference


@pytest.mark.parametrize(("got", "difference"), [([1, 2], 0.0), ([1, 3], INF)])
def test_integers_are_equal_or_not(got: list[int], difference: float) -> None:
    assert relative_difference(np.array([1, 2]), np.array(got)) == difference


def test_values_of_a_bounded_operator_are_measured_by_its_range() -> None:
    assert relative_difference(np.array([1e-6]), np.array([2e-6]), 1.0) == pytest.approx(1e-6)


def parts(proto: onnx.ModelProto) -> tuple[Model, Model, Cut]:
    model, feed = Model(proto), seeded_input(proto.graph)
    facts = look(ProbeRun(model, [feed]))
    channels = find_groups(model.view, facts)
    cut = Cut(channels, choose(channels, parse_criterion(ratio=0.5)).tolist())
    return masked_original(model, cut, facts), remove_channels(model, cut), cut


@pytest.mark.parametrize(("initializer", "caught"), [("w", True), ("u", True), ("b", True), ("", False)])
def test_a_pruned_model_with_a_wrong_value_is_noticed(initializer: str, caught: bool) -> None:
    model = case("chain with bias")
    masked, pruned, cut = parts(model)
    for tensor in pruned.graph.initializer:
        if tensor.name == initializer:
            value = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(value[::-1]), tensor.name))
    found = measure_differences(masked, pruned, cut, ProbeRun(Model(model), [seeded_input(model.graph)]))
    assert found.small != caught


def test_the_mask_stands_before_what_sums_over_channels_alone() -> None:
    masked, _, _ = parts(case("depthwise"))
    assert [node.op_type for node in masked.graph.node] == ["Conv", "Conv", "Mul", "Conv"]


def test_pairs_of_activations_are_seen_through_and_those_of_weights_stay() -> None:
    model = case("quantized")
    seen = without_activation_pairs(Model(model))
    assert [node.op_type for node in seen.graph.node] == ["QuantizeLinear", "DequantizeLinear", "Conv", "Conv"]
    assert seen.graph.node[-1].input[0] == "a"


def test_a_group_that_does_not_come_out_right_is_named_and_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Model, cut: Cut) -> Model:
        made = remove_channels(model, cut)
        for tensor in made.graph.initializer:
            if tensor.name == "v" and tensor.dims[0] == 4:
                value = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(value[::-1]), "v"))
        return made

    for module in (run, check):
        monkeypatch.setattr(module, "remove_channels", wrong)
    with pytest.raises(QdqError, match="masked original by group b ") as caught:
        halved(case("concat"))
    assert caught.value.exit_code == 2


def test_sequences_and_maps_are_compared_one_by_one() -> None:
    one, moved = np.ones(3, np.float32), np.array([1, 1, 1.5], np.float32)
    assert relative_difference([one, moved], [one, moved]) == 0
    assert relative_difference([one, moved], [one, one]) == pytest.approx(1 / 3)
    assert relative_difference([{1: np.float32(2)}], [{1: np.float32(1)}]) == pytest.approx(0.5)
    assert relative_difference([one], [one, one]) == float("inf")
