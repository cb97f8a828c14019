# SPDX-License-Identifier: Apache-2.0
"""What integers hold, and the graph that watches the maxima. How scales follow them: test_averages.py."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.model import Model
from qdqtool.training.moving_scales import levels_above_zero, moving_maxima, with_watched_scales
from qdqtool.training.training_graph import TrainingGraph, make_form
from tests.graphs import model_of

QDQ = """net (float[N,2] x) => (float[N,2] y)
    <float s = {0.5}, int8 z = {0}, float[2,2] w = {1, 2, 3, 4}, float ws = {0.1}, int8 wz = {0}>
{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    wq = QuantizeLinear(w, ws, wz) wd = DequantizeLinear(wq, ws, wz)
    y = MatMul(d, wd)
}"""


@pytest.mark.parametrize(
    ("kind", "zero", "levels"),
    [
        (TensorProto.INT8, 0, 127),
        (TensorProto.UINT8, 0, 255),
        (TensorProto.UINT8, 128, 127),
        (TensorProto.INT16, 0, 32767),
        (TensorProto.INT4, 0, 7),
    ],
)
def test_levels_above_the_zero_point(kind: int, zero: int, levels: int) -> None:
    tensor: onnx.TensorProto = helper.make_tensor("z", kind, [], [zero])
    assert levels_above_zero(tensor) == levels


def form() -> TrainingGraph:
    return make_form(Model(model_of(QDQ, 17)), "ema")


def test_scales_of_activations_begin_with_what_their_pairs_hold() -> None:
    maxima = moving_maxima(form())
    assert list(maxima.scales) == ["s"], "not that of the weight"
    assert maxima.amax.tolist() == [np.float32(0.5) * 127]
    assert maxima.values()["s"].tobytes() == np.float32(0.5).tobytes()


def test_the_scale_becomes_an_input_and_its_maximum_an_output() -> None:
    made = form()
    proto, largest = with_watched_scales(made.proto, made, moving_maxima(made))
    assert [value.name for value in proto.graph.input] == ["x", "s"]
    assert [value.name for value in proto.graph.output] == ["y", *largest]
    assert len(largest) == 1
    assert "s" in {tensor.name for tensor in made.proto.graph.initializer}, "what was given stays"


def test_without_moving_scales_the_graph_is_given_back() -> None:
    made = form()
    assert with_watched_scales(made.proto, made, None) == (made.proto, ())
