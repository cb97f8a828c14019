# SPDX-License-Identifier: Apache-2.0

"""Rows of what operators sum up: times the weights they are what onnxruntime makes, for every way to lay a window."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.pruning.sum_rows import draw_places, made_rows, read_rows
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of
from tests.pruning.nets import value, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

RANDOM = np.random.default_rng(11)

# name -> (input, weight, node)
CASES = {
    "1x1": ("float[2,4,5,6]", "float[3,4,1,1]", "y = Conv(x, w)"),
    "window": ("float[2,4,5,6]", "float[3,4,3,2]", "y = Conv(x, w)"),
    "pads": ("float[2,4,5,6]", "float[3,4,3,3]", "y = Conv<pads=[1,0,2,1]>(x, w)"),
    "strides": ("float[2,4,7,8]", "float[3,4,3,3]", "y = Conv<strides=[2,3], pads=[1,1,1,1]>(x, w)"),
    "dilations": ("float[2,4,9,8]", "float[3,4,3,2]", "y = Conv<dilations=[2,3], strides=[2,1]>(x, w)"),
    "groups": ("float[2,6,5,5]", "float[4,3,3,3]", "y = Conv<group=2>(x, w)"),
    "same upper": ("float[2,4,5,6]", "float[3,4,2,2]", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)'),
    "same lower": ("float[2,4,5,6]", "float[3,4,2,4]", 'y = Conv<auto_pad="SAME_LOWER">(x, w)'),
    "valid": ("float[2,4,5,6]", "float[3,4,2,2]", 'y = Conv<auto_pad="VALID">(x, w)'),
    "one axis": ("float[2,4,9]", "float[3,4,3]", "y = Conv<pads=[1,1]>(x, w)"),
    "three axes": ("float[2,2,4,4,4]", "float[3,2,2,2,2]", "y = Conv(x, w)"),
    "gemm": ("float[3,4]", "float[4,5]", "y = Gemm(x, w)"),
    "gemm transposed": ("float[3,4]", "float[5,4]", "y = Gemm<transB=1>(x, w)"),
    "matmul": ("float[2,3,4]", "float[4,5]", "y = MatMul(x, w)"),
    "matmul of four axes": ("float[2,2,3,4]", "float[4,5]", "y = MatMul(x, w)"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("most", [2, 1000])
def test_rows_times_weights_are_what_is_made(name: str, most: int) -> None:
    given, weight, text = CASES[name]
    rank = {"Conv": given.count(",") + 1, "Gemm": 2, "MatMul": given.count(",") + 1}[
        text.split("= ")[1].split("<")[0].split("(")[0]
    ]
    outputs = ",".join("abcde"[:rank])
    model = model_of(f"g ({given} x) => (float[{outputs}] y) <{weight} w> {{ {text} }}")
    model = with_values(model, w=RANDOM.normal(size=value(model, "w").shape))
    shape = [int(size) for size in given[6:-1].split(",")]
    x = RANDOM.normal(size=shape).astype(np.float32)
    made = Executor(Model(model)).run({"x": x})["y"]
    view = GraphView(model.graph)
    node, kept = view.producers["y"], value(model, "w")
    places = draw_places(node, made.shape, most, np.random.default_rng(0))
    assert places.shape[0] == len(x) and places.shape[1] <= most
    kernel = kept.shape[2:] if node.op == "Conv" else ()
    rows = read_rows(node, x, made.shape, kernel, places)
    flat = kept.reshape(len(kept), -1) if node.op == "Conv" else kept if "transB" in text else kept.T
    products = [part @ own.T for part, own in zip(rows, np.split(flat, len(rows)), strict=True)]
    assert np.concatenate(products, axis=1) == pytest.approx(made_rows(node, made, places), abs=1e-5)


def test_places_are_drawn_without_one_twice() -> None:
    node = GraphView(
        model_of("g (float[2,4,5,6] x) => (float[2,3,5,6] y) <float[3,4,1,1] w> { y = Conv(x, w) }").graph
    ).nodes[0]
    places = draw_places(node, (2, 3, 5, 6), 7, np.random.default_rng(0))
    assert places.shape == (2, 7) and all(len(set(row)) == 7 for row in places.tolist())
    assert (draw_places(node, (2, 3, 5, 6), 30, np.random.default_rng(0)) == np.arange(30)).all()
