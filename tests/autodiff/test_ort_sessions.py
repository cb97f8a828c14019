# SPDX-License-Identifier: Apache-2.0
"""Gradient graphs of onnxruntime-training in the sessions that training starts, which lend weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from qdqtool.autodiff.backends import OrtTraining
from qdqtool.graph.model import Model
from qdqtool.runtime.installed import installed_flavors
from qdqtool.training.student import Session, SessionOptions
from tests.autodiff.running import forward_of, gradients_of, with_loss
from tests.graphs import model_of

_LACKING = not any("training" in flavor for flavor in installed_flavors())
LAYERS = ("Conv<pads=[1,1,1,1]>(m, k)", "ConvTranspose<pads=[1,1,1,1]>(m, k)", "Sigmoid(m)", "Tanh(m)")


@pytest.mark.train
@pytest.mark.skipif(_LACKING, reason="onnxruntime-training is not installed: make train")
@pytest.mark.parametrize("layer", LAYERS)
def test_kernels_start_in_the_students_session(layer: str) -> None:
    text = "net (float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3,1,1] w, float[3,3,3,3] k>"
    model = with_loss(model_of(f"{text} {{ m = Mul(x, w) y = {layer} }}"))
    batch = {"x": np.random.default_rng(0).normal(0, 1, (2, 3, 4, 4)).astype(np.float32)}
    wanted = ("w", "k") if "k)" in layer else ("w",)
    forward = forward_of(model, wanted, batch)
    graph = OrtTraining().build(forward)
    assert any(node.domain == "com.microsoft" for node in graph.proto.graph.node)
    stored = {one.name: np.array(numpy_helper.to_array(one)) for one in model.graph.initializer}
    session = Session(Model(graph.proto), list(graph.gradients.values()), SessionOptions())
    found = session.run({**batch, **{name: stored[name] for name in wanted}})
    other = gradients_of(OrtTraining(), forward, batch)
    assert all(np.array_equal(one, other[name]) for one, name in zip(found, wanted, strict=True))
