# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""BatchNormalization folded after pairs: scales follow their channels, and the integers stay."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.fold_batchnorm import fold_behind_pairs
from qdqtool.training.training_graph import make_form
from tests.graphs import model_of

FEED = {"x": np.random.default_rng(3).standard_normal((2, 4, 5, 5)).astype(np.float32)}


def net(pair: str = "<axis=0>", scale: str = "ws", op: str = "c = Conv(x, wd, b)", more: str = "") -> onnx.ModelProto:
    return model_of(
        f"""net (float[2,4,5,5] x) => (y) <float[4,4,1,1] w, float[4] b, float[4] ws = {{0.008, 0.009, 0.0085, 0.01}}, float s1 = {{0.008}}, int8 z = {{0}}, int8[4] wz = {{0, 0, 0, 0}},
        float[4] g = {{1.5, -0.5, 0.25, 0}}, float[4] h, float[4] m, float[4] v = {{1, 2, 0.5, 3}}>
        {{ wq = QuantizeLinear{pair}(w, {scale}) wd = DequantizeLinear{pair}(wq, {scale}) {op} n = BatchNormalization(c, g, h, m, v) y = Relu(n) {more} }}"""
    )


def values_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def gap(one: onnx.ModelProto, other: onnx.ModelProto) -> float:
    values = [Executor(Model(model)).run(FEED)["y"] for model in (one, other)]
    return float(np.abs(values[0] - values[1]).max() / np.abs(values[0]).max())


@pytest.mark.parametrize(
    ("pair", "scale", "op"),
    [
        ("<axis=0>", "ws, wz", "c = Conv(x, wd, b)"),
        ("<axis=1>", "ws, wz", "c = ConvTranspose(x, wd, b)"),
        ("<axis=0>", "ws, wz", "c = Conv(x, wd)"),
    ],
)
def test_scales_per_channel_follow(pair: str, scale: str, op: str) -> None:
    model = net(pair, scale, op)
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    notes = fold_behind_pairs(Model(folded))
    assert len(notes) == 1 and notes[0].startswith("1 BatchNormalizations folded ")
    assert ops_of(folded) == ["QuantizeLinear", "DequantizeLinear", model.graph.node[2].op_type, "Relu"]
    assert gap(model, folded) < 1e-6
    before, after = values_of(model), values_of(folded)
    factor = before["g"] / np.sqrt(before["v"] + np.float32(1e-5))
    np.testing.assert_allclose(after["ws"], before["ws"] * np.where(factor == 0, 1, np.abs(factor)), rtol=1e-6)


def test_one_scale_follows_the_largest_weight() -> None:
    model = net("", "s1, z")
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    notes = fold_behind_pairs(Model(folded))
    assert any(re.match("1 weights .*such as w: .*integers changed", note) for note in notes)
    before, after = values_of(model), values_of(folded)
    assert after["s1"] == pytest.approx(0.008 * np.abs(after["w"]).max() / np.abs(before["w"]).max())
    assert 0 < gap(model, folded) < 0.05


def test_a_scale_that_others_read_is_copied() -> None:
    model = net("", "s1, z", more="k = Mul(y, s1)")
    before = values_of(model)["s1"]
    fold_behind_pairs(Model(model))
    after = values_of(model)
    assert after["s1"] == before and model.graph.node[0].input[1] == "w_scale" and after["w_scale"] != before


@pytest.mark.parametrize(
    ("op", "more", "reason"),
    [
        ("c = Conv(x, wd, b)", "k = Conv(x, wd)", "not a float32 constant"),
        ("a = Conv(x, wd, b) c = Relu(a)", "", "no Conv, ConvTranspose or Gemm makes its input"),
    ],
)
def test_what_cannot_be_folded_stays_and_is_reported(op: str, more: str, reason: str) -> None:
    model = net("<axis=0>", "ws, wz", op, more)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    notes = fold_behind_pairs(Model(copy))
    assert len(notes) == 2 and reason in notes[1]
    assert copy == model


def test_a_form_of_the_folded_model() -> None:
    model = net("<axis=0>", "ws, wz")
    form = make_form(Model(model), bn="fold")
    assert form.weights == ("w", "b") and "BatchNormalization" not in ops_of(form.quantized.proto)
    assert form.notes[0].startswith("1 BatchNormalizations folded")
    assert "BatchNormalization" in ops_of(model)
    plain = make_form(Model(model))
    assert plain.weights == ("w", "b", "g", "h")


def test_nothing_to_fold() -> None:
    assert fold_behind_pairs(Model(model_of("net (float[2,4] x) => (y) { y = Relu(x) }"))) == [
        "no BatchNormalization to fold"
    ]
