# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A training copy ends before what has no gradient, and only there."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.training.truncate_graph import Ends, cut_behind, reached
from tests.graphs import model_of


def cut(
    body: str, outputs: str = "y", operators: list[str] | None = None, weights: str = "w"
) -> tuple[onnx.ModelProto, Ends]:
    """Cut a graph of x [2,4] and w [4,4]; outputs have no declared type."""
    names = ", ".join(outputs.split())
    model = model_of(f"net (float[2,4] x) => ({names}) <float[4,4] w, float[4,4] w2> {{ {body} }}")
    return model, cut_behind(model, weights.split(), operators)


def outputs_of(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.output]


def test_a_graph_that_is_differentiable_stays() -> None:
    model, ends = cut("a = MatMul(x, w) y = Sigmoid(a)")
    assert outputs_of(model) == ["y"] and not ends.cut and not ends.lost


def test_a_plugin_behind_the_outputs_is_cut_off() -> None:
    model, ends = cut("a = MatMul(x, w) b = Exp(a) c = Relu(a) d = trt.Decode(b, c) y = Neg(d)")
    assert outputs_of(model) == ["b", "c"] and list(ends.cut) == ["b", "c"]
    assert ends.cut["b"] == "Decode d, before the output y"
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Exp", "Relu"]


def test_what_feeds_both_a_plugin_and_an_output_stays_one() -> None:
    model, ends = cut("a = MatMul(x, w) z = Relu(a) y = trt.Decode(z)", "y z")
    assert outputs_of(model) == ["z"] and not set(ends.cut) - {"z"}


def test_choices_are_cut_off_and_masks_are_not() -> None:
    model, ends = cut("a = MatMul(x, w) y = ArgMax(a)")
    assert outputs_of(model) == ["a"] and "ArgMax" in ends.cut["a"]
    model, ends = cut("a = MatMul(x, w) zero = Sub(a, a) m = Greater(a, zero) f = Cast<to=1>(m) y = Mul(a, f)")
    assert outputs_of(model) == ["y"] and not ends.cut


def test_shapes_that_depend_on_values_are_cut_off() -> None:
    model, _ = cut("a = MatMul(x, w) n = NonZero(a) t = Transpose(n) y = GatherND(a, t)")
    assert outputs_of(model) == ["a"]


def test_what_the_back_end_lacks_is_cut_off_in_a_tail_only() -> None:
    tail = "a = MatMul(x, w) y = CumSum(a, k)"
    model = model_of(f"net (float[2,4] x) => (float[2,4] y) <float[4,4] w, int64 k = {{1}}> {{ {tail} }}")
    assert list(cut_behind(model, ["w"], ["MatMul"]).cut) == ["a"]
    body = "a = MatMul(x, w) b = HardSwish(a) y = MatMul(b, w2)"
    model, ends = cut(body, operators=["MatMul"], weights="w w2")
    assert outputs_of(model) == ["y"] and not ends.cut  # it is for the back end to name HardSwish
    model, ends = cut(body, operators=["MatMul"], weights="w")
    assert outputs_of(model) == ["a"]


def test_outputs_without_weights_are_reported() -> None:
    model, ends = cut("a = MatMul(x, w) y = Relu(a) z = Neg(x)", "y z")
    assert outputs_of(model) == ["y"] and ends.lost == ("z",)


def test_nothing_before_the_break_is_refused() -> None:
    with pytest.raises(QdqError, match=r"no weight .*Decode d "):
        cut("d = trt.Decode(x) y = MatMul(d, w)")


def test_reached_goes_by_gradients() -> None:
    model = model_of(
        "net (float[2,4] x) => (y) <float[4,4] w, float[4,4] w2> { a = MatMul(x, w) b = MatMul(x, w2) i = ArgMax(b) y = Gather(a, i) }"
    )
    near = reached(model, ["y"])
    assert "w" in near and "w2" not in near
