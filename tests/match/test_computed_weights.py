# SPDX-License-Identifier: Apache-2.0
"""Weights that a graph computes of its constants: quantized where their value can be had, else listed as left out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qdqtool
from tests.graphs import model_of, plan_of

CONSTANTS = "float[6,8] w, float[8,6] wt, float[8,12] wide, float[6] s, int64[2] shape = {8,6}"


def plan_for(body: str, opset: int = 18) -> qdqtool.Plan:
    return plan_of(model_of(f"g (float[1,4,8] x) => (float[1,4,6] z) <{CONSTANTS}> {{ {body} }}", opset))


@pytest.mark.parametrize(
    "body",
    [
        "v = Transpose(w) z = MatMul(x, v)",
        "v = Reshape<allowzero=1>(w, shape) z = MatMul(x, v)",
        "v = Mul(wt, s) z = MatMul(x, v)",
        "v = Div(wt, s) z = MatMul(x, v)",
        "a = Add(wt, s) u = Sub(a, s) v = Mul(u, s) z = MatMul(x, v)",
        "t = Transpose(w) v = Mul(t, s) z = MatMul(x, v)",
    ],
)
def test_a_weight_that_is_computed_is_quantized_per_channel(body: str) -> None:
    (weight,) = plan_for(body).weights
    assert (weight.tensor, weight.axis) == ("v", -1)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("v, u = Split<axis=1, num_outputs=2>(wide) z = MatMul(x, v)", ["z"]),
        ("n = ReduceL2(wt) v = Div(wt, n) z = MatMul(x, v)", ["z"]),
        ("n = Shape(x) v = Expand(wt, n) z = MatMul(x, v)", []),
        ("r = Relu(x) t = Transpose<perm=[0,2,1]>(r) m = MatMul(r, t) z = MatMul(m, r)", []),
        ("v = ReduceMax(wide) u = Mul(x, v) r = Relu(u) z = MatMul(r, wt)", []),
    ],
    ids=["split", "normalized", "of the input's size", "attention", "no weight of a product"],
)
def test_a_weight_whose_value_nobody_works_out_is_listed(body: str, left: list[str]) -> None:
    refusals = [r for r in plan_for(body).refusals if r.rule == "weighted"]
    assert [r.site for r in refusals] == left
    assert all("is computed from constants" in r.reason for r in refusals)


def test_the_mean_of_a_distribution_and_an_embedding_of_positions_are_no_weights() -> None:
    bins = "b, u = Split<axis=1, num_outputs=2>(wide) p = Softmax(x) z = MatMul(p, b)"
    assert [r for r in plan_for(bins).refusals if r.rule == "weighted"] == []
    places = 'n = Shape(x) f = Cast<to=1>(n) e = Einsum<equation="i,ij->ij">(f, grid) m = ReduceMax(e) z = Add(x, m)'
    model = model_of(f"g (float[1,4,8] x) => (float[N] z) <float[3,6] grid> {{ {places} }}", 18)
    assert plan_of(model).refusals == ()


def test_learned_queries_that_attend_are_no_weight() -> None:
    body = "q, u = Split<axis=1, num_outputs=2>(wide) t = Transpose<perm=[0,2,1]>(x) z = MatMul(q, t)"
    assert [r for r in plan_for(body).refusals if r.rule == "weighted"] == []


def test_the_pair_of_a_computed_weight_has_the_scales_of_its_value_and_comes_out_again() -> None:
    model = model_of(f"g (float[1,4,8] x) => (float[1,4,6] z) <{CONSTANTS}> {{ v = Mul(wt, s) z = MatMul(x, v) }}")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    scales = qdqtool.ScaleTable({"x": qdqtool.Scale.of(np.float32(0.05))})
    placed = qdqtool.insert(
        model, scales=scales, options=qdqtool.InsertOptions(plan=qdqtool.PlanOptions(not_heads=("z",)))
    )
    (pair,) = [n for n in placed.model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "v"]
    scale = next(onnx.numpy_helper.to_array(t) for t in placed.model.graph.initializer if t.name == pair.input[1])
    value = stored["wt"] * stored["s"]
    assert scale.tobytes() == (np.abs(value).max(0) / np.float32(127)).astype(np.float32).tobytes()
    options = qdqtool.PeelOptions(qdqtool.TrtVersion(8, 5, 2))
    clean = qdqtool.peel(placed.model, options).model
    assert clean.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
