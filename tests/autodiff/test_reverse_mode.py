# SPDX-License-Identifier: Apache-2.0
"""What is asked of which node, what is refused, and what the graphs look like."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.autodiff.backend import Forward, GradientGraph
from qdqtool.autodiff.backends import Builtin
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.errors import QdqError
from tests.autodiff.numeric import (
    RuleCase,
    differences,
    distinct,
    forward_of,
    loss_function,
    model_of_case,
    run_whole,
    with_loss,
)
from tests.ort_session import session_of

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
W = np.array([[2.0, -1.0], [0.25, 4.0]], np.float32)
EYE = np.ones((2, 2), np.float32)


def forward(
    nodes: str, values: dict[str, np.ndarray], wanted: str = "w", opset: int = 17, **constants: object
) -> Forward:
    """Nodes that make `loss`; gradients are wanted of the comma-separated names."""
    model = model_of_case(RuleCase(nodes, {}, constants, opset), values)
    return forward_of(model, wanted.split(","))


def answers(graph: GradientGraph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    fed = {value.name: values[value.name] for value in graph.proto.graph.input}
    return dict(zip(graph.gradients, session_of(graph.proto).run(list(graph.gradients.values()), fed), strict=True))


def operators(graph: GradientGraph) -> Counter[str]:
    return Counter(node.op_type for node in graph.proto.graph.node)


def test_gradients_add_up_over_readers() -> None:
    values = {"x": X, "w": W}
    nodes = "a = Mul(x, w) b = Add(a, w) c = Sub(b, w) d = Sum(a, c, w) loss = ReduceSum<keepdims=0>(d)"
    graph = Builtin().build(forward(nodes, values))
    np.testing.assert_array_equal(answers(graph, values)["w"], 2 * X + 1)


def test_inputs_come_before_parameters_and_the_loss_before_gradients() -> None:
    model = model_of_case(
        RuleCase("y = MatMul(x, w) z = Add(y, b) loss = ReduceSum<keepdims=0>(z)", {}), {"w": W, "b": W[0]}
    )
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2]))
    made = forward_of(model, ["b", "w"], auxiliary=["y"], feeds={"x": X})
    graph = Builtin().build(made)
    assert [value.name for value in graph.proto.graph.input] == ["x", "b", "w"]
    assert [value.name for value in graph.proto.graph.output] == ["loss", "y", "b_grad", "w_grad"]
    assert not graph.proto.graph.initializer or {t.name for t in graph.proto.graph.initializer}.isdisjoint({"b", "w"})
    loss, y, b, w = session_of(graph.proto).run(None, {"x": X, "b": W[0], "w": W})
    np.testing.assert_allclose(y, X @ W)
    np.testing.assert_allclose(w, X.T @ EYE)
    np.testing.assert_array_equal(b, [2, 2])
    assert loss.shape == ()


def test_only_wanted_gradients_are_computed() -> None:
    values = {"x": X, "w": W, "v": W}
    nodes = "a = MatMul(x, v) b = MatMul(a, w) loss = ReduceSum<keepdims=0>(b)"
    one = operators(Builtin().build(forward(nodes, values, "w")))
    both = operators(Builtin().build(forward(nodes, values, "v,w")))
    assert (one["MatMul"], one["Gemm"]) == (2, 1)
    assert (both["MatMul"], both["Gemm"]) == (2, 3)


def test_what_nothing_needs_is_left_out() -> None:
    values = {"x": X, "w": W, "v": W}
    nodes = "a = Mul(x, w) u = Exp(v) loss = ReduceSum<keepdims=0>(a)"
    graph = Builtin().build(forward(nodes, values))
    assert "Exp" not in operators(graph)
    assert "v" not in {tensor.name for tensor in graph.proto.graph.initializer}


def test_the_same_bytes_twice() -> None:
    values = {"x": X, "w": W}
    made = forward("a = MatMul(x, w) b = Softmax(a) c = Add(b, a) loss = ReduceMean<keepdims=0>(c)", values)
    first, second = (Builtin().build(made).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_the_forward_stays_as_it_was() -> None:
    made = forward("y, i = TopK(w, k) loss = ReduceSum<keepdims=0>(y)", {"w": W}, k=np.array([1]))
    before = made.proto.SerializeToString(deterministic=True)
    Builtin().build(made)
    assert made.proto.SerializeToString(deterministic=True) == before


def test_a_graph_of_opset_13_is_written_at_16() -> None:
    nodes = "y, i = TopK(w, k) s = ReduceMean(y) loss = Squeeze(s)"
    graph = Builtin().build(forward(nodes, {"w": W}, opset=13, k=np.array([1])))
    assert [(entry.domain, entry.version) for entry in graph.proto.opset_import] == [("", 16)]
    np.testing.assert_array_equal(answers(graph, {"w": W})["w"], [[0.5, 0], [0, 0.5]])


def test_nodes_out_of_order_are_put_right() -> None:
    made = forward("a = Mul(x, w) b = Exp(a) loss = ReduceSum<keepdims=0>(b)", {"x": X, "w": W})
    nodes = list(made.proto.graph.node)[::-1]
    del made.proto.graph.node[:]
    made.proto.graph.node.extend(nodes)
    graph = Builtin().build(made)
    onnx.checker.check_model(graph.proto, full_check=True)
    np.testing.assert_allclose(answers(graph, {"w": W})["w"], X * np.exp(X * W), rtol=1e-6)


def test_names_that_the_graph_uses_are_not_taken() -> None:
    nodes = "w_grad = Mul(x, w) loss = ReduceSum<keepdims=0>(w_grad)"
    graph = Builtin().build(forward(nodes, {"x": X, "w": W}))
    assert graph.gradients["w"] != "w_grad"
    onnx.checker.check_model(graph.proto, full_check=True)


def test_shapes_that_are_computed_are_known() -> None:
    nodes = """y = Mul(x, w) s = Shape(y) n = Gather(s, zero) h = Div(n, two) b = Unsqueeze(h, axis)
    z = Slice(y, b, s0, axis) loss = ReduceSum<keepdims=0>(z)"""
    constants = {name: np.array(number) for name, number in (("zero", 0), ("two", 2), ("axis", [0]), ("s0", [9]))}
    graph = Builtin().build(forward(nodes, {"x": X, "w": W}, **constants))
    np.testing.assert_array_equal(answers(graph, {"w": W})["w"], X * [[0], [1]])


@pytest.mark.parametrize(
    "step",
    [
        *("s = Round(w)", "s = Floor(w)", "s = Ceil(w)", "s = Sign(w)", "i = ArgMax(w) s = Cast<to=1>(i)"),
        *(
            "i = Shape(w) s = Cast<to=1>(i)",
            "i = Greater(w, x) s = Cast<to=1>(i)",
            "i = Cast<to=7>(w) s = Cast<to=1>(i)",
        ),
    ],
)
def test_steps_pass_nothing_on(step: str) -> None:
    nodes = f"{step} m = ReduceSum<keepdims=0>(s) a = Mul(x, w) b = Mul(a, m) loss = ReduceSum<keepdims=0>(b)"
    made = forward(nodes, {"x": X, "w": W})
    m = run_whole(made.proto, {})["m"]
    np.testing.assert_array_equal(answers(Builtin().build(made), {"w": W})["w"], X * m)


def test_a_loss_behind_steps_alone_is_refused() -> None:
    with pytest.raises(QdqError, match=r"w: has no gradient, .*steps"):
        Builtin().build(forward("a = Round(w) loss = ReduceSum<keepdims=0>(a)", {"w": W}))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("[here] y = Hardmax(w)", "here: Hardmax has no gradient here; freeze the weights before it"),
        ("q = QuantizeLinear(w, s) y = DequantizeLinear(q, s)", "q: QuantizeLinear has no gradient here"),
        ("y = trt.Own(w)", "y: trt::Own has no gradient here"),
        ("y = If(c) <then_branch = t () => (float u) { u = Exp(w) }, else_branch = e () => (float v) { v = Neg(w) }>",
         "y: If has a subgraph, which has no gradient here"),
        ("seq = SplitToSequence(w) y = ConcatFromSequence<axis=0>(seq)", "seq: SplitToSequence has no gradient here"),
    ],
)  # fmt: skip
def test_an_operator_without_a_rule_is_named(nodes: str, message: str) -> None:
    made = forward("a = Exp(w) loss = ReduceSum<keepdims=0>(a)", {"w": W}, s=np.float32(0.1), c=np.array(True))
    text = (
        f'<ir_version: 8, opset_import: ["" : 17, "trt" : 1]> g () => () {{ {nodes} loss = ReduceSum<keepdims=0>(y) }}'
    )
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(made.proto.graph.initializer)
    names = {name for node in proto.graph.node for name in node.output} - {"seq"}  # a sequence has neither
    shapes = {**dict.fromkeys(names, (2, 2)), "loss": ()}
    types = dict.fromkeys(names, TensorProto.FLOAT) | {"q": TensorProto.UINT8}
    with pytest.raises(QdqError, match=message):
        Builtin().build(Forward(proto, ("w",), "loss", (), shapes, types))


def test_an_operator_without_a_rule_off_the_way_is_no_matter() -> None:
    values = {"x": X, "w": W}
    nodes = "h = Hardmax(x) a = Mul(h, w) u = Hardmax(a) loss = ReduceSum<keepdims=0>(a)"
    graph = Builtin().build(forward(nodes, values))
    np.testing.assert_array_equal(answers(graph, values)["w"], [[1, 0], [1, 0]])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("loss = Mul(x, w)", r"loss: is not a scalar float32 loss, its shape is \[2, 2\]"),
        ('a = ScatterElements<reduction="mul">(w, i, x) loss = ReduceSum<keepdims=0>(a)', "with reduction=mul"),
        ("a = Dropout(w, r, t) loss = ReduceSum<keepdims=0>(a)", "Dropout drops values at random"),
        ('a = Einsum<equation="ii->i">(w) loss = ReduceSum<keepdims=0>(a)', "takes a diagonal"),
        ('a = Einsum<equation="...i->...">(w) loss = ReduceSum<keepdims=0>(a)', "with an ellipsis"),
        ("a, m = LayerNormalization(w, g) b = Mul(m, m) loss = ReduceSum<keepdims=0>(b)", "by its first output only"),
        ("a, m, v = BatchNormalization<training_mode=1>(w, g, g, g, g) loss = ReduceSum<keepdims=0>(a)", "statistics"),
    ],
)
def test_a_use_without_a_gradient_is_named(nodes: str, message: str) -> None:
    constants = {"i": np.array([[0, 1], [1, 0]]), "r": np.float32(0.5), "t": np.array(True)}
    with pytest.raises(QdqError, match=message):
        Builtin().build(forward(nodes, {"x": X, "w": W, "g": np.ones(2, np.float32)}, **constants))


def test_a_random_graph_twice_as_deep_is_not_twice_as_slow_to_differentiate() -> None:
    """Nodes are looked up, not searched: 600 nodes within a second on any machine."""
    nodes = (
        "a0 = Mul(x, w) "
        + " ".join(f"a{i + 1} = Tanh(a{i})" for i in range(600))
        + " loss = ReduceSum<keepdims=0>(a600)"
    )
    graph = Builtin().build(forward(nodes, {"x": X, "w": W}))
    assert operators(graph)["Tanh"] == 600


# ---------------------------------------------------------------- function bodies


def test_an_operator_with_a_body_is_decomposed_where_a_gradient_passes() -> None:
    nodes = "f = HardSwish(x) a = Mul(f, w) b = HardSwish(a) loss = ReduceSum<keepdims=0>(b)"
    graph = Builtin().build(forward(nodes, {"x": X, "w": W}))
    assert operators(graph)["HardSwish"] == 1, "what no gradient passes stays as it is"
    assert operators(graph)["HardSigmoid"] == 1


def test_bodies_in_bodies_are_decomposed() -> None:
    nodes = "loss = SoftmaxCrossEntropyLoss(w, t)"
    graph = Builtin().build(forward(nodes, {"w": W}, t=np.array([0, 1])))
    assert not {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"} & set(operators(graph))
    shares = np.exp(W) / np.exp(W).sum(1, keepdims=True)
    np.testing.assert_allclose(answers(graph, {"w": W})["w"], (shares - np.eye(2)) / 2, rtol=1e-5)


def test_what_is_given_out_is_what_the_operator_made() -> None:
    made = forward("a = Mul(x, w) b = Celu(a) loss = ReduceSum<keepdims=0>(b)", {"x": X, "w": W})
    graph = Builtin().build(Forward(made.proto, ("w",), "loss", ("b",), made.shapes, made.types))
    (b,) = session_of(graph.proto).run(["b"], {"w": W})
    np.testing.assert_allclose(b, run_whole(made.proto, {})["b"], rtol=1e-6)


# ---------------------------------------------------------------- pairs

SCALES = np.array([0.01, 0.02, 0.005], np.float32)


def pair_answers(
    pair: PairFunction, x: np.ndarray, scale: np.ndarray, zero: np.ndarray, g: np.ndarray, wanted: str
) -> dict[str, np.ndarray]:
    nodes = f"y = qdqtool.pairs.{pair.op_type}(x, s, z) p = Mul(y, g) loss = ReduceSum<keepdims=0>(p)"
    made = forward(nodes, {"x": x, "s": scale}, wanted, z=zero, g=g)
    graph = Builtin().build(made)
    onnx.checker.check_model(graph.proto, full_check=True)
    assert not graph.proto.functions
    assert {entry.domain for entry in graph.proto.opset_import} == {""}
    return answers(graph, {"x": x, "s": scale})


def by_definition(
    x: np.ndarray, scale: np.ndarray, zero: np.ndarray, g: np.ndarray, axis: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """LSQ's formulas, in float64."""
    wide = [1] * x.ndim
    if axis is not None:
        wide[axis] = -1
    s, z = scale.astype(np.float64).reshape(wide), zero.astype(np.float64).reshape(wide)
    limits = np.iinfo(zero.dtype)
    q = np.round(x / s) + z
    mask = (q >= limits.min) & (q <= limits.max)
    y = (np.clip(q, limits.min, limits.max) - z) * s
    rest = tuple(at for at in range(x.ndim) if at != axis)
    return g * mask, (g * (y - mask * x)).sum(rest) / scale


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_a_pair_passes_on_what_it_did_not_cut_off(axis: int | None, kind: type) -> None:
    rng = np.random.default_rng(5)
    x, g = (rng.uniform(-2.5, 2.5, (3, 3, 3)).astype(np.float32) for _ in range(2))
    scale = SCALES[0] if axis is None else SCALES
    zero = np.full(scale.shape, 3 if kind is np.int8 else 120, kind)
    dx, ds = by_definition(x, scale, zero, g, axis)
    fixed = pair_answers(PairFunction(axis), x, np.asarray(scale), zero, g, "x")
    learned = pair_answers(PairFunction(axis, True), x, np.asarray(scale), zero, g, "x,s")
    assert 0 < np.count_nonzero(dx) < dx.size
    for found in (fixed, learned):
        np.testing.assert_array_equal(found["x"], dx.astype(np.float32))
    assert learned["s"].shape == scale.shape
    np.testing.assert_allclose(learned["s"], ds, rtol=1e-5, atol=1e-3)


def test_the_border_of_a_pair_is_half_a_step_beyond_its_ends() -> None:
    x = np.array([63.74, 63.75, 63.76, -64.25, -64.26], np.float32)
    g = np.ones(5, np.float32)
    found = pair_answers(PairFunction(), x, np.array([0.5], np.float32), np.zeros(1, np.int8), g, "x")
    np.testing.assert_array_equal(found["x"], [1, 1, 0, 1, 0])


def test_a_scale_alone_may_be_learned() -> None:
    x = np.array([0.004, 2.0], np.float32)
    found = pair_answers(
        PairFunction(None, True), x, np.array([0.01], np.float32), np.zeros(1, np.int8), np.ones(2, np.float32), "s"
    )
    np.testing.assert_allclose(found["s"], [127 - 0.4], rtol=1e-5)


def test_a_scale_that_is_not_learned_has_no_gradient() -> None:
    x = np.ones(2, np.float32)
    with pytest.raises(QdqError, match="s: has no gradient"):
        pair_answers(PairFunction(), x, np.array([0.01], np.float32), np.zeros(1, np.int8), x, "x,s")


# ---------------------------------------------------------------- the whole


def test_a_small_network() -> None:
    """Convolutions with pairs taken as they are in a detector: every parameter against differences."""
    rng = np.random.default_rng(11)
    nodes = """c1 = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w1, b1) r1 = HardSwish(c1)
    c2 = Conv<pads=[1,1,1,1], group=4>(r1, w2) s = Sigmoid(c2) m = Mul(c2, s)
    up = Resize<mode="nearest">(m, , scales) c3 = Conv(up, w3, b3)
    y = Concat<axis=1>(c3, up)"""
    shapes = {"w1": (4, 2, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "w3": (2, 4, 1, 1), "b3": (2,)}
    values = {name: distinct(rng, shape, -0.5, 0.5) for name, shape in shapes.items()}
    constants = {"x": distinct(rng, (2, 2, 6, 6), -2, 2), "scales": np.array([1, 1, 2, 2], np.float32)}
    model = model_of_case(RuleCase(nodes, {}, constants), values)
    weights = with_loss(model, ("y",), run_whole(model, {}), rng)
    f = loss_function(model, weights, list(values))
    found = answers(Builtin().build(forward_of(model, list(values))), values)
    for name in values:
        expected = differences(f, values, name)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-4 * np.abs(expected).max())
