# SPDX-License-Identifier: Apache-2.0
"""What values inside a network count: by what they do to its ends, by channel and by place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import qdqtool
from qdqtool.autodiff.backends import Builtin
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.training.blocks.block_importance import LARGEST, measure_importance
from qdqtool.training.blocks.block_samples import BlockSample, BlockSamples
from qdqtool.training.blocks.block_training import BlockOptions
from qdqtool.training.shapes import run_once
from qdqtool.training.training_graph import make_form
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

LINEAR = """g (float[1,4,8,8] x) => (float[1,6,8,8] y) <float[4,4,1,1] w1, float[6,4,1,1] w2>
{ c = Conv(x, w1)  y = Conv(c, w2) }"""
DETECTOR = """g (float[1,4,8,8] x) => (float[1,1,8,8] scores, float[1,4,8,8] boxes)
<float[4,4,1,1] w1, float[1,4,1,1] w2 = {1,1,1,1}, float[1] b2 = {-4}, float[4,4,1,1] w3>
{ c = Conv(x, w1)  r = Relu(c)  logits = Conv(r, w2, b2)  scores = Sigmoid(logits)  boxes = Conv(r, w3) }"""
DATA = np.random.default_rng(1).normal(size=(12, 1, 4, 8, 8)).astype(np.float32)


def measured(text: str, gives: str, data: npt.NDArray[np.float32] = DATA, seed: int = 0) -> BlockSamples:
    plain = model_of(text, 17)
    options = qdqtool.InsertOptions(plan=PlanOptions(float_heads="none"), keep_float=0)
    made = qdqtool.insert(plain, data=[{"x": row} for row in data], options=options).model
    assert isinstance(made, onnx.ModelProto)
    form = make_form(Model(made), "fixed")
    samples = [BlockSample.of({"x": row}) for row in data]
    found = BlockSamples(samples[3:], samples[:3])
    seen = run_once(Model(form.proto), {"x": data[0]})
    measure_importance(form, seen, [gives], found, Builtin(), BlockOptions(seed=seed))
    return found


def test_a_channel_counts_by_the_squares_of_the_weights_that_read_it() -> None:
    (weight,) = [onnx.numpy_helper.to_array(t) for t in model_of(LINEAR, 17).graph.initializer if t.name == "w2"]
    power = np.square(weight).sum(axis=(0, 2, 3))
    found = measured(LINEAR, "c")
    assert found.channels["c"].shape == (1, 4, 1, 1) and found.channels["c"].dtype == np.float32
    assert found.channels["c"].ravel() == pytest.approx(power / power.mean(), rel=0.1)
    places = np.stack([sample.places["c"] for sample in found.every])
    assert places.shape == (12, 1, 1, 8, 8) and places.mean() == pytest.approx(1, rel=0.05)


def test_places_where_the_network_is_sure_count_more() -> None:
    """One corner of each picture holds large values, and there alone the score passes a half."""
    data = 0.1 * DATA
    data[..., :2, :2] += 20 * np.sign(data[..., :2, :2])
    found = measured(DETECTOR, "r", data)
    places = np.mean([sample.places["r"] for sample in found.every], axis=0)[0, 0]
    assert places[:2, :2].mean() > 5 * places[2:, 2:].mean()
    assert all(sample.places["r"].max() <= LARGEST for sample in found.every)


def test_what_no_end_depends_on_is_left_out() -> None:
    text = LINEAR.replace("y = Conv(c, w2)", "z = Mul(c, none)  y = Conv(z, w2)").replace(
        "float[6,4,1,1] w2", "float[6,4,1,1] w2, float none = {0}"
    )
    found = measured(text, "c")
    assert found.channels == {} and not any(sample.places for sample in found.every)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits() -> None:
    one, same, other = (measured(DETECTOR, "r", seed=seed).channels["r"].tobytes() for seed in (0, 0, 1))
    assert one == same != other
