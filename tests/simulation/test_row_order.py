# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Tensors inside a decoder are compared row by row of the same token, whichever order a TopK gave them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.simulation.row_order import RowOrder
from tests.graphs import model_of, view_of

TEXT = """g (float[1,6,4] x) => (float[1,3,3] a) <float[6] nudge, int64[1] three = {3}, int64[1] last = {2}, int64[3] shape = {1,3,4}, int64[4] heads = {1,3,2,2}, float[3,1] own = {1,2,3}> {
    s0 = ReduceMax<axes=[-1], keepdims=0>(x) s = Add(s0, nudge) v, i = TopK<axis=1>(s, three) u = Unsqueeze(i, last) e = Expand(u, shape)
    b = GatherElements<axis=1>(x, e) h = Reshape(b, heads) t = Transpose<perm=[0,2,1,3]>(h) k = Transpose<perm=[0,1,3,2]>(t)
    c = MatMul(t, k) w = Softmax(c) d = MatMul(w, t) o = Mul(b, own) a = ReduceSum<keepdims=0>(c, one) }"""
TENSORS = ("b", "h", "t", "k", "c", "w", "d")


def nudged(*nudge: float) -> onnx.ModelProto:
    """A decoder whose scores of tokens are moved a little."""
    model = model_of(TEXT.replace("float[3,1] own", "int64[1] one = {1}, float[3,1] own"))
    next(t for t in model.graph.initializer if t.name == "nudge").raw_data = np.array(nudge, np.float32).tobytes()
    return model


def image() -> np.ndarray:
    x = np.random.default_rng(3).normal(0, 1, (1, 6, 4)).astype(np.float32)
    return x - x.max(-1, keepdims=True)  # every score is 0 before the nudge


def compared(first: onnx.ModelProto, second: onnx.ModelProto, tensors: str = "all") -> qdqtool.Comparison:
    pytest.importorskip("onnxruntime")
    return qdqtool.compare(first, second, {"x": image()}, qdqtool.CompareOptions(tensors))


@pytest.mark.parametrize("tensors", ["all", "^[bhtkcwd]$"])
def test_exchanged_rows_are_no_difference_inside(tensors: str) -> None:
    found = compared(nudged(3, 2, 1, 0, 0, 0), nudged(2, 3, 1, 0, 0, 0), tensors)
    sqnr = {one.tensor: one.sqnr for one in found.tensors}
    assert {name for name in TENSORS if sqnr[name] < 100} == set()
    assert any("both models selected 3 of 3" in note for note in found.notes)
    if tensors == "all":
        assert sqnr["o"] < 30, "rows with numbers of their own are compared place by place"


def test_a_row_that_only_one_model_picked_is_a_difference() -> None:
    found = compared(nudged(3, 2, 1, 0, 0, 0), nudged(2, 3, 0, 1, 0, 0))
    sqnr = {one.tensor: one.sqnr for one in found.tensors}
    assert sqnr["b"] < 30 and any("both models selected 2 of 3" in note for note in found.notes)


def test_outputs_alone_say_nothing_of_what_is_inside() -> None:
    found = compared(nudged(3, 2, 1, 0, 0, 0), nudged(2, 3, 1, 0, 0, 0), "outputs")
    assert not any("inside" in note for note in found.notes)


def test_each_sample_has_an_order_of_its_own() -> None:
    view = view_of(
        TEXT.replace("float[1,6,4] x", "float[2,6,4] x")
        .replace("{1,3,4}", "{2,3,4}")
        .replace("{1,3,2,2}", "{2,3,2,2}")
        .replace("float[3,1] own", "int64[1] one = {1}, float[3,1] own")
    )
    order = RowOrder(view, {"i": ("i", "i"), "b": ("b", "b"), "t": ("t", "t")})
    ours = {
        "i": np.array([[4, 0, 2], [1, 2, 3]]),
        "b": np.arange(24.0).reshape(2, 3, 4),
        "t": np.arange(24.0).reshape(2, 2, 3, 2),
    }
    moved = [[1, 2, 0], [2, 1, 0]]
    theirs = {
        name: np.stack([np.take(array[n], moved[n], axis=1 if name == "t" else 0) for n in range(2)])
        for name, array in ours.items()
    }
    shapes = {name: array.shape for name, array in ours.items()}
    found = order.in_order({"x": np.zeros((2, 6, 4), np.float32)}, ours, theirs, shapes)
    for name, array in ours.items():
        np.testing.assert_array_equal(found[name], array)
    assert (order.rows, order.same) == (6, 6)


def test_a_row_without_a_token_of_the_reference_stands_in_the_place_that_is_left() -> None:
    view = view_of(TEXT.replace("float[3,1] own", "int64[1] one = {1}, float[3,1] own"))
    order = RowOrder(view, {"i": ("i", "i"), "b": ("b", "b")}, taken=("b",))
    ours, theirs = ({"i": np.array([row])} for row in ([4, 0, 2], [5, 2, 4]))
    found = order.in_order({"x": np.zeros((1, 6, 4), np.float32)}, ours, theirs, {"i": (1, 3)})
    assert found["i"].tolist() == [[4, 5, 2]] and (order.rows, order.same) == (3, 2)
