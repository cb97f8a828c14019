# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Where the pairs of a whole transformer block stand, and where none does: residual stream, gates, one for q, k and v."""

from __future__ import annotations

import pytest

from qdqtool import InsertOptions, insert
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from tests.graphs import model_of, view_of

WEIGHTS = """float[32] g1, float[32] g2, float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32,48] up, float[32,48] side, float[48,32] down,
    float[32] bq, float[32] bo, float[32] bd, int64[4] to = {1,12,2,16}, int64[3] back = {1,12,32}, float s = {0.25}"""
ATTENTION = """q0 = MatMul(n1, wq) q = Add(q0, bq) k = MatMul(n1, wk) v = MatMul(n1, wv) qr = Reshape(q, to) kr = Reshape(k, to) vr = Reshape(v, to)
    qt = Transpose<perm=[0,2,1,3]>(qr) kt = Transpose<perm=[0,2,3,1]>(kr) vt = Transpose<perm=[0,2,1,3]>(vr) c = MatMul(qt, kt) d = Mul(c, s) e = Softmax(d) f = MatMul(e, vt)
    ft = Transpose<perm=[0,2,1,3]>(f) fr = Reshape(ft, back) o0 = MatMul(fr, wo) o = Add(o0, bo)"""
SWIGLU = "h = MatMul(n2, side) sg = Sigmoid(h) gt = Mul(h, sg) u = MatMul(n2, up) a = Mul(gt, u) z0 = MatMul(a, down) z = Add(z0, bd)"
BLOCKS = {
    "norms before": f"n1 = LayerNormalization(x, g1) {ATTENTION} r1 = Add(x, o) n2 = LayerNormalization(r1, g2) {SWIGLU} r2 = Add(r1, z) y = LayerNormalization(r2, g1)",
    "norms behind": f"n1 = LayerNormalization(x, g1) {ATTENTION} r1 = Add(n1, o) n2 = LayerNormalization(r1, g2) {SWIGLU} r2 = Add(n2, z) y = LayerNormalization(r2, g1)",
}  # fmt: skip
LINEAR = {"n1", "f", "n2", "a"}  # what products with weights read; after the attention before what moves its values
OTHERS = {"q", "k", "v", "e"}  # of an attention in INT8


def text(block: str) -> str:
    return f"g (float[1,12,32] x) => (float[1,12,32] y) <{WEIGHTS}> {{ {BLOCKS[block]} }}"


def plan_of(block: str, attention: str, target: str) -> Plan:
    return make_plan(view_of(text(block)), PlanOptions(target, attention=attention, float_heads="none"))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["gpu", "rtx"])
@pytest.mark.parametrize("attention", ["float", "int8"])
@pytest.mark.parametrize("block", BLOCKS)
def test_pairs_stand_at_what_products_read_alone(block: str, attention: str, target: str) -> None:
    """None on the residual stream (x, r1, r2, and what is added to it: o, z), none on the operands of the gate."""
    plan = plan_of(block, attention, target)
    assert {point.tensor for point in plan.activations} == LINEAR | (OTHERS if attention == "int8" else set())


@pytest.mark.parametrize("block", BLOCKS)
def test_queries_keys_and_values_read_one_pair(block: str) -> None:
    plan = plan_of(block, "float", "gpu")
    (one,) = [point for point in plan.activations if point.tensor == "n1"]
    assert {read.node for read in one.reads} == {"q0", "k", "v"}, "the residual stream reads the tensor itself"
    done = insert(model_of(text(block)), options=InsertOptions(plan=PlanOptions(float_heads="none", attention="float")))
    reads = {node.name or node.output[0]: list(node.input) for node in done.model.graph.node}
    assert reads["q0"][0] == reads["k"][0] == reads["v"][0] != "n1"
    assert "n1" in reads["r1"] if block == "norms behind" else "x" in reads["r1"]


@pytest.mark.parametrize("block", BLOCKS)
def test_both_halves_of_a_gated_mlp_read_one_pair(block: str) -> None:
    (one,) = [point for point in plan_of(block, "float", "gpu").activations if point.tensor == "n2"]
    assert {read.node for read in one.reads} == {"h", "u"}
