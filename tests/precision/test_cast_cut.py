# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Where the minimum cut beats the plain rule, where the plain rule stands, and that no choice of ours is cheaper."""

from __future__ import annotations

import itertools

import pytest
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.precision.amp_rules import amp_rules
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.cast_cut import plan_casts
from qdqtool.precision.casts import count_casts
from qdqtool.precision.float_graph import FloatGraph, float_graph
from tests.graphs import model_of
from tests.precision.typed_graphs import with_types

HALF = TensorProto.FLOAT16


def graph_of(text: str, *, half_io: bool = False) -> FloatGraph:
    model = model_of(text)
    return float_graph(Model(model), HALF, {}, half_io=half_io)


CHAIN = "g (float[1,64] x) => (float[1,64] y) { a = Exp(x) b = Sigmoid(a) c = Exp(b) d = Sigmoid(c) e = Exp(d) f = Sigmoid(e) y = Exp(f) }"
PRODUCTS = "g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float[64,64] v> { a = Exp(x) b = MatMul(a, w) c = Exp(b) d = Relu(c) e = MatMul(d, v) y = Exp(e) }"
FORK = "g (float[1,64] x) => (float[1,64] y, float[1,64] z) <float[64,64] w> { a = MatMul(x, w) b = Exp(a) c = Relu(b) d = Tanh(b) e = Exp(c) f = Exp(d) y = MatMul(e, w) z = MatMul(f, w) }"


@pytest.mark.parametrize(
    ("text", "required", "float32", "casts", "plain"),
    [
        pytest.param(CHAIN, "", "", 2, 2, id="nothing must be FP32: one cast at each end"),
        pytest.param(CHAIN, "c", "abcdefy", 0, 4, id="between FP32 input and output all of a chain without a product"),
        pytest.param(PRODUCTS, "c", "c", 4, 4, id="products end what grows, and as many casts are no reason"),
        pytest.param(PRODUCTS, "cd", "cd", 4, 4, id="neighbors in FP32 share"),
        pytest.param(PRODUCTS, "b", "ab", 2, 4, id="an operator between the input and a product in FP32"),
        pytest.param(FORK, "bef", "bcdef", 6, 9, id="both sides of a fork"),
        pytest.param(FORK, "b", "b", 5, 5, id="one cast serves both readers of a fork"),
    ],
)
def test_casts_are_where_they_cost_least(text: str, required: str, float32: str, casts: int, plain: int) -> None:
    plan = plan_casts(graph_of(text), set(required), amp_rules())
    assert ("".join(sorted(plan.float32)), plan.casts, plan.plain_casts) == (float32, casts, plain)


@pytest.mark.parametrize("text", [CHAIN, PRODUCTS, FORK])
@pytest.mark.parametrize("half_io", [False, True])
def test_casts_are_counted_as_they_are_put_in(text: str, half_io: bool) -> None:
    model, graph = model_of(text), graph_of(text, half_io=half_io)
    for keys in itertools.chain.from_iterable(itertools.combinations(graph.nodes, count) for count in (0, 1, 2, 7)):
        made = with_types(model, TypeAssignment(HALF, frozenset(keys), half_io))
        assert graph.casts(set(keys)) == count_casts(made), keys


@pytest.mark.parametrize("text", [CHAIN, PRODUCTS, FORK])
def test_no_larger_set_takes_fewer_casts_without_a_product_in_it(text: str) -> None:
    graph, rules = graph_of(text), amp_rules()
    free = [key for key, node in graph.nodes.items() if rules.list_of(node.op) != "allow"]
    subsets = [set(some) for count in range(len(free) + 1) for some in itertools.combinations(free, count)]
    for required in subsets[1:]:  # where nothing must be FP32 nothing is
        plan = plan_casts(graph, required, rules)
        assert plan.float32 >= required and plan.casts <= plan.plain_casts
        assert plan.casts == min(graph.casts(one) for one in subsets if one >= required)


def test_a_cast_at_a_pair_is_no_reason_for_fp32() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w, float s = {0.1}, int8 z = {0}> { a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) b = Add(d, d) c = Relu(b) r = QuantizeLinear(c, s, z) e = DequantizeLinear(r, s, z) y = Conv<pads=[1,1,1,1]>(e, w) }"
    graph = graph_of(text)
    assert {tensor.name for tensor in graph.tensors if tensor.paired} == {"a", "d", "c", "e"}
    assert plan_casts(graph, {"a"}, amp_rules()).float32 == {"a"}


def test_a_cast_behind_a_layer_is_no_reason_for_fp32() -> None:
    graph = graph_of(
        "g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float s = {0.1}, int8 z = {0}> { a = MatMul(x, w) b = Exp(a) c = Relu(b) q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"
    )
    assert plan_casts(graph, {"b"}, amp_rules()).float32 == {"b", "c"}
    assert plan_casts(graph.with_layers({"b"}), {"b"}, amp_rules()).float32 == {"b"}


def test_a_tensor_that_an_output_reads_too_is_cast_for_it() -> None:
    text = "g (float[4] x) => (float[4] a, float[4] y) <float s = {0.1}, int8 z = {0}> { a = Exp(x) q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z) }"
    assert {tensor.name: tensor.paired for tensor in graph_of(text).tensors if tensor.name != "q"} == {
        "x": False,
        "a": False,
        "y": True,
    }
