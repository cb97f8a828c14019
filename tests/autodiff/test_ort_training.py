# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""onnxruntime-training's gradients: right by differences, equal to the other back end's, and never silently wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backend import Forward
from qdqtool.autodiff.lowering import RULES, lower
from qdqtool.autodiff.ort_training import OrtTraining
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import installed_flavors
from tests.autodiff.cases import CASES, Case
from tests.autodiff.contract import assert_in_order, largest_difference
from tests.autodiff.detector_net import detector
from tests.autodiff.running import (
    feed_of,
    forward_of,
    gradients_of,
    parameters_of,
    prepared,
    run_all,
    with_loss,
    with_pairs,
)
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
_HAS_WHEEL = any("training" in flavor for flavor in installed_flavors())
with_wheel = pytest.mark.skipif(not _HAS_WHEEL, reason="onnxruntime-training is not installed: make train")


def forward_from(text: str, opset: int = 17, parameters: tuple[str, ...] = ()) -> tuple[Forward, dict[str, np.ndarray]]:
    model = with_loss(with_pairs(model_of(f"net {text}", opset)))
    feed = feed_of(model)
    return forward_of(model, parameters or parameters_of(text, model), feed), feed


# --- what needs no wheel: the copy that the builder is given ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_copy_computes_what_the_forward_computes(case: Case) -> None:
    forward, feed = prepared(case)
    if _HAS_WHEEL is False and case.opset > 21:
        pytest.skip("not for this onnxruntime")
    lowered = lower(forward).proto
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in forward.proto.graph.initializer}
    values = {**feed, **{name: stored[name] for name in forward.parameters}}
    made = run_all(lowered, {name: values[name] for name in (one.name for one in lowered.graph.input)})["loss"]
    wanted = run_all(forward.proto, feed)["loss"]
    assert made == pytest.approx(float(wanted), rel=2e-6, abs=2e-6)


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert {case.operator for case in CASES} == set(RULES)
    assert len({case.name for case in CASES}) == len(CASES)


REFUSED = {
    "Conv is given opset 12": ("(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w> { y = Conv(x, w) }", 12, "opset 12"),
    "Clip with attributes": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) y = Clip<min=0.0,max=6.0>(h) }", 10, "opset 10"),
    "bounds that are trained": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p, float low> { h = Add(x, p) y = Clip(h, low) }", 17, "Clip has no gradient by its input 1"),
    "batch statistics": ("(float[2,3,4] x) => (float[2,3,4] y) <float[3] w, float[3] b, float[3] m = {0.0,0.0,0.0}, float[3] v = {1.0,1.0,1.0}> { y, rm, rv = BatchNormalization<training_mode=1>(x, w, b, m, v) }", 17, "BatchNormalization is in training mode"),
    "a random mask": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p, float r = {0.5}, bool t = {1}> { h = Add(x, p) y = Dropout(h, r, t) }", 17, r"Dropout drops at random \(training_mode\)"),
    "QuantizeLinear": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p, float s = {0.1}, int8 z = {0}> { h = Add(x, p) q = QuantizeLinear(h, s, z) y = DequantizeLinear(q, s, z) }", 17, "p: is a parameter that the loss does not depend on"),
    "GridSample": ("(float[1,1,3,3] x, float[1,2,2,2] at) => (float[1,1,2,2] y) <float[1,1,3,3] p> { h = Add(x, p) y = GridSample(h, at) }", 17, "y: GridSample has no gradient"),
    "adding scatters": ('(float[4] x) => (float[4] y) <float[4] p, float[1] u, int64[1] i = {1}> { h = Add(x, p) y = ScatterElements<reduction="add">(h, i, u) }', 17, "ScatterElements adds or multiplies"),
    "a pool that rounds up": ("(float[1,1,4,4] x) => (float[1,1,2,2] y) <float[1,1,4,4] p> { h = Add(x, p) y = AveragePool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1>(h) }", 17, "AveragePool rounds its size up"),
    "indices by column": ("(float[1,1,4,4] x) => (float[1,1,3,3] y) <float[1,1,4,4] p> { h = Add(x, p) y = MaxPool<kernel_shape=[2,2],storage_order=1>(h) }", 17, "MaxPool counts its indices by column"),
    "a region": ('(float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,4,4] p, float[8] r = {0.0,0.0,0.0,0.0,1.0,1.0,1.0,1.0}, float[4] s = {1.0,1.0,1.0,1.0}> { h = Add(x, p) y = Resize<mode="linear",coordinate_transformation_mode="tf_crop_and_resize">(h, r, s) }', 17, "Resize cuts out a region"),
    "computed axes": ("(float[2,3] x, int64[1] a) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) s = ReduceSum(h, a) y = Mul(h, s) }", 17, "ReduceSum has axes that are computed"),
    "a parameter apart": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[2] other> { o = Exp(other) y = Add(x, p) }", 17, "other: is a parameter that the loss does not depend on"),
    "a path through integers": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) i = Cast<to=7>(h) y = Cast<to=1>(i) }", 17, "p: is a parameter that the loss does not depend on"),
    "the builder's names": ("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { p_grad = Add(x, p) y = Exp(p_grad) }", 17, "p_grad: has the name that the gradient builder gives"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_differentiate_is_named(what: str) -> None:
    text, opset, complaint = REFUSED[what]
    model = with_loss(model_of(f"net {text}", 17))
    model.opset_import[0].version = opset
    parameters = parameters_of(text, model)
    feed = {name: value.astype(np.int64) * 0 if name == "a" else value for name, value in feed_of(model).items()}
    shapes_from = model if opset == 17 else None
    forward = forward_of(model, parameters, feed) if shapes_from else Forward(model, parameters, "loss", (), {}, {})
    with pytest.raises(QdqError, match=complaint):
        lower(forward)


def test_what_no_gradient_flows_through_is_left_alone() -> None:
    """Labels may go through any operator, a pair of the input may stay, and a cut-off branch is nobody's business."""
    text = "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float s = {0.1}, int8 z = {0}> { r = Round(x) q = qdqtool.pairs.Pair(r, s, z) f = Floor(p) y = Mul(q, p) }"
    forward, _ = forward_from(text)
    lowered = lower(forward)
    kept = [node.op_type for node in lowered.proto.graph.node]
    assert kept[:4] == ["Round", "Pair", "Floor", "Mul"] and not lowered.gradients


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("s = Sigmoid(h) y = Mul(h, s)", 1),
        ("s = Sigmoid(h) y = Mul(s, h)", 1),
        ("s = Sigmoid(h) y = Mul(s, x)", 0),
        ("s = Sigmoid(h) m = Mul(h, s) y = Add(m, s)", 0),
        ("s = Sigmoid(h) y = Mul(s, s)", 0),
    ],
)
def test_a_swish_is_one_operator(body: str, count: int) -> None:
    forward, _ = forward_from(f"(float[2,3] x) => (float[2,3] y) <float[2,3] p> {{ h = Add(x, p) {body} }}")
    calls = [node.op_type for node in lower(forward).proto.graph.node if node.op_type.startswith("Swish_")]
    assert len(calls) == count
    kept = Forward(forward.proto, forward.parameters, "loss", ("s",), forward.shapes, forward.types)
    assert not lower(kept).gradients, "what is handed out stays"


def test_same_copy_twice() -> None:
    model, parameters = detector(True)
    forward = forward_of(model, parameters, feed_of(model))
    before = model.SerializeToString(deterministic=True)
    first, second = (lower(forward).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second and model.SerializeToString(deterministic=True) == before


@pytest.mark.skipif(_HAS_WHEEL, reason="the wheel is there")
def test_without_the_wheel_it_says_what_to_install() -> None:
    forward, _ = forward_from("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { y = Mul(x, p) }")
    with pytest.raises(MissingPackageError, match=r'onnxruntime-training-cpu: .*pip install "qdqtool\[train\]"'):
        OrtTraining().build(forward)


# --- with the wheel ---


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("learned", [False, True])
def test_both_back_ends_agree_on_a_detector(learned: bool) -> None:
    from qdqtool.autodiff.builtin import Builtin

    model, parameters = detector(learned)
    feed = feed_of(model)
    forward = forward_of(model, parameters, feed, ("scores", "boxes"))
    assert_in_order(OrtTraining(), forward)
    own, other = (gradients_of(backend, forward, feed) for backend in (OrtTraining(), Builtin()))
    assert all(np.abs(gradient).max() > 0 for gradient in own.values())
    difference, name = largest_difference(own, other)
    assert difference <= 1e-5, name


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_back_ends_agree_on_each_operator(case: Case) -> None:
    from qdqtool.autodiff.builtin import Builtin

    forward, feed = prepared(case)
    try:
        other = gradients_of(Builtin(), forward, feed)
    except QdqError as error:
        pytest.skip(f"the other back end says: {error}")
    difference, name = largest_difference(gradients_of(OrtTraining(), forward, feed), other)
    assert difference <= 2e-5, name


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("zero", [0, 20])
def test_a_pair_passes_on_what_was_not_cut_off(axis: int | None, zero: int) -> None:
    shape = (3, 4, 5)
    size = 1 if axis is None else shape[axis]
    at = "" if axis is None else f"[{size}]"
    scales = ",".join(f"{0.008 + 0.002 * i:.3f}" for i in range(size))
    kind = "PairLearned" if axis is None else f"PairAxis{axis}Learned"
    text = f"(float[3,4,5] x) => (float[3,4,5] y) <float[3,4,5] p, float{at} s = {{{scales}}}, int8{at} z = {{{','.join([str(zero)] * size)}}}> {{ h = Add(x, p) y = qdqtool.pairs.{kind}(h, s, z) }}"
    forward, feed = forward_from(text, parameters=("p", "s"))
    found = gradients_of(OrtTraining(), forward, feed)
    tensors = run_all(forward.proto, feed)
    g, x, y = (tensors[name].astype(np.float64) for name in ("weights0", "h", "y"))
    column = np.asarray(tensors["s"], np.float64)
    column = column if axis is None else column.reshape([-1 if a == axis else 1 for a in range(3)])
    mask = np.abs(y - x) <= column / 2
    assert 0.1 < mask.mean() < 0.95
    assert np.array_equal(found["p"], np.where(mask, g, 0).astype(np.float32))
    over = tuple(a for a in range(3) if a != axis)
    wanted = ((g * (y - mask * x)).sum(axis=over, keepdims=True) / column).reshape(tensors["s"].shape)
    assert found["s"] == pytest.approx(wanted, rel=2e-5, abs=1e-4)


@pytest.mark.train
@with_wheel
@pytest.mark.parametrize("kind", ["Pair", "PairAxis0"])
def test_the_borders_of_a_pair(kind: str) -> None:
    """The outer halves of the outermost steps count as inside, and so does what lies half-way between two steps."""
    places = np.asarray([[-130.0, -128.75, -128.5, -128.25, 2.5, 127.25, 127.5, 127.75, 400.0]], np.float32)
    at = "" if kind == "Pair" else "[1]"
    text = f"(float[1,9] x) => (float[1,9] y) <float[1,9] p, float{at} s = {{0.5}}, int8{at} z = {{0}}> {{ h = Add(x, p) y = qdqtool.pairs.{kind}(h, s, z) }}"
    model = with_loss(with_pairs(model_of(f"net {text}")))
    feed = {"x": places * np.float32(0.5)}
    stored = {one.name: one for one in model.graph.initializer}
    stored["p"].CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 9), np.float32), "p"))
    found = gradients_of(OrtTraining(), forward_of(model, ("p",), feed), feed)["p"]
    assert (found != 0).tolist() == [[False, False, True, True, True, True, True, False, False]]


@pytest.mark.train
@with_wheel
def test_a_fixed_pair_gives_its_scale_nothing() -> None:
    text = "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float s = {0.1}, int8 z = {0}> { h = Add(x, p) y = qdqtool.pairs.Pair(h, s, z) }"
    forward, _ = forward_from(text, parameters=("p", "s"))
    with pytest.raises(QdqError, match="s: is a parameter that the loss does not depend on"):
        OrtTraining().build(forward)


@pytest.mark.train
@with_wheel
def test_a_loss_with_one_axis_and_a_parameter_that_is_listed_as_an_input() -> None:
    model = model_of(
        "net (float[2,3] x) => (float[1] loss) <float[2,3] p, int64[1] one = {1}> { h = Mul(x, p) s = ReduceSum<keepdims=0>(h) loss = Reshape(s, one) }"
    )
    model.graph.input.append(onnx.helper.make_tensor_value_info("p", 1, [2, 3]))
    feed = feed_of(model)
    forward = forward_of(model, ("p",), {"x": feed["x"]})
    assert_in_order(OrtTraining(), forward)
    found = gradients_of(OrtTraining(), forward, {"x": feed["x"]})
    assert np.array_equal(found["p"], feed["x"]) and found[""].shape == (1,)


@pytest.mark.train
@with_wheel
def test_what_the_builder_gives_up_on_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, _ = forward_from("(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) y = Round(h) }")
    monkeypatch.setitem(RULES, "Round", lambda site: None)
    with pytest.raises(QdqError, match=r"loss: onnxruntime-training cannot differentiate the graph .*Round") as error:
        OrtTraining().build(forward)
    assert len(str(error.value).splitlines()) == 1 and "/onnxruntime_src" not in str(error.value)


@pytest.mark.train
@with_wheel
def test_it_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Not about a parameter that is also read by a branch without a gradient, nor about an initializer without readers."""
    model, parameters = detector(False)
    OrtTraining().build(forward_of(model, parameters, feed_of(model)))
    text = "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[2] nobody = {1.0,2.0}> { f = Floor(p) y = Mul(x, p) }"
    OrtTraining().build(forward_from(text)[0])
    assert capfd.readouterr() == ("", "")


@pytest.mark.train
@with_wheel
def test_same_graph_twice() -> None:
    model, parameters = detector(True)
    forward = forward_of(model, parameters, feed_of(model))
    one, other = (OrtTraining().build(forward).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert one == other


def test_operators_are_sorted_and_named() -> None:
    names = OrtTraining().operators()
    assert list(names) == sorted(names) and {"Conv", "Resize", "qdqtool.pairs::Pair"} <= set(names)
