# SPDX-License-Identifier: Apache-2.0
"""Weights rounded in numpy are those of onnxruntime, bit for bit; a weight that is read otherwise stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, PlanOptions, insert
from qdqtool.graph.model import Model
from qdqtool.precision.rounded import rounded
from qdqtool.runtime.activations import ObservableModel
from qdqtool.simulation.weight_values import with_weight_values
from tests.graphs import model_of

NET = """net (float[n,64] x) => (float[n,160] y, float[n,160] t) <float[64,160] w, float[160,160] v, float[160] b> {
    h = MatMul(x, w) a = Relu(h) y = Gemm<transB=1>(a, v, b) s = Sigmoid(y) t = MatMul(s, v) }"""


def filled() -> onnx.ModelProto:
    model, draw = model_of(NET, 19), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        size = np.exp(draw.normal(size=tuple(tensor.dims)[-1:])) * 0.1
        tensor.CopyFrom(onnx.numpy_helper.from_array((draw.normal(size=tuple(tensor.dims)) * size).astype(np.float32), tensor.name))  # fmt: skip # noqa: E501
    return model


@pytest.mark.parametrize("target", ["gpu", "rtx"])
def test_the_same_bits_as_onnxruntime(target: str) -> None:
    draw = np.random.default_rng(1)
    data = [{"x": draw.normal(size=(3, 64)).astype(np.float32)}]
    plan = PlanOptions(target, float_heads="none")  # type: ignore[arg-type]
    made = insert(filled(), data=data, options=InsertOptions(plan, keep_float=0, rest="fp16")).model
    model = rounded(Model(made))
    plain, ours = ObservableModel(model), with_weight_values(model, "cpu", "m")
    assert "w" in plain.stripped[1] and not {"w", "v"} <= set(ours.stripped[1])
    assert len(ours.stripped[0].graph.node) < len(plain.stripped[0].graph.node)
    names = [one for one in plain.names if one in ours.names]
    assert names[-1] == "t"
    outputs = [one.session(names[1:]).run(names[1:], data[0]) for one in (plain, ours)]
    for one, other in zip(*outputs, strict=True):
        assert np.array_equal(one.view(np.int32), other.view(np.int32))
