# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Gates change nothing, and their gradients are what the outputs lose in first order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.pruning.gates import gated_copy, taylor_scores
from qdqtool.pruning.probe import seeded_input
from qdqtool.runtime.executor import Executor
from qdqtool.training.channel_gradients import channel_gradients
from tests.graphs import model_of
from tests.pruning.nets import CASES, CHAIN, WEIGHTS, case, channels_of, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.mark.parametrize("name", CASES)
def test_a_gated_copy_computes_the_same(name: str) -> None:
    model = case(name)
    channels = channels_of(model)
    gated, gates = gated_copy(Model(model), channels)
    feed = seeded_input(model.graph)
    ours, theirs = (Executor(one).run(feed) for one in (gated, Model(model)))
    assert all(np.allclose(ours[one], theirs[one], rtol=1e-6, atol=1e-6) for one in theirs)
    held = {tensor.name: tuple(tensor.dims) for tensor in gated.graph.initializer}
    for gate in gates:
        assert held[gate.name][gate.axis] == (channels.atoms.shape(gate.tensor) or ())[gate.axis]


def test_a_channel_is_worth_what_the_outputs_lose_without_it() -> None:
    """Y = 3 a[0] + a[1] with a = (x, 2 x): the parts of y are 3/5 and 2/5 for every x."""
    model = with_values(model_of(CHAIN), **WEIGHTS)
    channels = channels_of(model)
    gated, gates = gated_copy(Model(model), channels)
    samples = [{"x": np.full((1, 1, 1, 1), value, np.float32)} for value in (0.5, -2.0, 3.0)]
    found = taylor_scores(channels, gates, channel_gradients(gated, [gate.name for gate in gates], samples))
    assert found["a"] == pytest.approx([0.6, 0.4], rel=1e-5)


def test_gates_of_one_channel_are_summed_before_they_are_squared() -> None:
    """What two readers of a channel do may cancel: here they do, and the channel is worth nothing."""
    text = "g (float[N,1,1,1] x) => (float[N,1,1,1] y) <float[2,1,1,1] w, float[1,2,1,1] u, float[1,2,1,1] v, float[1,1,1,1] k> { a = Conv(x, w)  b = Conv(a, u)  c = Conv(a, v)  s = Add(b, c)  y = Conv(s, k) }"
    weights = {**WEIGHTS, "u": np.array([3, 1]).reshape(1, 2, 1, 1), "v": np.array([-3, 1]).reshape(1, 2, 1, 1)}
    model = with_values(model_of(text), **weights)
    channels = channels_of(model)
    gated, gates = gated_copy(Model(model), channels)
    assert len(gates) == 2
    samples = [{"x": np.ones((1, 1, 1, 1), np.float32)}]
    found = taylor_scores(channels, gates, channel_gradients(gated, [gate.name for gate in gates], samples))
    assert found["a"] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_scores_are_root_mean_squares_over_samples() -> None:
    model = with_values(model_of(CHAIN), **WEIGHTS)
    channels = channels_of(model)
    _, gates = gated_copy(Model(model), channels)
    name = gates[0].name
    found = taylor_scores(channels, gates, [{name: np.array([3.0, 0.0])}, {name: np.array([4.0, 1.0])}])
    assert found["a"] == pytest.approx([np.sqrt(12.5), np.sqrt(0.5)])


def test_old_files_list_gates_as_inputs() -> None:
    model = with_values(model_of(CHAIN), **WEIGHTS)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    gated, gates = gated_copy(Model(model), channels_of(model))
    assert {gate.name for gate in gates} <= {value.name for value in gated.graph.input}
    onnx.checker.check_model(gated.proto)
