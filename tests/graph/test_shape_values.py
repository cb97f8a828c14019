# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Numbers that exporters compute a Reshape's target by, and the shapes that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.shape_values import ShapeValues
from qdqtool.graph.shapes import known_shapes, shapes_of
from qdqtool.graph.view import GraphView
from tests.graphs import model_of, view_of

# An operator on numbers of shapes -> its value, by hand. x is float[2,6,8].
VALUES = {
    "Shape(x)": [2, 6, 8],
    "Shape<start=1>(x)": [6, 8],
    "Gather(sh, one)": 6,
    "Slice(sh, k0, k2)": [2, 6],
    "Slice(sh, minus, far, k0, minus)": [8, 6, 2],
    "Concat<axis=0>(sh, k2)": [2, 6, 8, 2],
    "Add(sh, k2)": [4, 8, 10],
    "Sub(sh, k2)": [0, 4, 6],
    "Mul(sh, k2)": [4, 12, 16],
    "Div(sh, k3)": [0, 2, 2],
    "Mod(sh, k3)": [2, 0, 2],
    "Unsqueeze(one, k0)": [1],
    "Squeeze(k2, k0)": 2,
    "Squeeze(k2)": 2,
    "Reshape(one, k1)": [1],
    "Transpose(sh)": [2, 6, 8],
    "ConstantOfShape(k2)": [0.0, 0.0],
    "ConstantOfShape<value = int64[1] {7}>(k2)": [7, 7],
    "Identity(sh)": [2, 6, 8],
    "Cast<to=1>(sh)": [2.0, 6.0, 8.0],
    "Equal(sh, k2)": [True, False, False],
    "Where(mask, k3, sh)": [3, 6, 8],
    "Expand(k2, k3)": [2, 2, 2],
    "Range(one, six, two)": [1, 3, 5],
}
UNKNOWN = {
    "a mask of other than numbers": "Not(mask)",
    "a range without a step": "Range(one, one, zero)",
    "a long range": "Range(one, large, one)",
    "a long row": "Expand(one, many)",
    "by zero": "Div(sh, k0)",
    "of a negative number": "Div(minus, k2)",
    "as for C's rest": "Mod<fmod=1>(sh, k3)",
    "beyond the shape": "Gather(sh, k3)",
    "as before": "Reshape(sh, k0)",
    "too many": "ConstantOfShape(many)",
    "another type": "Cast<to=11>(sh)",
}
CONSTANTS = "bool[3] mask = {1, 0, 0}, int64 zero = {0}, int64 two = {2}, int64 six = {6}, int64 large = {100}, int64 one = {1}, int64[1] k0 = {0}, int64[1] k1 = {1}, int64[1] k2 = {2}, int64[1] k3 = {3}, int64[1] minus = {-1}, int64[1] far = {-9223372036854775807}, int64[1] many = {100}"


def value_of(call: str) -> object:
    text = (
        f"g (float[2,6,8] x) => (float[N] y) <{CONSTANTS}> {{ sh = Shape(x) v = {call} w = Cast<to=1>(v) y = Relu(w) }}"
    )
    view = view_of(text)
    values = ShapeValues(view)
    for name in ("sh", "v"):
        values.follow(name, shapes_of(view))
    found = values.known.get("v")
    return None if found is None else found.tolist()


@pytest.mark.parametrize("call", VALUES)
def test_an_operator_on_numbers_of_shapes(call: str) -> None:
    assert value_of(call) == VALUES[call]


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_not_worked_out_is_left_to_inference(kind: str) -> None:
    assert value_of(UNKNOWN[kind]) is None


def test_a_shape_with_a_free_axis_is_no_number() -> None:
    view = view_of("g (float[N,6] x) => (float[M] y) { sh = Shape(x) w = Cast<to=1>(sh) y = Relu(w) }")
    values = ShapeValues(view)
    assert not values.follow("sh", shapes_of(view)) and not values.known


def test_following_again_with_the_same_shapes_finds_nothing_new() -> None:
    view = view_of("g (float[2,6] x) => (float[M] y) { sh = Shape(x) w = Cast<to=1>(sh) y = Relu(w) }")
    values, shapes = ShapeValues(view), shapes_of(view)
    for name in ("sh", "w"):
        assert values.follow(name, shapes) and not values.follow(name, shapes)
    assert values.known["w"].dtype == np.float32


# What PyTorch's TorchScript exporter writes for x.unflatten(-1, (2, 4)): which axis it is is computed by Mod.
UNFLATTEN = "m = Mod(five, three) mr = Reshape(m, k1) sh = Shape(x) a = Slice(sh, k0, mr) m1 = Add(mr, k1) b = Slice(sh, m1, far) to = Concat<axis=0>(a, parts, b) r = Reshape(x, to)"
SPLIT = "int64[1] five = {5}, int64[1] three = {3}, int64[1] k0 = {0}, int64[1] k1 = {1}, int64[1] far = {9223372036854775807}, int64[2] parts = {2,4}"


@pytest.mark.parametrize(("rows", "made"), [("6", (3, 6, 2, 4)), ("N", (3, None, 2, 4))])
def test_what_unflatten_makes_is_known_as_far_as_its_input_is(rows: str, made: tuple[int | None, ...]) -> None:
    text = f"g (float[3,{rows},8] x) => (float[A,B,C,D] y) <{SPLIT}> {{ {UNFLATTEN} y = Relu(r) }}"
    assert known_shapes(view_of(text))["r"] == made
    assert shapes_of(view_of(text)).get("r") != made


def test_one_shape_is_computed_from_that_of_the_one_before() -> None:
    """Two rounds: the second Reshape's target is of what the first one makes."""
    again = UNFLATTEN.replace("x", "p")
    for name in ("m", "mr", "sh", "a", "m1", "b", "to", "r"):
        again = (
            again.replace(f"{name} = ", f"{name}_2 = ")
            .replace(f"({name},", f"({name}_2,")
            .replace(f", {name})", f", {name}_2)")
            .replace(f", {name},", f", {name}_2,")
        )
    text = f"g (float[3,6,8] x) => (float[A,B,C,D] y) <{SPLIT}, int64[3] back = {{3,6,8}}> {{ {UNFLATTEN} p = Reshape(r, back) {again} y = Relu(r_2) }}"
    assert known_shapes(view_of(text))["r_2"] == (3, 6, 2, 4)


def test_a_constant_that_stands_behind_its_reader_in_the_file_counts() -> None:
    model = model_of(
        "g (float[3,8] x) => (float[A,B,C] y) { k = Constant<value = int64[3] {3,2,4}>() r = Reshape(x, k) y = Relu(r) }"
    )
    nodes = [model.graph.node[index] for index in (1, 2, 0)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    assert known_shapes(GraphView(model.graph))["r"] == (3, 2, 4)
