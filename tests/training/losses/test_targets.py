# SPDX-License-Identifier: Apache-2.0
"""Matching and distill: values, projections, and what each pair of tensors that does not go together says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.losses import terms
from qdqtool.training.losses.loss_graph import LossGraph, append_losses
from qdqtool.training.losses.options import LossOptions, parse_distill
from qdqtool.training.losses.teacher import Teacher
from tests.training.losses.loss_graphs import bare, outputs_of, shapes_of, term_value

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

RANDOM = np.random.default_rng(3)
MAP, OTHER = RANDOM.standard_normal((2, 4, 3, 3)), RANDOM.standard_normal((2, 4, 3, 3))
WIDE = RANDOM.standard_normal((2, 6, 3, 3))
ROWS = RANDOM.standard_normal((2, 5, 4))

Arrays = dict[str, npt.NDArray[Any]]


def teacher_of(tensors: Arrays) -> Teacher:
    """A teacher that gives fixed tensors."""
    return Teacher(Model(bare(**tensors)), {})


def bound(texts: str, student: Arrays, teacher: Arrays, seed: int = 0) -> tuple[LossGraph, dict[str, Any]]:
    """The loss graph of some `--distill`, and what it computes."""
    proto, guide = bare(**student), teacher_of(teacher)
    options = LossOptions(distill=tuple(parse_distill(text) for text in texts.split()))
    graph = append_losses(proto, (), options, guide, shapes_of(proto), seed=seed)
    feeds = {graph.targets[name]: array for name, array in guide.run({}).items()}
    return graph, outputs_of(graph.proto, feeds)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("L1", terms.mean_absolute),
        ("L2", terms.mean_square),
        ("KL", lambda s, t: terms.divergence(s, t, 1)),
        ("KL=3", lambda s, t: terms.divergence(s, t, 1, 3.0)),
        ("KL=3,2", lambda s, t: terms.divergence(s, t, 2, 3.0)),
        ("COS", lambda s, t: terms.cosine(s, t, 1)),
        ("COS=3", lambda s, t: terms.cosine(s, t, 3)),
    ],
)
def test_every_kind_has_its_formula(kind: str, formula: Any) -> None:
    graph, found = bound(f"a:b:{kind}:0.5", {"a": MAP}, {"b": OTHER})
    assert float(found[graph.loss]) == pytest.approx(0.5 * term_value(formula, s=MAP, t=OTHER), rel=1e-6)
    assert graph.targets == {"b": "teacher/b"}
    assert graph.extra_parameters == ()


def weights_of(graph: LossGraph) -> dict[str, npt.NDArray[Any]]:
    every = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
    return {name: onnx.numpy_helper.to_array(every[name]) for name in graph.extra_parameters}


@pytest.mark.parametrize("kind", ["L2", "COS"])
def test_a_1x1_convolution_brings_channels_together(kind: str) -> None:
    graph, found = bound(f"a:b:{kind}", {"a": MAP}, {"b": WIDE})
    weight, bias = weights_of(graph).values()
    assert (weight.shape, bias.shape) == ((6, 4, 1, 1), (6,))
    assert not bias.any()
    projected = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], MAP)
    formula = terms.mean_square if kind == "L2" else lambda s, t: terms.cosine(s, t, 1)
    assert float(found[graph.loss]) == pytest.approx(term_value(formula, s=projected, t=WIDE), rel=1e-5)


def test_channels_on_the_last_axis_take_a_matrix() -> None:
    other = RANDOM.standard_normal((2, 5, 7))
    graph, found = bound("a:b:L1", {"a": ROWS}, {"b": other})
    weight, _ = weights_of(graph).values()
    assert weight.shape == (4, 7)
    assert float(found[graph.loss]) == pytest.approx(np.abs(ROWS @ weight - other).mean(), rel=1e-5)


def test_projections_come_from_the_seed_and_each_has_its_own() -> None:
    texts = "a:b:L2 c:b:L2"
    student = {"a": MAP, "c": OTHER}
    first, again = (weights_of(bound(texts, student, {"b": WIDE}, 7)[0]) for _ in range(2))
    assert [array.tobytes() for array in first.values()] == [array.tobytes() for array in again.values()]
    other = weights_of(bound(texts, student, {"b": WIDE}, 8)[0])
    one, _, two, _ = first.values()
    assert not np.array_equal(one, two)
    assert not np.array_equal(one, next(iter(other.values())))
    assert one.std() == pytest.approx(0.5, abs=0.2)  # 1 / sqrt(4 channels)


@pytest.mark.parametrize(
    ("text", "student", "teacher", "reported"),
    [
        ("a:b:L2", MAP, OTHER[:, :, :2], "[2, 4, 3, 3] and the teacher's [2, 4, 2, 3] differ beside their channels"),
        ("a:b:L2", MAP, WIDE[:1], "differ beside their channels (axis 1)"),
        ("a:b:L2", MAP, ROWS, "have different ranks or no channels"),
        ("a:b:L2", np.zeros(3), np.zeros(4), "have different ranks or no channels"),
        ("a:b:KL", MAP, WIDE, "have different numbers of classes"),
        ("a:b:COS=2", MAP, np.zeros((2, 4, 7, 3)), "has its channels on axis 2"),
        ("a:b:KL=1,5", MAP, OTHER, "has no axis 5"),
        ("aa:b:L2", MAP, OTHER, "the model has no tensor aa"),
        ("A:b:L2", MAP, OTHER, "the model has no tensor A, did you mean a"),
        ("a:B:L2", MAP, OTHER, "tensor B is not in it, did you mean b"),
    ],
)
def test_what_does_not_go_together(text: str, student: Any, teacher: Any, reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        bound(text, {"a": student}, {"b": teacher})
    assert reported in caught.value.line()


def test_names_with_colons_are_parted_where_both_sides_know_them() -> None:
    student, teacher = {"a": MAP, "a:0": OTHER}, {"b:0": MAP, "b": OTHER}
    graph, _ = bound("a:0:b:0:L2", student, teacher)
    assert list(graph.targets) == ["b:0"]
    with pytest.raises(QdqError, match=r"as a \+ 0:b and a:0 \+ b"):
        bound("a:0:b:L2", student, {"b": MAP, "0:b": MAP})
    with pytest.raises(QdqError, match=r"tensor b:1 .* b:0"):
        bound("a:0:b:1:L2", {"a:0": MAP}, {"b:0": MAP})
    with pytest.raises(QdqError, match="neither side"):
        bound("c:0:d:0:L2", student, teacher)


def test_without_a_teacher_there_is_nothing_to_bind() -> None:
    proto = bare(a=MAP)
    with pytest.raises(QdqError, match=r"teacher's tensor b, .*--teacher"):
        append_losses(proto, (), LossOptions(distill=(parse_distill("a:b:L2"),)), None, shapes_of(proto))


def test_matching_averages_over_the_points() -> None:
    proto, guide = bare(a=MAP, c=ROWS), teacher_of({"a": OTHER, "c": ROWS * 1.1})
    graph = append_losses(proto, ("a", "c"), LossOptions(distill_weight=2.0), guide, shapes_of(proto))
    found = outputs_of(graph.proto, {graph.targets[name]: array for name, array in guide.run({}).items()})
    parts = {name: float(found[output]) for name, output in graph.parts.items()}
    assert parts["match:a"] == pytest.approx(term_value(terms.normalized_error, s=MAP, t=OTHER), rel=1e-6)
    assert parts["match:c"] == pytest.approx(0.01 / 1.21, rel=1e-3)
    assert float(found[graph.loss]) == pytest.approx(parts["match:a"] + parts["match:c"], rel=1e-6)
    assert dict(graph.weights) == {"match:a": 1.0, "match:c": 1.0}


def test_points_may_count_differently() -> None:
    proto, guide = bare(a=MAP, c=ROWS), teacher_of({"a": OTHER, "c": ROWS * 1.1})
    graph = append_losses(proto, {"a": 0.25, "c": 3.0}, LossOptions(distill_weight=2.0), guide, shapes_of(proto))
    assert dict(graph.weights) == {"match:a": 0.5, "match:c": 6.0}
    found = outputs_of(graph.proto, {graph.targets[name]: array for name, array in guide.run({}).items()})
    parts = {name: float(found[output]) for name, output in graph.parts.items()}
    assert float(found[graph.loss]) == pytest.approx(0.5 * parts["match:a"] + 6 * parts["match:c"], rel=1e-6)


def test_matching_wants_equal_shapes() -> None:
    proto = bare(a=MAP)
    with pytest.raises(QdqError, match=r"the student's is \[2, 4, 3, 3\], the teacher's \[2, 6, 3, 3\]"):
        append_losses(proto, ("a",), LossOptions(), teacher_of({"a": WIDE}), shapes_of(proto))
