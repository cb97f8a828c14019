# SPDX-License-Identifier: Apache-2.0
"""A copy whose operators have twins: what they compute, at any opset, and that the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from qdqtool.graph.view import GraphView
from qdqtool.simulation.shadow_copy import ShadowCopy
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the copy")

CONV = "g (float[N,4,6,6] x) => (float[N,5,4,4] y) <float[5,4,3,3] w, float[5] b> { y = Conv(x, w, b) }"
X = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
SCALE = np.float32(0.03)


def run(copy: ShadowCopy, name: str) -> np.ndarray:
    """A tensor of the copy that onnxruntime computes as written."""
    del copy.model.graph.output[:]
    copy.model.graph.output.append(onnx.ValueInfoProto(name=name))
    return np.asarray(session_of(copy.model, PLAIN).run(None, {"x": X})[0])


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18])
def test_a_tensor_is_rounded_to_int8_and_back_at_any_opset(opset: int) -> None:
    copy = ShadowCopy(model_of(CONV, opset))
    found = run(copy, copy.quantized("x", SCALE))
    assert (found == (np.clip(np.rint(X / SCALE), -128, 127) * SCALE).astype(np.float32)).all()


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18])
def test_a_tensor_is_rounded_with_several_scales_beside_each_other(opset: int) -> None:
    copy = ShadowCopy(model_of(CONV, opset))
    scales = SCALE, np.float32(0.01), np.float32(2.0)
    beside = copy.quantized_beside(copy.on_new_axis("x"), scales)
    nodes = len(copy.model.graph.node)
    assert copy.quantized_beside(copy.on_new_axis("x"), scales) == beside and len(copy.model.graph.node) == nodes
    assert copy.quantized_beside(copy.on_new_axis("x"), scales[:2]) != beside
    rounded = [(np.clip(np.rint(X / scale), -128, 127) * scale).astype(np.float32) for scale in scales]
    assert (run(copy, beside) == np.stack(rounded)).all()


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
@pytest.mark.parametrize(
    ("op", "axes", "expected"),
    [
        ("ReduceSum", [0, 2, 3], lambda x: x.sum(axis=(0, 2, 3), keepdims=True)),
        ("ReduceMean", [1], lambda x: x.mean(axis=1, keepdims=True)),
        ("ReduceSumSquare", [3], lambda x: (x**2).sum(axis=3, keepdims=True)),
    ],
)
def test_axes_are_written_as_the_opset_has_them(
    opset: int, op: str, axes: list[int], expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    copy = ShadowCopy(model_of(CONV, opset))
    assert run(copy, copy.with_axes(op, "x", axes, keepdims=1)) == pytest.approx(expected(X), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("opset", [11, 13])
def test_an_axis_more_and_another_shape(opset: int) -> None:
    copy = ShadowCopy(model_of(CONV, opset))
    assert run(copy, copy.with_axes("Unsqueeze", "x", [0])).shape == (1, 2, 4, 6, 6)
    copy = ShadowCopy(model_of(CONV, opset))
    flat = copy.reshaped("x", (0, -1))
    assert copy.reshaped("x", (0, -1)) == flat != copy.reshaped("x", (2, -1))
    assert run(copy, flat).shape == (2, 144)
    assert run(copy, copy.size("x")) == np.float32(X.size)


def test_a_twin_reads_other_tensors_and_keeps_the_rest() -> None:
    model = model_of(CONV)
    node = GraphView(model.graph).producers["y"]
    copy = ShadowCopy(model)
    rounded = copy.weight("w", np.zeros((5, 4, 3, 3), np.float32))
    twin = copy.twin(node, {0: copy.quantized("x", SCALE), 1: rounded})
    bias = onnx.numpy_helper.to_array(model.graph.initializer[1])
    assert (run(copy, twin) == bias.reshape(1, 5, 1, 1)).all()


def test_equal_constants_and_equal_tensors_are_one() -> None:
    copy = ShadowCopy(model_of(CONV))
    first = copy.quantized("x", SCALE)
    nodes = len(copy.model.graph.node)
    assert copy.quantized("x", SCALE) == first and len(copy.model.graph.node) == nodes
    assert copy.quantized("x", np.float32(0.04)) != first
    assert copy.constant("a", np.zeros(3)) == copy.constant("a", np.zeros(3)) != copy.constant("a", np.ones(3))


def test_the_model_stays_and_names_are_free() -> None:
    model = model_of("g (float[N,4] x) => (float[N,4] y) { x_Relu_shadow = Relu(x)  y = Neg(x_Relu_shadow) }")
    before = model.SerializeToString()
    copy = ShadowCopy(model)
    made = [copy.append("Relu", ["x"]), copy.append("Relu", ["x"])]
    assert len({"x_Relu_shadow", *made}) == 3
    assert model.SerializeToString() == before
    assert [node.output[0] for node in copy.model.graph.node] == ["x_Relu_shadow", "y", *made]


@pytest.mark.parametrize(
    ("steps", "axes"), [([1], [2]), ([2, 2], [2, 3]), ([3, 1], [2, 3]), ([1, 2], [2, 3]), ([3], [-2]), ([7], [1])]
)
def test_each_nth_position_is_taken_once_for_the_same_request(steps: list[int], axes: list[int]) -> None:
    copy = ShadowCopy(model_of(CONV))
    found = copy.every("x", steps, axes)
    assert copy.every("x", steps, axes) == found
    index = [slice(None)] * 4
    for step, axis in zip(steps, axes, strict=True):
        index[axis] = slice(None, None, step)
    np.testing.assert_array_equal(X if steps == [1] else run(copy, found), X[tuple(index)])


def test_weights_that_are_lent_are_not_in_the_copy() -> None:
    model, weight = model_of(CONV), np.ones((5, 4, 3, 3), np.float32)
    copy = ShadowCopy(model, {"w": weight})
    made = copy.weight("w", (2 * weight).transpose().copy().transpose())
    assert copy.weights[made].flags.c_contiguous  # else onnxruntime refuses it
    held = {tensor.name: tensor for tensor in copy.model.graph.initializer}
    assert copy.weights["w"] is weight and (copy.weights[made] == 2).all()
    assert not held["w"].raw_data and not held[made].raw_data and list(held[made].dims) == [5, 4, 3, 3]
    assert held["b"].raw_data and model.graph.initializer[0].raw_data


def test_a_twin_may_have_other_attributes() -> None:
    copy = ShadowCopy(model_of(CONV.replace("Conv(", "Conv<pads=[1,1,1,1]>(")))
    node = GraphView(copy.model.graph).producers["y"]
    plain, strided = run(copy, copy.twin(node, {})), run(copy, copy.twin(node, {}, strides=[2, 2]))
    np.testing.assert_allclose(strided, plain[:, :, ::2, ::2], rtol=1e-6)


def test_nodes_that_nobody_needs_are_left_out() -> None:
    copy = ShadowCopy(model_of(CONV))
    kept = copy.reshaped("x", (0, -1))
    copy.keep_needed([kept])
    assert [node.output[0] for node in copy.model.graph.node] == [kept]
    assert run(copy, kept).shape == (2, 144)


def test_a_weight_that_nobody_needs_goes_with_its_place_among_the_inputs() -> None:
    """Files of IR version 3 list initializers as inputs: one that stayed there alone would have to be fed."""
    model = model_of(CONV, ir=3)
    weight = model.graph.initializer[0]
    shape = list(weight.dims)
    model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, onnx.TensorProto.FLOAT, shape))
    copy = ShadowCopy(model)
    kept = copy.reshaped("x", (0, -1))
    copy.keep_needed([kept])
    assert [value.name for value in copy.model.graph.input] == ["x"]
    assert weight.name not in {tensor.name for tensor in copy.model.graph.initializer}
