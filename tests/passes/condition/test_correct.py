# SPDX-License-Identifier: Apache-2.0
"""Biases that are added to, and made where there were none; weights that are clipped."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.clip import clip_weights
from qdqtool.passes.condition.correct import bias_site, correct_biases
from tests.graphs import model_of

ADD = np.array([1.0, -2.0, 0.5])
PICTURE = "g (float[1,4,5,5] x) => (float[a,b,c,d] y) <{}> {{ {} }}"
ROWS = "g (float[2,4] x) => (float[2,3] y) <{}> {{ {} }}"


def corrected(text: str) -> tuple[float, list[str]]:
    """How far the output is from what it should be, and who got a bias."""
    proto = model_of(text)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    (before,) = ReferenceEvaluator(proto).run(None, {"x": x})  # type: ignore[misc]
    key = next(
        node.output[0] for node in proto.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    )
    fresh = correct_biases(Model(proto), {key: ADD})
    onnx.checker.check_model(proto)
    (after,) = ReferenceEvaluator(proto).run(None, {"x": x})  # type: ignore[misc]
    added = ADD.reshape(-1, 1, 1) if after.ndim == 4 else ADD
    return float(np.abs(after - before - added).max()), fresh


@pytest.mark.parametrize(
    ("text", "fresh"),
    [
        (PICTURE.format("float[3,4,1,1] w, float[3] b", "y = Conv(x, w, b)"), []),
        (PICTURE.format("float[3,4,1,1] w", "y = Conv(x, w)"), ["y"]),
        (PICTURE.format("float[4,3,2,2] w", "y = ConvTranspose(x, w)"), ["y"]),
        (ROWS.format("float[4,3] w", "y = Gemm(x, w)"), ["y"]),
        (ROWS.format("float[4,3] w, float[3] b", "y = Gemm(x, w, b)"), []),
        (ROWS.format("float[4,3] w, float[1] b", "y = Gemm(x, w, b)"), []),
        (ROWS.format("float[4,3] w, float[3] b", "m = MatMul(x, w)  y = Add(b, m)"), []),
    ],
)
def test_the_output_moves_by_what_is_added(text: str, fresh: list[str]) -> None:
    off, made = corrected(text)
    assert off < 1e-5
    assert made == fresh


@pytest.mark.parametrize(
    "text",
    [
        ROWS.format("float[4,3] w", "y = MatMul(x, w)"),
        ROWS.format("float[4,3] w, float[2,3] b", "m = MatMul(x, w)  y = Add(m, b)"),
        ROWS.format("float[4,3] w, float[3] b", "y = Gemm<beta=0.5>(x, w, b)"),
    ],
)
def test_where_there_is_no_place_for_a_bias(text: str) -> None:
    view = GraphView(model_of(text).graph)
    assert bias_site(view, view.every[0]) is None


def test_weights_are_clipped_per_channel() -> None:
    proto = model_of(PICTURE.format("float[3,4,1,1] w, float[3] b", "y = Conv(x, w, b)"))
    before = onnx.numpy_helper.to_array(proto.graph.initializer[0]).reshape(3, 4)
    shares = np.array([0.5, 1.0, 0.9])
    limits = np.abs(before).max(axis=1) * shares
    cut = clip_weights(Model(proto), {"y": shares})
    after = onnx.numpy_helper.to_array(proto.graph.initializer[0]).reshape(3, 4)
    assert cut == int((np.abs(before) > limits[:, None]).sum()) > 0
    assert after == pytest.approx(np.clip(before, -limits[:, None], limits[:, None]), abs=1e-7)
    assert after[1].tolist() == before[1].tolist()
