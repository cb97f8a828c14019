# SPDX-License-Identifier: Apache-2.0
"""Sessions of the student: what is fed and comes out; graphs whose initializers are fed or whose maxima are watched."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.autodiff.backend import GradientGraph
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.parameters import Parameters
from qdqtool.training.student import (
    GraphStudent,
    HeldOutLoss,
    Session,
    SessionOptions,
    watch_maxima,
    with_inputs,
)
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

F = np.float32
HOW = SessionOptions()
LOSS = """net (float[N] x) => (float loss) <float[1] w>
{
 d = Sub(x, w)
 s = Mul(d, d)
 loss = ReduceMean<keepdims=0>(s)
}"""


def loss_graph(weight: float = 2.0) -> onnx.ModelProto:
    model = model_of(LOSS)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([weight], F), "w"))
    return model


def gradient_graph() -> GradientGraph:
    """The loss with d loss / d w = mean(-2 (x - w)), written by hand."""
    model = with_inputs(loss_graph(), ["w"])
    nodes = model.graph.node
    nodes.append(onnx.helper.make_node("ReduceMean", ["d"], ["m"], keepdims=1))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-2], F), "minus"))
    nodes.append(onnx.helper.make_node("Mul", ["m", "minus"], ["dw"]))
    return GradientGraph(model, {"w": "dw"})


def test_a_student_gives_loss_parts_gradients_and_maxima() -> None:
    graph = gradient_graph()
    given = Parameters({"w": np.array([2], F)})
    student = GraphStudent(graph, "loss", {"all": "loss"}, ["loss"], lambda batch: {"x": batch["given"]}, HOW, given)
    found = student.compute({"given": np.array([1, 3, 5], F)}, given.values())
    assert found.loss == pytest.approx(11 / 3)
    assert found.parts == {"all": pytest.approx(11 / 3)}
    assert np.allclose(found.gradients["w"], -2)
    assert found.largest == (pytest.approx(11 / 3),)


class OnCpu(SessionOptions):
    """What a GPU's sessions do with gradients, by the memory of the CPU."""

    device = "cpu"


GRADIENTS = """net (float[2,2] w, float s, float t, float[2] u)
=> (float loss, float[2,2] dw, float ds, float dt, float[2] du)
<float[2,2] gw = {1, -2, 3, -0.0}, float gs = {0.3}, float gt = {0.7}, float[2] gu = {5, 6}>
{ loss = Identity(s)  dw = Identity(gw)  ds = Identity(gs)  dt = Identity(gt)  du = Identity(gu) }"""


def student_of(how: SessionOptions, parameters: Parameters) -> GraphStudent:
    graph = GradientGraph(model_of(GRADIENTS), {name: f"d{name}" for name in "wstu"})
    return GraphStudent(graph, "loss", {}, ["loss"], lambda batch: batch, how, parameters)


def test_gradients_that_stay_on_a_device_are_the_vector_that_gather_makes() -> None:
    start = {"w": np.ones((2, 2), F), "s": np.array(0.1, F), "t": np.array(0.1, F), "u": np.array([3, 0.7], F)}
    parameters = Parameters(start, scales=["s", "t", "u"], shared_scales={"t": "s"})
    values, gathered = parameters.values(), np.zeros(7, F)
    arrays = student_of(SessionOptions(), parameters).compute({}, values)
    parameters.gather(arrays.gradients, values, gathered)
    held = student_of(OnCpu(), parameters).compute({}, values)
    assert (np.zeros(7, F) + held.gradients.numpy()).tobytes() == gathered.tobytes()
    assert (held.loss, held.largest) == (arrays.loss, arrays.largest)


def test_the_held_out_loss_is_a_mean_at_the_values_given() -> None:
    batches = [{"x": np.array([1, 1], F)}, {"x": np.array([3], F)}]
    judge = HeldOutLoss(Model(loss_graph()), {"loss": 1.0}, ["w"], batches, lambda batch: batch, HOW)
    assert judge({"w": np.array([0], F)}) == pytest.approx(5)
    assert judge({"w": np.array([1], F)}) == pytest.approx(2)
    assert math.isnan(judge({"w": np.array([np.inf], F)}))


def test_of_several_terms_each_counts_by_its_weight() -> None:
    model = loss_graph()
    model.graph.node.append(onnx.helper.make_node("ReduceMax", ["s"], ["most"], keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("most", onnx.TensorProto.FLOAT, []))
    batches = [{"x": np.array([1, 3], F)}, {"x": np.array([0, 2], F)}]
    judge = HeldOutLoss(Model(model), {"loss": 2.0, "most": 0.5}, ["w"], batches, lambda batch: batch, HOW)
    assert judge({"w": np.array([0], F)}) == pytest.approx((2 * 5 + 0.5 * 9 + 2 * 2 + 0.5 * 4) / 2)
    assert math.isnan(judge({"w": np.array([np.nan], F)}))


def test_initializers_become_inputs_of_their_shape() -> None:
    before = loss_graph()
    found = with_inputs(before, ["w"])
    assert [value.name for value in found.graph.input] == ["x", "w"]
    assert not found.graph.initializer
    assert found.graph.input[1].type.tensor_type.shape.dim[0].dim_value == 1
    assert [tensor.name for tensor in before.graph.initializer] == ["w"]
    listed = with_inputs(found, ["w"])
    assert len(listed.graph.input) == 2


def test_maxima_of_groups_of_tensors() -> None:
    model = model_of("net (float[3] x) => (float[3] y) { y = Neg(x) z = Add(x, y) u = Add(x, x) }")
    found, names = watch_maxima(model, [["x", "u"], ["z"]])
    assert len(names) == 2
    assert len(model.graph.node) == 3
    largest = Session(Model(found), names, HOW).run({"x": np.array([1, -4, 2], F)})
    assert [float(one) for one in largest] == [8, 0]
    assert [value.name for value in found.graph.output] == ["y", *names]


def test_maxima_take_names_that_the_graph_does_not_have() -> None:
    model = model_of("net (float[3] x) => (float[3] y) { t = Neg(x) y = Add(x, t) }")
    model.graph.node[0].output[0] = model.graph.node[1].input[1] = "qdqtool.largest.0"
    found, names = watch_maxima(model, [["x"]])
    onnx.checker.check_model(found)
    assert names[0] not in ("qdqtool.largest.0", "qdqtool.largest.0.0")
    assert Session(Model(found), names, HOW).run({"x": np.array([1, -4, 2], F)}) == [np.float32(4)]


def test_what_cannot_be_run_is_one_line() -> None:
    session = Session(Model(loss_graph()), ["loss"], HOW)
    with pytest.raises(QdqError, match="cannot run it"):
        session.run({"x": np.zeros((2, 2), F)})
    with pytest.raises(QdqError, match="onnxruntime refuses it"):
        Session(Model(loss_graph()), ["no such"], HOW)
