# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Biases that make up for the mean of what goes: by hand, and where constant channels are lost without a trace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, prune
from qdqtool.graph.model import Model
from qdqtool.pruning.check import relative_difference
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of
from tests.pruning.nets import value

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

HALF = PruneOptions(ratio=0.5)
FEED = {"x": np.random.default_rng(5).normal(size=(4, 1, 4, 4)).astype(np.float32)}
DATA = {"x": np.concatenate([FEED["x"]] * 2)}

# Channels 2 and 3 have no weights, only a bias: they are constant, and worth least.
CASES = {
    "bias": ("float[N,2,4,4] y", "float[2] c", "y = Conv(a, u, c)"),
    "no bias": ("float[N,2,4,4] y", "float[2] c", "y = Conv(a, u)"),
    "grouped": ("float[N,2,4,4] y", "float[2] c", "y = Conv<group=2>(a, g, c)"),
    "gemm": ("float[N,2] y", "float[4,2] k, float[2] c", "p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm(f, k, c)"),
    "gemm transposed": ("float[N,2] y", "float[2,4] k, float[2] c", "p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm<transB=1>(f, k, c)"),
}  # fmt: skip


def net(name: str) -> onnx.ModelProto:
    outputs, constants, nodes = CASES[name]
    model = model_of(
        f"g (float[N,1,4,4] x) => ({outputs}) <float[4,1,1,1] w, float[4] b, float[2,4,1,1] u, float[2,2,1,1] g, {constants}> {{ a = Conv(x, w, b)  {nodes} }}"
    )
    weight = value(model, "w").copy()
    weight[[1, 3]] = 0
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.mark.parametrize("name", CASES)
def test_constant_channels_go_without_a_trace(name: str) -> None:
    model = net(name)
    expected = Executor(Model(model)).run(FEED)["y"]
    result = prune(model, DATA, HALF)
    assert result.done.corrected == ("y",) and "biases of 1 operator compensate" in str(result)
    assert relative_difference(expected, Executor(Model(result.model)).run(FEED)["y"]) < 1e-6
    bare = prune(model, DATA, PruneOptions(ratio=0.5, correct=False))
    assert bare.done.corrected == ()
    assert relative_difference(expected, Executor(Model(bare.model)).run(FEED)["y"]) > 1e-2


@pytest.mark.parametrize("scaled", ["alpha=2.0", "beta=0.5"])
def test_a_product_that_is_scaled_keeps_weight_and_bias(scaled: str) -> None:
    """What is added to the bias would be multiplied, too."""
    model = model_of(
        f"g (float[N,1,4,4] x) => (float[N,2] y) <float[4,1,1,1] w, float[4] b, float[4,2] k, float[2] c> {{ a = Conv(x, w, b)  p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm<{scaled}>(f, k, c) }}"
    )
    result = prune(model, DATA, HALF)
    assert result.done.corrected == result.done.reconstructed == ()
    assert (value(result.model, "c") == value(model, "c")).all() and value(result.model, "k").shape == (2, 2)


def test_without_data_biases_stay() -> None:
    model = net("bias")
    result = prune(model, options=HALF)
    assert result.done.corrected == () and (value(result.model, "c") == value(model, "c")).all()


def test_the_mean_of_what_goes_by_hand() -> None:
    model = net("bias")
    pruned = prune(model, DATA, HALF).model
    lost = value(model, "u")[:, [1, 3], 0, 0] @ value(model, "b")[[1, 3]]
    assert value(pruned, "c") == pytest.approx(value(model, "c") + lost, rel=1e-6)
    assert [one.name for one in pruned.graph.initializer] == [one.name for one in model.graph.initializer]


def test_operators_with_one_bias_get_one_each_and_nothing_unread_is_left() -> None:
    model = net("bias")
    del model.graph.node[1:]
    model.graph.node.extend(
        [
            onnx.helper.make_node("Conv", ["a", "u", "c"], ["p"]),
            onnx.helper.make_node("Conv", ["a", "u2", "c"], ["q"]),
            onnx.helper.make_node("Add", ["p", "q"], ["y"]),
        ]
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(value(model, "u") * 2, "u2"))
    expected = Executor(Model(model)).run(FEED)["y"]
    result = prune(model, DATA, HALF)
    assert result.done.corrected == ("p", "q")
    assert relative_difference(expected, Executor(Model(result.model)).run(FEED)["y"]) < 1e-6
    read = {name for node in result.model.graph.node for name in node.input}
    assert {"c", "p_bias"} <= read
    assert {one.name for one in result.model.graph.initializer} & {"c", "p_bias", "q_bias"} <= read
