# SPDX-License-Identifier: Apache-2.0
"""Nodes are checked where they are made: shapes, types, gradients; names stay free."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.autodiff.activity import STOPS
from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.backends import Builtin, OrtTraining
from qdqtool.errors import QdqError
from qdqtool.training.losses.nodes import DIFFERENTIABLE, LossValue, Nodes
from tests.training.losses.loss_graphs import bare, outputs_of, shapes_of

X = np.arange(6.0).reshape(2, 3) + 1


def started(opset: int = 17) -> tuple[onnx.ModelProto, Nodes, LossValue]:
    proto = bare(opset, x=X)
    nodes = Nodes(proto, shapes_of(proto))
    return proto, nodes, nodes.tensor("x", "test")


def test_arithmetic_reads_as_it_computes() -> None:
    proto, nodes, x = started()
    found = {
        "sum": (x + 1).sum() + (2 + x).sum(),
        "difference": (x - 1).sum() * (10 - x).sum(),
        "quotient": (x / 2).mean() + (6 / x).mean(),
        "negative": -(3 * x).sum(),
        "array": (np.array([1.0, 0.0, 0.0]) * x).sum_over(0).sum_over(-1),
        "integers": (x * [1, 0, 0]).unsqueeze(0).sum(),
    }
    wanted = {
        "sum": (X + 1).sum() + (2 + X).sum(),
        "difference": (X - 1).sum() * (10 - X).sum(),
        "quotient": (X / 2).mean() + (6 / X).mean(),
        "negative": -3 * X.sum(),
        "array": X[:, 0].sum(),
        "integers": X[:, 0].sum(),
    }
    names = {name: nodes.named(value, name) for name, value in found.items()}
    given = outputs_of(proto, {})
    assert {name: float(given[output]) for name, output in names.items()} == pytest.approx(wanted, rel=1e-6)


def test_shapes_are_known_at_once() -> None:
    _, nodes, x = started()
    assert (x.shape, x.rank, x.size) == ((2, 3), 2, 6)
    assert x.unsqueeze(1).shape == (2, 1, 3)
    assert x.sum_over(0).shape == (3,)
    assert x.mean().shape == ()
    assert nodes.op("Reshape", x, nodes.constant(np.array([3, -1]))).shape == (3, 2)
    assert nodes.op("Transpose", x, perm=[1, 0]).shape == (3, 2)
    assert nodes.op("Greater", x, 2.0).elem_type == TensorProto.BOOL


@pytest.mark.parametrize("opset", [13, 16])
@pytest.mark.parametrize("op_type", ["GreaterOrEqual", "LessOrEqual"])
def test_comparisons_that_were_functions_once(op_type: str, opset: int) -> None:
    proto, nodes, x = started(opset)
    mask = nodes.op(op_type, x, 3.0).as_float()
    name = nodes.named((mask * x).sum(), "sum")
    assert float(outputs_of(proto, {})[name]) == (18 if op_type[0] == "G" else 6)


def test_a_gradient_runs_through_what_is_differentiable() -> None:
    _, nodes, x = started()
    assert x.trained
    assert nodes.op("Sigmoid", x).sum().trained
    assert not nodes.op("Greater", x, 0.0).as_float().trained
    assert not nodes.op("Sign", x).trained
    assert not nodes.op("Cast", x, to=TensorProto.INT64).trained
    given = nodes.input("t", (2, 3))
    assert not (given * 2).trained
    assert (given * x).trained
    assert not nodes.op("Floor", given).trained  # no gradient is asked of it


@pytest.mark.parametrize(("op_type", "reported"), [("Floor", "Floor"), ("Sofmax", "did you mean Softmax")])
def test_no_operator_without_a_gradient_before_the_loss(op_type: str, reported: str) -> None:
    _, nodes, x = started()
    with pytest.raises(QdqError, match=reported) as caught:
        nodes.op(op_type, x)
    assert "no gradient" in caught.value.reason


def test_a_convolution_states_its_pads() -> None:
    proto = bare(x=np.ones((1, 1, 4, 4)))
    nodes = Nodes(proto, shapes_of(proto))
    x, w = nodes.tensor("x", "test"), nodes.constant(np.ones((1, 1, 3, 3)))
    assert nodes.op("Conv", x, w, pads=[1, 1, 1, 1]).shape == (1, 1, 4, 4)
    with pytest.raises(QdqError, match="auto_pad"):
        nodes.op("Conv", x, w, auto_pad="SAME_UPPER")


def test_what_does_not_go_together_is_reported_with_its_shapes() -> None:
    _, nodes, x = started()
    with pytest.raises(QdqError, match=r"x \[2, 3\] and .* \[4\] do not match"):
        x + np.ones(4)
    with pytest.raises(QdqError, match="of different types"):
        x * nodes.input("n", (2, 3), TensorProto.INT64)
    with pytest.raises(QdqError, match=r"MatMul: .* \[2, 3\], \[2, 3\]"):
        nodes.op("MatMul", x, x)
    with pytest.raises(QdqError, match="depends on values"):
        nodes.op("Reshape", x, nodes.input("to", (2,), TensorProto.INT64))
    with pytest.raises(QdqError, match=r"Sinn: .*opset 17, did you mean Sin"):
        nodes.op("Sinn", nodes.input("t", (2, 3)))


def test_a_tensor_that_is_not_there() -> None:
    proto, nodes, _ = started()
    with pytest.raises(QdqError, match="no tensor logit") as caught:
        Nodes(bare(logits=X), {"logits": (2, 3)}).tensor("logit", "--label logit:ce")
    assert re.match("--label logit:ce: .* logit, .* logits$", caught.value.line().partition(";")[0])
    assert nodes.has("x_w")
    assert not nodes.has("y")
    assert not Nodes(proto, {}).has("x")  # nobody measured it


def test_constants_are_written_once_and_names_are_free() -> None:
    proto, nodes, x = started()
    first, second = nodes.constant(np.array([1.0, 2.0])), nodes.constant(np.array([1.0, 2.0], np.float32))
    assert first is second
    assert nodes.constant(np.array([1, 2])) is not first
    (x + 1) + 1
    names = [tensor.name for tensor in proto.graph.initializer] + [n for node in proto.graph.node for n in node.output]
    assert len(names) == len(set(names))
    assert "y" not in nodes.names
    assert nodes.names.unique("y") == "y"
    assert nodes.names.unique("y") == "y_1"
    assert "x_w" in nodes.names


def test_parameters_are_kept_apart() -> None:
    proto, nodes, x = started()
    weight = nodes.parameter(np.ones((3, 1), np.float32), "projection")
    assert weight.trained
    assert nodes.parameters == ["projection"]
    assert nodes.op("MatMul", x, weight).shape == (2, 1)
    assert "projection" in {tensor.name for tensor in proto.graph.initializer}


@pytest.mark.parametrize("backend", [Builtin(), OrtTraining()], ids=lambda one: one.name)
def test_both_back_ends_differentiate_what_a_loss_may_use(backend: GradientBackend) -> None:
    assert set(backend.operators()) >= DIFFERENTIABLE
    assert not set(backend.operators()) & STOPS


def test_no_operator_both_stops_and_passes_a_gradient() -> None:
    assert not DIFFERENTIABLE & STOPS
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert known >= DIFFERENTIABLE | STOPS
