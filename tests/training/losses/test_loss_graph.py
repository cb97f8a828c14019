# SPDX-License-Identifier: Apache-2.0
"""The loss graph as a whole: what was there stays, terms add up, and gradients are the formulas' own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.losses.gradient_paths import reached_parameters
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import append_losses
from qdqtool.training.losses.options import LossOptions, parse_distill, parse_label
from qdqtool.training.losses.teacher import Teacher, float_twin
from tests.graphs import model_of
from tests.training.losses.loss_graphs import bare, gradients_of, labeled, outputs_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = """net (float[2,3] x) => (float[2,4] y, float[2,4] z) <float[3,5] a, float[5,4] b, float[5,4] c>
{ h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) z = MatMul(r, c) }"""
SHAPES = {"x": (2, 3), "y": (2, 4), "z": (2, 4), "h": (2, 5), "r": (2, 5), "a": (3, 5), "b": (5, 4), "c": (5, 4)}
X = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)


def test_what_was_there_stays() -> None:
    form = model_of(NET)
    before = form.SerializeToString()
    graph = append_losses(form, (), LossOptions(labels=(parse_label("y:mse"),)), None, SHAPES)
    assert form.SerializeToString() == before
    for field in ("node", "initializer", "input", "output"):
        old, new = list(getattr(form.graph, field)), list(getattr(graph.proto.graph, field))
        assert new[: len(old)] == old
    assert [value.name for value in graph.proto.graph.input] == ["x", "y_label"]
    assert [value.name for value in graph.proto.graph.output] == ["y", "z", "loss", *graph.parts.values()]
    onnx.checker.check_model(graph.proto)


def test_terms_of_every_kind_add_up() -> None:
    form = model_of(NET)
    teacher = Teacher(Model(float_twin(model_of(NET.replace("Relu", "Tanh")))), {"x": X})
    labels = (parse_label("y:mse:2"), parse_label("y:mse:3"))
    options = LossOptions(labels=labels, distill=(parse_distill("z:y:L1:0.5"),), distill_weight=0.25)
    graph = append_losses(form, ("r", "y"), options, teacher, SHAPES)
    assert list(graph.parts) == ["match:r", "match:y", "y:mse", "y:mse#2", "z:y:L1"]
    assert list(graph.targets) == ["r", "y"]
    given = teacher.run({"x": X})
    feeds = {"x": X, "y_label": np.ones((2, 4), np.float32), **{graph.targets[name]: given[name] for name in given}}
    found = outputs_of(graph.proto, feeds)
    parts = {name: float(found[output]) for name, output in graph.parts.items()}
    assert parts["y:mse"] == parts["y:mse#2"] == pytest.approx(((found["y"] - 1) ** 2).mean(), rel=1e-6)
    assert parts["z:y:L1"] == pytest.approx(np.abs(found["z"] - given["y"]).mean(), rel=1e-6)
    total = 0.125 * (parts["match:r"] + parts["match:y"]) + 5 * parts["y:mse"] + 0.5 * parts["z:y:L1"]
    assert float(found[graph.loss]) == pytest.approx(total, rel=1e-6)


def test_a_student_that_is_its_teacher_has_no_error_and_no_gradient() -> None:
    form = model_of(NET)
    teacher = Teacher(Model(float_twin(form)), {"x": X})
    graph = append_losses(form, ("r", "y", "z"), LossOptions(), teacher, SHAPES)
    feeds = {"x": X, **{graph.targets[name]: array for name, array in teacher.run({"x": X}).items()}}
    assert float(outputs_of(graph.proto, feeds)[graph.loss]) < 1e-12
    assert all(np.abs(array).max() < 1e-6 for array in gradients_of(graph, ("a", "b", "c"), feeds).values())


def test_parameters_beside_the_loss_are_found() -> None:
    graph = append_losses(model_of(NET), (), LossOptions(labels=(parse_label("y:mse"),)), None, SHAPES)
    assert reached_parameters(graph.proto, graph.loss, ("a", "b", "c")) == ("a", "b")


def test_a_projection_is_reached_and_trained() -> None:
    form = model_of(NET)
    guide = Teacher(Model(bare(wide=np.ones((2, 7)))), {})
    graph = append_losses(form, (), LossOptions(distill=(parse_distill("y:wide:L2"),)), guide, SHAPES)
    parameters = reached_parameters(graph.proto, graph.loss, ("a", "b", "c", *graph.extra_parameters))
    assert parameters == ("a", "b", *graph.extra_parameters)
    found = gradients_of(graph, parameters, {"x": X, "teacher/wide": guide.run({})["wide"]})
    assert [found[name].shape for name in graph.extra_parameters] == [(4, 7), (7,)]
    assert all(np.abs(array).max() > 0 for array in found.values())


@pytest.mark.parametrize(
    ("options", "points", "reported"),
    [
        (LossOptions(distill_weight=0.0), ("y",), "the loss has no terms"),
        (LossOptions(distill_weight=-1.0), ("y",), "--distill-weight -1: is not 0 or above"),
        (LossOptions(distill_weight=float("nan")), ("y",), "--distill-weight nan: is not 0 or above"),
        (LossOptions(), (), "share no tensor to match"),
        (LossOptions(), ("y",), "needs the teacher's tensor y, and no teacher is given"),
        (LossOptions(labels=(parse_label("x:mse"),)), (), "x:mse: this term has no gradient with respect to the model"),
    ],
)
def test_nothing_to_minimize(options: LossOptions, points: tuple[str, ...], reported: str) -> None:
    with pytest.raises(QdqError, match=reported):
        append_losses(model_of(NET), points, options, None, SHAPES)


def test_the_names_loss_and_teacher_may_be_taken() -> None:
    form = model_of(NET.replace("z", "loss"))
    graph = append_losses(form, (), LossOptions(labels=(parse_label("loss:mse"),)), None, {**SHAPES, "loss": (2, 4)})
    assert graph.loss == "loss_1"
    assert graph.labels == ("loss_label",)
    onnx.checker.check_model(graph.proto)


# Of each kind: logits or predictions, labels, and gradients by hand. At 0, where a quantized output often is, the
# gradient must be that of the true function.
@pytest.mark.parametrize(
    ("text", "s", "arrays", "wanted"),
    [
        ("s:bce", [0.0, 0.0, 0.0], {"s_label": [1, 0, -1]}, [-0.25, 0.25, 0]),
        ("s:bce", [-200.0, 200.0], {"s_label": [1, 0]}, [-0.5, 0.5]),
        ("s:sigmoid-focal=0,0.25", [0.0, 0.0, 0.0], {"s_label": [1, 0, -1]}, [-0.125, 0.375, 0]),
        ("s:smooth-l1", [0.0, 0.5, 1.0, 3.0], {"s_label": [0, 0, 0, 0]}, [0, 0.125, 0.25, 0.25]),
        ("s:l1", [0.0, 1.0, -2.0, 3.0], {"s_label": [0, 0, 0, 0]}, [0, 0.25, -0.25, 0.25]),
        ("s:mse", [0.0, 1.0], {"s_label": [0, 0]}, [0, 1.0]),
        ("s:ce", [[0.0, 0.0], [1.0, 2.0]], {"s_label": [0, -1]}, [[-0.5, 0.5], [0, 0]]),
    ],
)
def test_gradients_by_hand(text: str, s: list[Any], arrays: dict[str, list[int]], wanted: list[Any]) -> None:
    graph = labeled(text, s=np.array(s))
    feeds = label_feeds(graph.label_specs, {name: np.array(array) for name, array in arrays.items()}, "data")
    np.testing.assert_allclose(gradients_of(graph, ("s_w",), feeds)["s_w"], wanted, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- logits

ENDS = """net (float[2,3] x) => (float[2,4] y) <float[3,4] a>
{{ h = MatMul(x, a) {} }}"""
END_SHAPES = {"x": (2, 3), "a": (3, 4), **dict.fromkeys(("h", "p", "y", "z"), (2, 4))}
SIGMOID, SOFTMAX = ENDS.format("y = Sigmoid(h)"), ENDS.format("y = Softmax(h)")


def labels_of(kind: str) -> dict[str, Any]:
    return {"y_label": np.array([1, 3]) if kind in ("ce", "focal") else np.eye(2, 4, dtype=np.float32)}


def with_label(text: str, label: str) -> Any:
    return append_losses(model_of(text), (), LossOptions(labels=(parse_label(label),)), None, END_SHAPES)


@pytest.mark.parametrize(
    ("text", "kind"),
    [(SIGMOID, "bce"), (SIGMOID, "sigmoid-focal"), (SOFTMAX, "ce"), (SOFTMAX, "focal")],
)
def test_a_loss_on_logits_takes_the_tensor_before_the_activation_that_it_applies(text: str, kind: str) -> None:
    graph, wanted = with_label(text, f"y:{kind}"), with_label(text, f"h:{kind}:1:y_label")
    feeds = {"x": X, **label_feeds(graph.label_specs, labels_of(kind), "data")}
    assert outputs_of(graph.proto, feeds)[graph.loss] == outputs_of(wanted.proto, feeds)[wanted.loss]
    assert len(graph.notes) == 1 and "takes logits: h is used" in graph.notes[0]
    assert wanted.notes == ()


@pytest.mark.parametrize(
    ("body", "label", "said"),
    [
        (
            "p = Sigmoid(h) y = Transpose(p)",
            "y:bce",
            "y holds what a Sigmoid made and binary cross-entropy takes logits",
        ),
        ("y = Sigmoid(h)", "y:ce", "y holds what a Sigmoid made and cross-entropy takes logits"),
        ("y = Softmax(h)", "y:bce", "y holds what a Softmax made and binary cross-entropy takes logits"),
        ("y = Softmax<axis=0>(h)", "y:ce", "y holds what a Softmax made"),
    ],
)
def test_probabilities_by_another_way_are_taken_as_they_are_with_a_note(body: str, label: str, said: str) -> None:
    graph = with_label(ENDS.format(body.replace("Transpose", "Transpose<perm=[0,1]>")), label)
    assert len(graph.notes) == 1 and graph.notes[0].startswith(said), graph.notes
    assert graph.notes[0].endswith(", h")


@pytest.mark.parametrize(("body", "label"), [("y = Sigmoid(h)", "y:mse"), ("y = LogSoftmax(h)", "y:ce")])
def test_other_losses_and_logarithms_of_probabilities_need_no_note(body: str, label: str) -> None:
    assert with_label(ENDS.format(body), label).notes == ()


@pytest.mark.parametrize("opset", [11, 17])
def test_a_divergence_takes_the_logits_of_both_sides(opset: int) -> None:
    teacher = Teacher(Model(model_of(ENDS.format("t = Neg(h) y = Softmax(t)"), opset)), {"x": X})
    options = LossOptions(distill=(parse_distill("y:y:KL=2"), parse_distill("h:t:KL=2")))
    graph = append_losses(model_of(SOFTMAX), (), options, teacher, END_SHAPES)
    assert list(graph.targets) == ["t"]
    found = outputs_of(graph.proto, {"x": X, **{taker: teacher.run({"x": X})[n] for n, taker in graph.targets.items()}})
    assert found[graph.parts["y:y:KL"]] == found[graph.parts["h:t:KL"]] > 0
    first, second = graph.notes
    assert re.match("y .*--distill y:y:KL .*: h is used$", first) and re.match("the teacher's y .*: t is used$", second)


def test_a_teacher_of_logits_and_a_teacher_whose_softmax_goes_along_another_axis_are_taken_as_they_are() -> None:
    for body in ("y = Identity(h)", "y = Softmax<axis=0>(h)"):
        teacher = Teacher(Model(model_of(ENDS.format(body))), {"x": X})
        options = LossOptions(distill=(parse_distill("y:y:KL"),))
        graph = append_losses(model_of(SOFTMAX), (), options, teacher, END_SHAPES)
        assert list(graph.targets) == ["y"] and len(graph.notes) == 1
