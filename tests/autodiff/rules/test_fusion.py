# SPDX-License-Identifier: Apache-2.0
"""Neighbors that are differentiated together give what they give apart, and stay apart where one of them is wanted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backends import Builtin
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

NORM = {"s": (4,), "t": (4,), "m": (4,), "v": (4,)}
SHAPES = {"x": (2, 2, 5, 5), "w": (4, 2, 3, 3), "b": (4,), **NORM}
CONV_NORM = "c = Conv(x, w, b) y = BatchNormalization<epsilon=0.01>(c, s, t, m, v)"
LARGE = """q = Slice(x, i0, i3, i2) r = Slice(q, i0, i3, i3) c = Conv(r, w, b)
y = BatchNormalization(c, s, t, m, v)"""
GROUPED = """u = Slice(w, i0, i1, i1) c = Conv<group=2, pads=[1,1,1,1], strides=[2,2]>(x, u)
y = BatchNormalization(c, s, t, m, v)"""
SILU = "s = Sigmoid(x) y = Mul(x, s)"


def values_of(names: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {name: distinct(rng, SHAPES[name], 0.3, 1.5) for name in names.split(",")}


def operators(
    nodes: str, names: str, auxiliary: tuple[str, ...] = (), tail: str = "ReduceSum<keepdims=0>(y)"
) -> set[str]:
    model = model_of_case(RuleCase(f"{nodes} loss = {tail}", {}), values_of(",".join(SHAPES)))
    graph = Builtin().build(forward_of(model, names.split(","), auxiliary=auxiliary)).proto
    onnx.checker.check_model(graph, full_check=True)
    return {node.op_type for node in graph.graph.node}


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (CONV_NORM, "x,w,b,s,t,m,v"),
        (GROUPED, "x,w,s,t,m,v"),
        (SILU, "x"),
        ("s = Sigmoid(x) y = Mul(s, x)", "x"),
    ],
)  # fmt: skip
def test_gradients_are_those_of_differences(nodes: str, names: str) -> None:
    rng = np.random.default_rng(6)
    values = values_of(names)
    model = model_of_case(RuleCase(nodes, {}, {"i0": np.array([0]), "i1": np.array([1])}), values)
    weights = with_loss(model, ("y",), run_whole(model, {}), rng)
    f = loss_function(model, weights, list(values))
    graph = Builtin().build(forward_of(model, list(values)))
    assert "BatchNormalization" not in {node.op_type for node in graph.proto.graph.node}
    assert {entry.domain for entry in graph.proto.opset_import} == {""}
    found = session_of(graph.proto).run([*graph.gradients.values(), "loss"], values)
    assert found[-1] == pytest.approx(f(values), rel=1e-5)
    for name, gradient in zip(graph.gradients, found, strict=False):
        expected = differences(f, values, name)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-4 * max(1, np.abs(expected).max()))


def test_a_normalization_is_joined_to_its_convolution() -> None:
    assert "BatchNormalization" not in operators(CONV_NORM, "w,s")


@pytest.mark.parametrize(
    ("nodes", "auxiliary", "tail"),
    [
        (CONV_NORM, ("c",), "ReduceSum<keepdims=0>(y)"),
        (CONV_NORM + " p = Add(c, y)", (), "ReduceSum<keepdims=0>(p)"),
        ("c0 = Conv(x, w, b) c = Relu(c0) y = BatchNormalization(c, s, t, m, v)", (), "ReduceSum<keepdims=0>(y)"),
        (LARGE, (), "ReduceSum<keepdims=0>(y)"),
    ],
    ids=["given out", "read twice", "not after a convolution", "a weight larger than the activation"],
)  # fmt: skip
def test_a_normalization_stays(nodes: str, auxiliary: tuple[str, ...], tail: str) -> None:
    constants = " ".join(f"i{n} = Constant<value_ints=[{n}]>()" for n in (0, 2, 3))
    assert "BatchNormalization" in operators(f"{constants} {nodes}", "x,w,b,s,t,m,v", auxiliary, tail)


def test_a_sigmoid_that_is_read_elsewhere_is_differentiated_by_itself() -> None:
    rng = np.random.default_rng(8)
    values = values_of("x")
    model = model_of_case(RuleCase("s = Sigmoid(x) p = Mul(x, s) y = Add(p, s)", {}), values)
    weights = with_loss(model, ("y",), run_whole(model, {}), rng)
    expected = differences(loss_function(model, weights, ["x"]), values, "x")
    graph = Builtin().build(forward_of(model, ["x"]))
    np.testing.assert_allclose(session_of(graph.proto).run(["x_grad"], values)[0], expected, rtol=0, atol=1e-3)


def test_both_of_a_joint_can_be_given_out() -> None:
    model = model_of_case(RuleCase(f"{SILU} loss = ReduceSum<keepdims=0>(y)", {}), values_of("x"))
    graph = Builtin().build(forward_of(model, ["x"], auxiliary=["s", "y"]))
    s, y = session_of(graph.proto).run(["s", "y"], values_of("x"))
    np.testing.assert_allclose(y, values_of("x")["x"] * s, rtol=1e-6)
