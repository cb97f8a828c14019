# SPDX-License-Identifier: Apache-2.0
"""A shift: an Add or the bias of what makes the tensor subtracts, and its readers' biases make up for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Read
from qdqtool.passes.condition.shift import Shift, own_bias, shift_channels
from tests.graphs import model_of

VALUES = np.array([2.0, -0.25, 3.0, 0.0], np.float32)
X = np.random.default_rng(0).normal(size=(1, 4, 5, 5)).astype(np.float32)
TOKENS = np.random.default_rng(1).normal(size=(1, 3, 4)).astype(np.float32)

READ_TWICE = """g (float[1,4,5,5] x) => (float[1,2,5,5] y, float[1,4,5,5] z) <float[4,4,1,1] w, float[2,4,1,1] u>
{ c = Conv(x, w)  r = Relu(c)  y = Conv(r, u)  z = Neg(r) }"""
CONV = """g (float[1,4,5,5] x) => (float[1,2,5,5] y) <float[4,4,1,1] w, float[2,4,1,1] u, float[2] v>
{ c = Conv(x, w)  y = Conv(c, u, v) }"""
BATCH_NORM = """g (float[1,4,5,5] x) => (float[1,2,5,5] y)
<float[4] s = {1,2,3,4}, float[4] b, float[4] m, float[4] v = {1,1,1,1}, float[2,4,1,1] u>
{ c = BatchNormalization(x, s, b, m, v)  y = Conv(c, u) }"""
NORM = """g (float[1,3,4] x) => (float[1,3,2] y) <float[4] s = {1,2,3,4}, float[4,2] u, float[2] v>
{ c = LayerNormalization(x, s)  d = MatMul(c, u)  y = Add(d, v) }"""
ADD = """g (float[1,3,4] x) => (float[1,3,2] y)
<float[4,4] w, float[4] b, float[2,4] u, int64[2] rows = {3,4}, int64[3] back = {1,3,2}>
{ d = MatMul(x, w)  c = Add(d, b)  f = Reshape(c, rows)  g = Gemm<transB=1>(f, u)  y = Reshape(g, back) }"""


def run(proto: onnx.ModelProto, x: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    made = ReferenceEvaluator(proto).run(None, {"x": x})
    assert isinstance(made, list)
    return made


def shifted(proto: onnx.ModelProto, one: Shift, **addition: npt.NDArray[np.float64]) -> list[str]:
    done = shift_channels(Model(proto), [one], addition)
    onnx.checker.check_model(proto)
    return done


def weight(proto: onnx.ModelProto, name: str) -> npt.NDArray[np.float64]:
    tensor = next(one for one in proto.graph.initializer if one.name == name)
    return onnx.numpy_helper.to_array(tensor).astype(np.float64)


def test_an_add_is_read_by_those_named_alone() -> None:
    proto, plain = model_of(READ_TWICE), model_of(READ_TWICE)
    addition = weight(proto, "u").reshape(2, 4) @ VALUES
    done = shifted(proto, Shift("r", VALUES, 1, 4, (Read("y", 0),)), y=addition)
    assert done == ["r_shift"]
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Relu", "Add", "Conv", "Neg"]
    assert list(proto.graph.node[3].input) == ["r_shift", "u", "y_bias"] and proto.graph.node[4].input[0] == "r"
    for one, other in zip(run(proto, X), run(plain, X), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "axis", "read", "x"),
    [
        (CONV, 1, Read("y", 0), X),
        (BATCH_NORM, 1, Read("y", 0), X),
        (NORM, 2, Read("d", 0), TOKENS),
        (ADD, 2, Read("f", 0), TOKENS),
    ],
    ids=["a convolution", "a BatchNormalization", "a LayerNormalization without a bias", "a MatMul with an Add"],
)
def test_what_makes_the_tensor_takes_the_values_into_its_bias(
    text: str, axis: int, read: Read, x: npt.NDArray[np.float32]
) -> None:
    proto, plain = model_of(text), model_of(text)
    matrix = weight(proto, "u").reshape(2, 4) if text is not NORM else weight(proto, "u").T
    key = {"f": "g", "d": "d"}.get(read.node, "y")
    done = shifted(proto, Shift("c", VALUES, axis, x.ndim, (read,)), **{key: matrix @ VALUES})
    assert done == [""]
    assert [node.op_type for node in proto.graph.node] == [node.op_type for node in plain.graph.node]
    for model in (proto, plain):
        model.graph.output.add(name="c")
    (one, inner), (other, before) = run(proto, x), run(plain, x)
    along = [1] * x.ndim
    along[axis] = 4
    assert inner == pytest.approx(before - VALUES.reshape(along), rel=1e-5, abs=1e-5)
    assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_an_operator_takes_in_a_shift_and_makes_up_for_another_though_its_bias_is_shared() -> None:
    text = CONV.replace("float[2,4,1,1] u, float[2] v>", "float[4,4,1,1] u, float[4] v>")
    text = text.replace("[1,2,5,5]", "[1,4,5,5]")
    text = text.replace("y = Conv(c, u, v)", "d = Conv(c, u, v)  y = Conv(d, u, v)")
    proto, plain = model_of(text), model_of(text)
    addition = weight(proto, "u").reshape(4, 4) @ VALUES
    shifts = [Shift("c", VALUES, 1, 4, (Read("d", 0),)), Shift("d", VALUES, 1, 4, (Read("y", 0),))]
    assert shift_channels(Model(proto), shifts, {"d": addition, "y": addition}) == ["", ""]
    onnx.checker.check_model(proto)
    assert run(proto, X)[0] == pytest.approx(run(plain, X)[0], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "tensor", "why"),
    [
        (READ_TWICE, "r", "an activation has no bias"),
        (READ_TWICE.replace("z = Neg(r)", "z = Neg(c)"), "c", "another reader needs the tensor as it was"),
        (CONV.replace("(float[1,2,5,5] y)", "(float[1,2,5,5] y, float[1,4,5,5] c)"), "c", "it is given out"),
        (CONV, "x", "an input is made by nobody"),
    ],
)
def test_else_there_is_no_bias_to_take_it(text: str, tensor: str, why: str) -> None:
    view = GraphView(model_of(text).graph)
    assert own_bias(view, Shift(tensor, VALUES, 1, 4, (Read("y", 0),))) is None, why
