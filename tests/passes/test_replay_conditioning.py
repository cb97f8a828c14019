# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What `condition` added, added to the source once more: Mul nodes, biases, copies of shared constants; or a refusal."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, get_metadata, set_metadata
from qdqtool.graph.model import Model
from qdqtool.passes.replay_conditioning import replay_additions
from tests.graphs import model_of

SOURCE = "g (float[1,2] x) => (float[1,2] z, float[1,2] s) <float[2,2] w = {1,2,3,4}, float[2,2] v = {5,6,7,8}> { r = Relu(x) c = MatMul(r, w) z = MatMul(c, v) s = Sigmoid(r) }"
SMOOTHED = SOURCE.replace("c = MatMul(r, w)", "m = Mul(r, f) c = MatMul(m, w)").replace("<", "<float[2] f = {2,4}, ", 1)
CONV = "g (float[1,1,2,2] x) => (float[1,1,2,2] z) <float[1,1,1,1] w = {2}> { z = Conv(x, w) }"
BIASED = CONV.replace("Conv(x, w)", "Conv(x, w, z_bias)").replace("<", "<float[1] z_bias = {3}, ", 1)
SHARED = "g (float[1,2] x) => (float[1,2] z) <float[2,2] w = {1,2,3,4}> { c = MatMul(x, w) z = MatMul(c, w) }"
COPIED = SHARED.replace("z = MatMul(c, w)", "z = MatMul(c, w_conditioned)").replace(
    "<", "<float[2,2] w_conditioned = {5,6,7,8}, ", 1
)
SMOOTH = {"step": "smooth", "site": "r", "added": "m"}
CORRECT = {"step": "correct", "site": "z", "added": "z_bias"}


def edited(text: str, *edits: dict[str, str]) -> onnx.ModelProto:
    model = model_of(text)
    set_metadata(model, CONDITIONED, json.dumps({"edits": edits}))
    return model


def replayed(source: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    return replay_additions(Model(source), Model(other))


def constants_of(model: onnx.ModelProto) -> dict[str, list[float]]:
    return {one.name: onnx.numpy_helper.to_array(one).ravel().tolist() for one in model.graph.initializer}


def nodes_of(model: onnx.ModelProto) -> list[tuple[str, list[str], list[str]]]:
    return [(node.op_type, list(node.input), list(node.output)) for node in model.graph.node]


@pytest.mark.parametrize(
    ("source", "other", "edit", "added"),
    [
        (SOURCE, SMOOTHED, SMOOTH, ["f", "m"]),
        (CONV, BIASED, CORRECT, ["z_bias"]),
        (SHARED, COPIED, {"step": "equalize", "site": "w_conditioned"}, ["w_conditioned"]),
    ],
    ids=["a Mul read by one of two consumers", "a bias", "a copy of a shared constant"],
)
def test_additions_are_those_of_the_other_model_and_a_second_time_adds_nothing(
    source: str, other: str, edit: dict[str, str], added: list[str]
) -> None:
    model, conditioned = model_of(source), edited(other, edit)
    assert replayed(model, conditioned) == added
    assert nodes_of(model) == nodes_of(conditioned)
    assert constants_of(model) == constants_of(conditioned)
    assert get_metadata(model, CONDITIONED) == get_metadata(conditioned, CONDITIONED)
    before = model.SerializeToString()
    assert replayed(model, conditioned) == [] and model.SerializeToString() == before


def test_values_come_bit_for_bit() -> None:
    model, conditioned = model_of(CONV), edited(BIASED, CORRECT)
    odd = np.array([np.float32(1) / np.float32(3)], np.float32)
    next(one for one in conditioned.graph.initializer if one.name == "z_bias").CopyFrom(
        onnx.numpy_helper.from_array(odd, "z_bias")
    )
    replayed(model, conditioned)
    added = next(one for one in model.graph.initializer if one.name == "z_bias")
    assert onnx.numpy_helper.to_array(added).tobytes() == odd.tobytes()


def test_a_model_without_edits_leaves_the_source_as_it_is() -> None:
    model = model_of(SOURCE)
    before = model.SerializeToString()
    assert replayed(model, model_of(SMOOTHED)) == [] and model.SerializeToString() == before


@pytest.mark.parametrize(
    ("source", "other", "edit", "reason"),
    [
        (SOURCE.replace("r = Relu(x)", "q = Relu(x)").replace("(r", "(q"), SMOOTHED, SMOOTH, "r: got a Mul from condition, which the source lacks"),
        (SOURCE, SOURCE, SMOOTH, "r: got a Mul from condition, which the model does not hold"),
        (SOURCE.replace("MatMul(r, w)", "MatMul(x, w)"), SMOOTHED, SMOOTH, "c: reads m after condition, and not r in the source"),
        (CONV.replace("Conv(x, w)", "Mul(x, w)"), BIASED, CORRECT, "z: got a bias from condition, which the source lacks"),
    ],
    ids=["no such tensor", "no such Mul", "another input", "another operator"],
)  # fmt: skip
def test_a_source_that_is_another_model_is_refused(source: str, other: str, edit: dict[str, str], reason: str) -> None:
    with pytest.raises(QdqError) as caught:
        replayed(model_of(source), edited(other, edit))
    assert reason in str(caught.value) and "give the model" in str(caught.value)
