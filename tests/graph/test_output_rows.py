# SPDX-License-Identifier: Apache-2.0
"""Rows whose last column is the number of a class: known by what makes it, dense ones told from picked ones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.graph.output_rows import output_rows
from qdqtool.graph.view import GraphView
from tests.detector_model import write_detector
from tests.graphs import model_of
from tests.rows_model import write_rows_detector

PICKED = """m (float[1,9,4] boxes, float[1,9,5] scores) => (float[1,9,6] rows)
 <int64[1] k = {%d}, float five = {5}>
{
 best, place = TopK<axis=2>(scores, k)
 number = Cast<to=1>(place)
 %s
 rows = Concat<axis=2>(boxes, best, label)
}"""


def rows_of(model: onnx.ModelProto) -> dict[str, str]:
    return dict(output_rows(GraphView(model.graph)))


def test_rows_of_every_cell_are_dense_and_those_behind_a_topk_are_picked(tmp_path: Path) -> None:
    assert rows_of(onnx.load(write_rows_detector(tmp_path / "a.onnx"))) == {"rows/all": "dense"}
    assert rows_of(onnx.load(write_rows_detector(tmp_path / "b.onnx", pick=10))) == {"rows/rows": "picked"}
    assert rows_of(onnx.load(write_detector(tmp_path / "c.onnx"))) == {}, "scores of one class and of two"


@pytest.mark.parametrize(("number", "kind"), [(1, "dense"), (3, "picked")])
def test_a_topk_of_one_is_an_argmax(number: int, kind: str) -> None:
    assert rows_of(model_of(PICKED % (number, "label = Identity(number)"), 13)) == {"rows": kind}


def test_a_number_that_is_a_remainder_of_a_place_is_one_and_a_sum_is_none() -> None:
    assert rows_of(model_of(PICKED % (3, "label = Mod<fmod=1>(number, five)"), 13)) == {"rows": "picked"}
    assert rows_of(model_of(PICKED % (3, "label = Add(number, best)"), 13)) == {}


def test_the_values_of_a_topk_are_no_places() -> None:
    text = PICKED.replace("Concat<axis=2>(boxes, best, label)", "Concat<axis=2>(boxes, label, best)")
    assert rows_of(model_of(text % (1, "label = Identity(number)"), 13)) == {}


@pytest.mark.parametrize(
    ("last", "features"),
    [
        ("y = MatMul(x, w)", True),
        ("p = MatMul(x, w) q = Add(p, b) y = Sigmoid(q)", True),
        ("y = LayerNormalization(x, b, b)", True),
        ("p = MatMul(x, w) h = Mul(p, half) q = Add(x, h) m = ReduceMean<axes=[-1]>(q) y = Sub(q, m)", True),
        ("y = MatMul(w, x)", False),
        ("p = MatMul(x, w) y = Transpose<perm=[0, 2, 1]>(p)", False),
        ("p = Transpose<perm=[0, 2, 1]>(x) y = MatMul(x, p)", False),
        ("y = Relu(x)", False),
    ],
)
def test_rows_of_a_linear_layer_hold_features(last: str, features: bool) -> None:
    text = """m (float[1,8,8] x) => (float[1,8,8] y)
     <float[8,8] w = {%s}, float[8] b = {1, 1, 1, 1, 1, 1, 1, 1}, float half = {0.5}> { %s }"""
    model = model_of(text % (", ".join(["0.5"] * 64), last), 17)
    assert rows_of(model) == ({"y": "features"} if features else {})
