# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Shapes and types come from a run; a Forward holds what a back end asks for and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backends import Builtin
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.shapes import SeenTensor, make_forward, run_once
from qdqtool.training.start_checks import check_gradients
from qdqtool.training.training_graph import make_form
from tests.graphs import SMALL_NET, model_of

FEED = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype(np.float32)}
FLOAT, INT64, BOOL, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.INT8


def test_every_tensor_is_seen() -> None:
    seen = run_once(Model(model_of(SMALL_NET)), FEED)
    assert seen["x"] == SeenTensor((2, 4, 8, 8), FLOAT) and seen["g"] == SeenTensor((2, 4, 1, 1), FLOAT)
    assert seen["w1"] == SeenTensor((4, 4, 3, 3), FLOAT) and seen["y"] == SeenTensor((2, 3), FLOAT)
    assert set(seen) == {"x", "c1", "r1", "c2", "r2", "g", "f", "y", "w1", "b1", "w2", "fc"}


def test_what_shape_inference_cannot_tell() -> None:
    model = model_of(
        """net (float[N,4,8,8] x) => (y, q, n) <float s = {0.1}, int8 z = {0}>
        { k = Shape(x) h = Gather(k, i) m = Greater(x, s) n = NonZero(m) q = QuantizeLinear(x, s, z) y = Reshape(x, t) }""".replace(
            "int8 z = {0}", "int8 z = {0}, int64 i = {2}, int64[2] t = {0, -1}"
        )
    )
    seen = run_once(Model(model), FEED)
    assert (
        seen["h"] == SeenTensor((), INT64)
        and seen["m"] == SeenTensor((2, 4, 8, 8), BOOL)
        and seen["q"].elem_type == INT8
    )
    assert seen["y"] == SeenTensor((2, 256), FLOAT)
    assert seen["n"] == SeenTensor((4, int((FEED["x"] > 0.1).sum())), INT64)


def test_an_input_that_is_not_given_is_named() -> None:
    with pytest.raises(QdqError, match=r"^x: .*training graph .*data"):
        run_once(Model(model_of(SMALL_NET)), {})


def test_shapes_that_do_not_go_together_are_one_line() -> None:
    with pytest.raises(QdqError, match="cannot run it"):
        run_once(Model(model_of(SMALL_NET)), {"x": np.zeros((2, 4, 8), np.float32)})


def with_loss(text: str, loss: str) -> onnx.ModelProto:
    model = model_of(text)
    graph = onnx.parser.parse_graph(f"loss (float[2,3] y) => (float loss) {{ {loss} }}")
    model.graph.node.extend(graph.node)
    return model


def test_a_forward_holds_what_the_loss_needs() -> None:
    model = with_loss(SMALL_NET, "q = Mul(y, y) loss = ReduceMean<keepdims=0>(q) other = Neg(y)")
    forward = make_forward(model, ("w1", "fc"), "loss", ("q", "loss"), FEED)
    assert [value.name for value in forward.proto.graph.output] == ["loss", "q"]
    assert forward.parameters == ("w1", "fc") and forward.auxiliary == ("q",)
    assert "other" not in forward.shapes and forward.shapes["c1"] == (2, 4, 8, 8) and forward.types["loss"] == FLOAT
    assert [d.dim_value for d in forward.proto.graph.input[0].type.tensor_type.shape.dim] == [2, 4, 8, 8]
    assert set(forward.shapes) == set(forward.types)


def test_parameters_that_the_loss_does_not_depend_on_are_left_out() -> None:
    model = with_loss(SMALL_NET, "loss = ReduceMean<keepdims=0>(r1)")
    assert make_forward(model, ("w1", "b1", "w2", "fc"), "loss", (), FEED).parameters == ("w1", "b1")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("loss = ReduceMean<axes=[0], keepdims=0>(y)", r"^loss: is the loss and has the shape \[3\]"),
        ("i = ArgMax(y) j = Cast<to=1>(i) loss = ReduceMean<keepdims=0>(j)", "depends on nothing that is trained"),
    ],
)
def test_what_is_no_loss(loss: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        make_forward(with_loss(SMALL_NET, loss), ("w1",), "loss", (), FEED)


def test_an_auxiliary_that_is_not_there_is_named() -> None:
    with pytest.raises(QdqError, match=r"^nowhere: is not a tensor"):
        make_forward(with_loss(SMALL_NET, "loss = ReduceMean<keepdims=0>(y)"), ("w1",), "loss", ("nowhere",), FEED)


def test_pads_and_splits_stay_for_the_derivatives_that_know_them() -> None:
    model = model_of(
        """net (float[2,4,8,8] x) => (loss) <float[4,2,3,3] w>
        { a, b = Split<axis=1>(x) c = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(b, w) loss = ReduceMean<keepdims=0>(c) }"""
    )
    forward = make_forward(model, ("w",), "loss", (), FEED)
    assert list(forward.proto.graph.node) == list(model.graph.node)
    assert check_gradients(forward, Builtin().build(forward), FEED) < 0.01


def test_pairs_of_a_form_are_run_as_they_are() -> None:
    form = make_form(
        Model(
            model_of(
                "net (float[2,4,8,8] x) => (y) <float s = {0.1}, int8 z = {0}, float[4,4,1,1] w> { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Conv(d, w) }"
            )
        )
    )
    assert run_once(Model(form.proto), FEED)["d"] == SeenTensor((2, 4, 8, 8), FLOAT)
