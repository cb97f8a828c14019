# SPDX-License-Identifier: Apache-2.0
"""Gradient graphs of onnxruntime-training in the sessions that training starts, which lend weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from qdqtool.autodiff.ort_training import OrtTraining
from qdqtool.runtime.installed import installed_flavors
from qdqtool.training.student import Session, SessionOptions
from tests.autodiff.running import forward_of, gradients_of, with_loss
from tests.graphs import model_of

_LACKING = not any("training" in flavor for flavor in installed_flavors())
POOLS = (
    "AveragePool<kernel_shape=[2,2],strides=[2,2]>",
    "MaxPool<kernel_shape=[2,2],strides=[2,2]>",
    "GlobalAveragePool",
)


@pytest.mark.train
@pytest.mark.skipif(_LACKING, reason="onnxruntime-training is not installed: make train")
@pytest.mark.parametrize("pool", POOLS)
def test_pools_have_gradients_in_the_students_session(pool: str) -> None:
    text = f"net (float[2,3,4,4] x) => (float[2,3,a,b] y) <float[3,1,1] w> {{ m = Mul(x, w) y = {pool}(m) }}"
    size = "1,1" if pool.startswith("Global") else "2,2"
    model = with_loss(model_of(text.replace("a,b", size)))
    batch = {"x": np.random.default_rng(0).normal(0, 1, (2, 3, 4, 4)).astype(np.float32)}
    forward = forward_of(model, ("w",), batch)
    graph = OrtTraining().build(forward)
    weight = next(numpy_helper.to_array(one) for one in model.graph.initializer if one.name == "w")
    session = Session(graph.proto, None, list(graph.gradients.values()), SessionOptions())
    found = session.run({**batch, "w": np.array(weight)})
    assert np.array_equal(found[0], gradients_of(OrtTraining(), forward, batch)["w"])
