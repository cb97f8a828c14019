# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The checks at the start let right forms and gradients through, and stop wrong ones by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtool.autodiff.backend import Forward, GradientGraph
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training import start_checks
from qdqtool.training.shapes import make_forward
from qdqtool.training.start_checks import check_gradients, check_same_forward, smooth_copy, with_inputs
from qdqtool.training.training_graph import TrainingGraph, make_form
from tests.graphs import model_of

FEED = {"x": np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)}
NET = """net (float[8,4] x) => (float[8,3] y)
 <float s = {0.05}, float ws = {0.01}, int8 z = {0}, float[4,5] w, float[5,3] v, float rs = {0.03}>
{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, ws, z) wd = DequantizeLinear(wq, ws, z)
  h = MatMul(xd, wd) r = Relu(h) rq = QuantizeLinear(r, rs, z) rd = DequantizeLinear(rq, rs, z) y = MatMul(rd, v) }"""
LOSS = """ t = Sub(y, target) q = Mul(t, t) loss = ReduceMean<keepdims=0>(q) """


def form_of() -> TrainingGraph:
    return make_form(Model(model_of(NET)))


def edited(form: TrainingGraph, edit: str) -> TrainingGraph:
    """The form with a wrong number in its graph."""
    proto = onnx.ModelProto()
    proto.CopyFrom(form.proto)
    for tensor in proto.graph.initializer:
        if tensor.name == edit:
            value = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array((value * np.float32(1.001)).astype(value.dtype), edit))
    return replace(form, proto=proto)


def test_the_same_forward_passes() -> None:
    assert check_same_forward(form_of(), FEED) == 0


@pytest.mark.parametrize("edit", ["v", "rs", "ws"])
def test_another_forward_is_refused(edit: str) -> None:
    with pytest.raises(QdqError, match=r"differs by .*training form"):
        check_same_forward(edited(form_of(), edit), FEED)


def test_a_rounding_that_tips_is_no_other_forward() -> None:
    """A sum in another order: one step of a pair flips, while every stretch between pairs agrees."""
    form = form_of()
    proto = onnx.ModelProto()
    proto.CopyFrom(form.proto)
    draw = np.random.default_rng(0)
    noise = (1 + 1e-6 * draw.standard_normal((8, 5))).astype(np.float32)
    relu = next(node for node in proto.graph.node if node.op_type == "Relu")
    place = list(proto.graph.node).index(relu)
    proto.graph.node.insert(place, helper.make_node("Mul", [relu.input[0], "noise"], ["noisy"]))
    proto.graph.node[place + 1].input[0] = "noisy"
    proto.graph.initializer.append(numpy_helper.from_array(noise, "noise"))
    for seed in (6, 17, 22):  # where a flip is seen at the output
        feed = {"x": np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)}
        theirs, ours = (Executor(Model(one)).run(feed)["y"] for one in (form.quantized.proto, proto))
        assert np.abs(ours - theirs).max() > 1e-3 * np.abs(theirs).max()
        assert 0 < check_same_forward(replace(form, proto=proto), feed) < 2e-5


# ---------------------------------------------------------------------- gradients


def forward_of(form: TrainingGraph) -> tuple[Forward, dict[str, np.ndarray]]:
    proto = onnx.ModelProto()
    proto.CopyFrom(form.proto)
    proto.graph.input.append(helper.make_tensor_value_info("target", onnx.TensorProto.FLOAT, [8, 3]))
    parsed = onnx.parser.parse_graph(f"loss (float[8,3] y, float[8,3] target) => (float loss) {{ {LOSS} }}")
    proto.graph.node.extend(parsed.node)
    feed = {**FEED, "target": np.random.default_rng(8).standard_normal((8, 3)).astype(np.float32)}
    return make_forward(proto, form.parameters, "loss", (), feed), feed


def gradient_graph(forward: Forward, wrong: str = "") -> GradientGraph:
    """The gradients of NET by hand: dL/dy = 2 t / 24, back through v, the mask of Relu and the pairs."""
    proto = with_inputs(forward.proto, forward.parameters)
    text = """back (float[8,3] t, float[8,5] r, float[5,3] v, float[8,4] xd, float[8,5] rd) => (float[4,5] dw, float[5,3] dv)
    <float two = {0.083333336}, float zero = {0.0}>
    { dy = Mul(t, two) rt = Transpose(rd) dv = MatMul(rt, dy) vt = Transpose(v) dr = MatMul(dy, vt)
      on = Greater(r, zero) f = Cast<to=1>(on) dh = Mul(dr, f) xt = Transpose(xd) dw = MatMul(xt, dh) }"""
    if wrong == "mask":
        text = text.replace("dh = Mul(dr, f)", "dh = Identity(dr)")
    if wrong == "factor":
        text = text.replace("0.083333336", "0.0766")
    back = onnx.parser.parse_graph(text)
    proto.graph.node.extend(back.node)
    proto.graph.initializer.extend(back.initializer)
    gradients = {"w": "dw", "v": "dv"}
    if wrong == "shape":
        proto.graph.node.append(helper.make_node("Transpose", ["dw"], ["dwt"]))
        gradients["w"] = "dwt"
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in gradients.values())
    return GradientGraph(proto, gradients)


def test_right_gradients_pass_at_every_seed() -> None:
    forward, feed = forward_of(form_of())
    assert forward.parameters == ("w", "v")
    found = [check_gradients(forward, gradient_graph(forward), feed, seed) for seed in range(8)]
    assert all(value < 0.05 for value in found) and max(found) > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("mask", "^w: the gradient predicts a slope"),
        ("factor", "the gradient predicts a slope"),
        ("shape", r"^w: has a gradient of shape \[5, 4\]"),
    ],
)
def test_wrong_gradients_are_refused_by_name(wrong: str, message: str, seed: int) -> None:
    forward, feed = forward_of(form_of())
    with pytest.raises(QdqError, match=message):
        check_gradients(forward, gradient_graph(forward, wrong), feed, seed)


def test_a_slope_that_grows_as_steps_shrink_is_of_a_jump_and_speaks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A detector that picks queries by TopK: any step, however short, changes which ones."""
    forward, feed = forward_of(form_of())
    measured = start_checks._Point.slope

    def slope(point: start_checks._Point, name: str, direction: np.ndarray, step: float) -> float:
        return measured(point, name, direction, step) + (0.03 / step if name == "w" else 0.0)

    monkeypatch.setattr(start_checks._Point, "slope", slope)
    assert check_gradients(forward, gradient_graph(forward), feed) < 0.05
    with pytest.raises(QdqError, match="v: the gradient predicts"):
        check_gradients(forward, gradient_graph(forward, "factor"), feed)


def test_it_measures_where_teacher_and_student_agree() -> None:
    """With the smooth form's own outputs for a target the loss is 0 and has no slope: the point lies beside that."""
    form = form_of()
    forward, feed = forward_of(form)
    feed["target"] = Executor(Model(smooth_copy(form.proto))).run(FEED)["y"]
    assert check_gradients(forward, gradient_graph(forward), feed) < 0.05
    with pytest.raises(QdqError, match="predicts a slope"):
        check_gradients(forward, gradient_graph(forward, "mask"), feed)


def test_a_loss_of_zero_that_nothing_moves_is_refused() -> None:
    """Nothing can be measured in steps of a loss without a size."""
    forward, feed = forward_of(form_of())
    feed["x"], feed["target"] = np.zeros_like(feed["x"]), np.zeros_like(feed["target"])
    with pytest.raises(QdqError, match=f"{forward.loss}: is 0, "):
        check_gradients(forward, gradient_graph(forward), feed)


def test_a_loss_that_nothing_moves_is_refused() -> None:
    forward, feed = forward_of(form_of())
    feed["x"] = np.zeros_like(feed["x"])
    with pytest.raises(QdqError, match="no parameter "):
        check_gradients(forward, gradient_graph(forward), feed)


def test_a_loss_that_is_no_number_is_refused() -> None:
    forward, feed = forward_of(form_of())
    feed["target"] = np.full((8, 3), np.nan, np.float32)
    with pytest.raises(QdqError, match=r"the loss .*is nan"):
        check_gradients(forward, gradient_graph(forward), feed)


@pytest.mark.parametrize("written_out", [False, True])
def test_a_smooth_copy_lets_everything_through(written_out: bool) -> None:
    source = model_of(NET) if written_out else form_of().proto
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    expected = np.maximum(FEED["x"] @ values["w"], 0) @ values["v"]
    np.testing.assert_allclose(Executor(Model(smooth_copy(source))).run(FEED)["y"], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(Executor(Model(source)).run(FEED)["y"] - expected).max() > 1e-3


def test_a_scale_near_the_end_of_float32_stays_finite(recwarn: pytest.WarningsRecorder) -> None:
    model = model_of("g (float[4] x) => (float[4] y) <float s = {3e38}, int8 z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }")  # fmt: skip
    (wide,) = [tensor for tensor in smooth_copy(model, {"s"}).graph.initializer if tensor.name == "s"]
    assert np.isfinite(numpy_helper.to_array(wide)) and not recwarn.list
