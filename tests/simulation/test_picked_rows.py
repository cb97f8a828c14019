# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Rows that a TopK picked are compared as sets: which outputs have them, and which row goes to which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qdqtool
from qdqtool.graph.model import Model
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.runtime.activations import ObservableModel
from qdqtool.simulation.picked_rows import PickedRows, in_order, picked_rows
from tests.graphs import model_of, view_of

HEAD = """s = ReduceMax<axes=[-1], keepdims=0>(x) v, i = TopK<axis=1>(s, three) u = Unsqueeze(i, last) e = Expand(u, shape)
    b = GatherElements<axis=1>(x, e)"""
CONSTANTS = "int64[1] three = {3}, int64[1] last = {2}, int64[3] shape = {1,3,4}"


def test_every_output_behind_a_pick_has_its_rows() -> None:
    view = view_of(
        f"g (float[1,6,4] x) => (float[N] b, float[N] v, float[N] y, float[N] n) <{CONSTANTS}> {{ {HEAD} y = Relu(x) c = Shape(b) n = Cast<to=1>(c) }}"
    )
    assert picked_rows(view) == (PickedRows(("b", "v"), 3),)


def test_an_output_behind_two_picks_belongs_to_the_last() -> None:
    text = f"""g (float[1,6,4] x) => (float[N] b, float[N] z) <{CONSTANTS}, int64[1] two = {{2}}> {{ {HEAD}
        m = ReduceMax<axes=[-1], keepdims=0>(b) z, j = TopK<axis=1>(m, two) }}"""
    assert picked_rows(view_of(text)) == (PickedRows(("z",), 2), PickedRows(("b",), 3))


@pytest.mark.parametrize("count", ["int64[1] three = {1}", "int64[1] three = {5000}"], ids=["the best one", "too many"])
def test_one_row_or_too_many_are_no_set(count: str) -> None:
    constants = CONSTANTS.replace("int64[1] three = {3}", count)
    assert picked_rows(view_of(f"g (float[1,6,4] x) => (float[N] v) <{constants}> {{ {HEAD} }}")) == ()


BOXES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SCORES = np.array([[0.9, 0.8, 0.7], [0.9, 0.6, 0.5]], np.float32)


def test_rows_go_to_the_nearest_of_all_outputs_together_each_sample_by_itself() -> None:
    order = [[1, 0, 2], [2, 0, 1]]
    got = {
        "b": np.stack([BOXES[n][order[n]] + np.float32(0.1) for n in range(2)]),
        "v": np.stack([SCORES[n][order[n]] for n in range(2)]),
        "other": np.ones(3, np.float32),
    }
    wanted = {"b": BOXES, "v": SCORES, "other": np.zeros(3, np.float32)}
    found = in_order([PickedRows(("b", "v"), 3)], wanted, got)
    np.testing.assert_array_equal(found["v"], SCORES)
    np.testing.assert_array_equal(found["b"], BOXES + np.float32(0.1))
    np.testing.assert_array_equal(found["other"], got["other"])
    assert got["v"][0, 0] == SCORES[0, 1], "what came in stays as it was"


def test_rows_without_a_batch_and_numbers_without_an_end() -> None:
    wanted = {"v": np.array([3.0, 2.0, 1.0], np.float32)}
    found = in_order([PickedRows(("v",), 3)], wanted, {"v": np.array([np.nan, 3.0, 2.0], np.float32)})
    assert found["v"][:2].tolist() == [3.0, 2.0] and np.isnan(found["v"][2])


def test_each_row_is_given_once() -> None:
    wanted = {"v": np.array([[1.0, 1.0, 1.0]], np.float32)}
    found = in_order([PickedRows(("v",), 3)], wanted, {"v": np.array([[1.0, 5.0, 9.0]], np.float32)})
    assert found["v"].tolist() == [[1.0, 5.0, 9.0]]


def test_outputs_of_other_shapes_are_left_alone() -> None:
    group = PickedRows(("v", "w"), 3)
    assert group.in_order_of({"v": SCORES}, {"v": SCORES[:1]}) == {}
    assert group.in_order_of({"v": SCORES, "w": SCORES[0]}, {"v": SCORES, "w": SCORES[0]}) == {}
    assert group.in_order_of({"u": SCORES}, {"u": SCORES}) == {}


SCORED = "g (float[1,6,4] x) => (float[1,3,4] b, float[1,3] v) <{}, float[6] nudge> {{ s0 = ReduceMax<axes=[-1], keepdims=0>(x) {} }}"


def two_models() -> tuple[object, object]:
    """A detector, and one whose scores moved so little that two of its boxes changed places."""
    body = HEAD.partition("v, i")[2]
    model = model_of(SCORED.format(CONSTANTS, f"s = Add(s0, nudge) v, i{body}"))
    other = model_of(SCORED.format(CONSTANTS, f"s = Add(s0, nudge) v, i{body}"))
    for one, nudge in ((model, [0.3, 0.31, 0.2, 0, 0, 0]), (other, [0.31, 0.3, 0.2, 0, 0, 0])):
        tensor = next(t for t in one.graph.initializer if t.name == "nudge")
        tensor.raw_data = np.array(nudge, np.float32).tobytes()
    return model, other


def test_compare_and_the_loss_at_the_outputs_do_not_count_the_order() -> None:
    pytest.importorskip("onnxruntime")
    model, other = two_models()
    x = np.zeros((1, 6, 4), np.float32)
    x[0, :, 0] = np.arange(6)
    x -= x.max(-1, keepdims=True)
    found = qdqtool.compare(model, other, {"x": x}, qdqtool.CompareOptions("outputs"))
    sqnr = {one.tensor: one.sqnr for one in found.outputs}
    assert sqnr["b"] > 100 and 25 < sqnr["v"] < 40, "the boxes are the same, the scores moved by a thirtieth"
    assert "sets of rows" in found.notes[-1] and found.notes[-1].endswith(": b, v")
    reference = OutputReference.of(ObservableModel(Model(model), where="m"), [{"x": x}])
    assert reference.loss(Model(other)) < 0.02
    assert replace(reference, picked=()).loss(Model(other)) > 0.1
