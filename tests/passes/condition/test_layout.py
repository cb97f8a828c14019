# SPDX-License-Identifier: Apache-2.0

"""Whose axis is whose: for each operator the cube of its weight computes what the operator computes."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.layout import as_cube, from_cube, groups_of, input_axis, output_channels, readable
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the operators")

# (node, shape of x, shape of w, groups, outputs): taps are summed away, so kernels cover the whole map.
OPERATORS = {
    "Conv": ("y = Conv(x, w)", "1,4,1,1", "6,4,1,1", 1, 6),
    "grouped Conv": ("y = Conv<group=2>(x, w)", "1,4,1,1", "6,2,1,1", 2, 6),
    "depthwise Conv": ("y = Conv<group=4>(x, w)", "1,4,1,1", "8,1,1,1", 4, 8),
    "Conv of one axis": ("y = Conv(x, w)", "1,3,1", "5,3,1", 1, 5),
    "ConvTranspose": ("y = ConvTranspose(x, w)", "1,4,1,1", "4,6,1,1", 1, 6),
    "grouped ConvTranspose": ("y = ConvTranspose<group=2>(x, w)", "1,4,1,1", "4,3,1,1", 2, 6),
    "Gemm": ("y = Gemm(x, w)", "1,4", "4,6", 1, 6),
    "Gemm transB": ("y = Gemm<transB=1>(x, w)", "1,4", "6,4", 1, 6),
    "MatMul": ("y = MatMul(x, w)", "1,4", "4,6", 1, 6),
}


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


@pytest.mark.parametrize("name", OPERATORS)
def test_the_cube_multiplies_input_channels_for_output_channels(name: str) -> None:
    body, x_shape, w_shape, groups, outputs = OPERATORS[name]
    model = model_of(f"g (float[{x_shape}] x) => (y) <float[{w_shape}] w> {{ {body} }}")
    view = GraphView(model.graph)
    node, weight = view.nodes[0], view.array("w")
    assert weight is not None and readable(view, node)
    assert (groups_of(node), output_channels(node, weight.shape)) == (groups, outputs)
    x = np.random.default_rng(1).normal(size=shape_of(x_shape)).astype(np.float32)
    assert x.shape[input_axis(node, x.ndim)] == x.size
    cube = as_cube(node, weight)
    assert cube.shape[0] == groups and cube.shape[0] * cube.shape[1] == outputs and cube.dtype == np.float64
    found = np.einsum("goik,gi->go", cube, x.reshape(groups, -1)).reshape(-1)
    y = Executor(Model(model)).run({"x": x})["y"]
    np.testing.assert_allclose(found, y.reshape(-1), rtol=1e-5, atol=1e-6)  # float32 sums of at most six products


@pytest.mark.parametrize("name", OPERATORS)
def test_a_weight_comes_back_from_its_cube(name: str) -> None:
    body, x_shape, w_shape, _, _ = OPERATORS[name]
    w_shape = w_shape.replace("1,1", "3,2") if w_shape.endswith("1,1") else w_shape
    node = GraphView(model_of(f"g (float[{x_shape}] x) => (y) <float[{w_shape}] w> {{ {body} }}").graph).nodes[0]
    weight = np.random.default_rng(2).normal(size=shape_of(w_shape)).astype(np.float32)
    assert from_cube(node, as_cube(node, weight), weight.shape).astype(np.float32).tobytes() == weight.tobytes()


@pytest.mark.parametrize(
    ("text", "channels_known"),
    [
        ("g (float[1,4] x) => (y) <float[4,6] w> { y = MatMul(x, w) }", True),
        ("g (float[4,4] x) => (y) <float[4,4] w> { y = MatMul(w, x) }", False),  # the matrix stands on the left
        ("g (float[2,4,4] x) => (y) <float[2,4,4] w> { y = MatMul(x, w) }", False),  # a matrix for each of a batch
        ("g (float[1,4] x) => (y) <float[4,6] w> { y = Gemm<alpha=1.0>(x, w) }", True),
        ("g (float[1,4] x) => (y) <float[4,6] w> { y = Gemm<alpha=0.5>(x, w) }", False),
        ("g (float[4,1] x) => (y) <float[4,6] w> { y = Gemm<transA=1>(x, w) }", False),
        ("g (float[1,4,8,8] x) => (y) <float[6,4,1,1] w> { y = Conv(x, w) }", True),
        ("g (float[1,4,8,8] x, float[6,4,1,1] w) => (y) { y = Conv(x, w) }", False),  # computed, not stored
        ("g (float[1,4] x) => (y) { y = Relu(x) }", False),
    ],
)
def test_whose_channels_are_known(text: str, channels_known: bool) -> None:
    view = GraphView(model_of(text).graph)
    assert readable(view, view.nodes[0]) is channels_known
