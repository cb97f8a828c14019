# SPDX-License-Identifier: Apache-2.0
"""Weights that a graph computes of its constants: quantized where their value can be had, else listed as left out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.graph.view import GraphView
from tests.graphs import model_of, plan_of

CONSTANTS = (
    "float[6,8] w, float[8,6] wt, float[8,12] wide, float[6] s, int64[2] shape = {8,6}, int64[2] halves = {6,6}, "
    "int64[1] from = {0}, int64[1] to = {6}, int64[1] last = {-1}"
)
HALF = "= Slice(wide, from, to, last)"


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
        "v, u = Split<axis=1, num_outputs=2>(wide) z = MatMul(x, v)",
        "u, v = Split<axis=1>(wide, halves) z = MatMul(x, v)",
        "t = Transpose(wide) u, w2 = Split<num_outputs=2>(t) v = Transpose(w2) z = MatMul(x, v)",
    ],
)
def test_a_weight_that_is_computed_is_quantized_per_channel(body: str) -> None:
    (weight,) = plan_for(body).weights
    assert (weight.tensor, weight.axis) == ("v", -1)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"v {HALF} z = MatMul(x, v)", ["z"]),
        ("n = ReduceL2(wt) v = Div(wt, n) z = MatMul(x, v)", ["z"]),
        ("n = Shape(x) v = Expand(wt, n) z = MatMul(x, v)", []),
        ("r = Relu(x) t = Transpose<perm=[0,2,1]>(r) m = MatMul(r, t) z = MatMul(m, r)", []),
        ("v = ReduceMax(wide) u = Mul(x, v) r = Relu(u) z = MatMul(r, wt)", []),
    ],
    ids=["slice", "normalized", "of the input's size", "attention", "no weight of a product"],
)
def test_a_weight_whose_value_nobody_works_out_is_listed(body: str, left: list[str]) -> None:
    refusals = [r for r in plan_for(body).refusals if r.rule == "weighted"]
    assert [r.site for r in refusals] == left
    assert all("from constants" in r.reason for r in refusals)


def test_the_refusal_names_the_operator_that_makes_no_constant_not_what_moves_its_output() -> None:
    (refusal,) = [
        r
        for r in plan_for("e = Exp(wt) t = Transpose(e) v = Transpose(t) z = MatMul(x, v)").refusals
        if r.rule == "weighted"
    ]
    assert "by Exp and" in refusal.reason


def test_each_part_of_a_constant_is_a_weight_with_its_own_scales() -> None:
    body = "q, v = Split<axis=1, num_outputs=2>(wide) a = MatMul(x, q) b = MatMul(x, v) z = Add(a, b)"
    model = model_of(f"g (float[1,4,8] x) => (float[1,4,6] z) <{CONSTANTS}> {{ {body} }}", 18)
    wide = np.arange(96, dtype=np.float32).reshape(8, 12)
    next(one for one in model.graph.initializer if one.name == "wide").CopyFrom(
        onnx.numpy_helper.from_array(wide, "wide")
    )
    view = GraphView(model.graph)
    for name, part in (("q", wide[:, :6]), ("v", wide[:, 6:])):
        assert view.shape(name) == (8, 6) and np.array_equal(view.array(name), part)


def test_the_mean_of_a_distribution_and_an_embedding_of_positions_are_no_weights() -> None:
    bins = f"b {HALF} p = Softmax(x) z = MatMul(p, b)"
    assert [r for r in plan_for(bins).refusals if r.rule == "weighted"] == []
    places = 'n = Shape(x) f = Cast<to=1>(n) e = Einsum<equation="i,ij->ij">(f, grid) m = ReduceMax(e) z = Add(x, m)'
    model = model_of(f"g (float[1,4,8] x) => (float[N] z) <float[3,6] grid> {{ {places} }}", 18)
    assert plan_of(model).refusals == ()


def test_learned_queries_that_attend_are_no_weight() -> None:
    body = f"q {HALF} t = Transpose<perm=[0,2,1]>(x) z = MatMul(q, t)"
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
