# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Where the outliers of a transformer go: into weights that are there, with no new node, where the function allows it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.equalize_step import count_state, run_equalize
from qdqtool.conditioning.judge import HeldOut
from tests.conditioning.test_equalize_step import outputs, work_of
from tests.graphs import model_of
from tests.match.test_attention import BEHIND, CORE, LINEARS, WEIGHTS

LOUD = [3, 20]  # channels that are 30 times as large as the others
RMS = "p = Mul(x, x) m = ReduceMean<axes=[-1]>(p) me = Add(m, eps) r = Sqrt(me) d = Div(x, r) n = Mul({}) "
LAYER = "c = ReduceMean<axes=[-1]>(x) x0 = Sub(x, c) p = Mul(x0, x0) m = ReduceMean<axes=[-1]>(p) me = Add(m, eps) r = Sqrt(me) d = Div(x0, r) dn = Mul(d, gain) n = Add(dn, bias) "
MLP = "float[32,48] up, float[48,32] down, float[32,48] side"
# What is loud -> the body, and whose axis of channels it is.
NETS = {
    "RMSNorm, written out": (RMS.format("d, gain") + "y = MatMul(n, w)", "gain"),
    "RMSNorm, gain first": (RMS.format("gain, d") + "y = MatMul(n, w)", "gain"),
    "LayerNorm, written out": (LAYER + "y = MatMul(n, w)", "gain"),
    "first product of an MLP": ("u = MatMul(x, up) a = Relu(u) y = MatMul(a, down)", "up"),
    "the half of SwiGLU beside the gate": ("u = MatMul(x, up) h = MatMul(x, side) s = Sigmoid(h) g = Mul(h, s) a = Mul(g, u) y = MatMul(a, down)", "up"),
}  # fmt: skip
FIXED = {
    "GELU": ("u = MatMul(x, up) a = Gelu(u) y = MatMul(a, down)", "up"),
    "the gate of SwiGLU": ("u = MatMul(x, side) h = MatMul(x, up) s = Sigmoid(h) g = Mul(h, s) a = Mul(g, u) y = MatMul(a, down)", "up"),
}  # fmt: skip


def built(body: str, loud: str) -> onnx.ModelProto:
    constants = f"float[32] gain, float[32] bias, float[32,32] w, float eps = {{0.00001}}, {MLP}"
    text = f"g (float[1,12,32] x) => (float[1,12,32] y) <{constants}> {{ {body} }}"
    model = model_of(text, 20 if "Gelu" in body else 17)
    for tensor in model.graph.initializer:
        if tensor.name == loud:
            value = onnx.numpy_helper.to_array(tensor).copy()
            value[..., LOUD] *= 30
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, loud))
    return model


def spread(model: onnx.ModelProto, name: str) -> float:
    """The largest channel of a weight over the one in the middle."""
    value = next(onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.name == name)
    sizes = np.abs(value.reshape(-1, value.shape[-1])).max(0)
    return float(sizes.max() / np.median(sizes))


def equalized(model: onnx.ModelProto) -> bool:
    """Divide a model's channels in place; whether any was, with its function and nodes as they were."""
    before, nodes = outputs(model), len(model.graph.node)
    work = work_of(model)
    held = HeldOut(work.samples)
    run_equalize(work, count_state(work, held), held, "float")
    assert len(model.graph.node) == nodes
    assert np.allclose(outputs(model), before, rtol=1e-4, atol=1e-4 * abs(before).max())
    return bool(work.edits)


@pytest.mark.parametrize("kind", NETS)
def test_outliers_go_into_the_weights_around_them(kind: str) -> None:
    body, loud = NETS[kind]
    model = built(body, loud)
    before = spread(model, loud)
    assert equalized(model) and spread(model, loud) < before / 1.9  # how strongly depends on the samples


@pytest.mark.parametrize("kind", FIXED)
def test_what_the_function_does_not_allow_stays(kind: str) -> None:
    body, loud = FIXED[kind]
    model = built(body, loud)
    before = spread(model, loud)
    equalized(model)
    assert spread(model, loud) == pytest.approx(before)


def test_outliers_of_the_values_go_into_the_product_behind_the_attention() -> None:
    model = model_of(f"g (float[1,12,32] x) => (float[N] y) <{WEIGHTS}> {{ {LINEARS} {CORE} {BEHIND} }}")
    values = next(one for one in model.graph.initializer if one.name == "wv")
    loud = onnx.numpy_helper.to_array(values).copy()
    loud[:, LOUD] *= 30
    values.CopyFrom(onnx.numpy_helper.from_array(loud, "wv"))
    before = spread(model, "wv")
    assert equalized(model) and spread(model, "wv") < before / 1.9
