# SPDX-License-Identifier: Apache-2.0
"""What networks end in: which tensors, of what form, and how much an error counts where."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.training.losses import terms
from qdqtool.training.losses.distill_targets import DistillTarget, TargetKind, find_kinds, kind_term
from qdqtool.training.losses.nodes import Nodes
from qdqtool.training.losses.points import rescaled
from qdqtool.training.losses.targets import Targets
from qdqtool.training.losses.teacher import Teacher
from tests.graphs import model_of
from tests.training.losses.loss_graphs import DETECTOR, SIZES, bare, outputs_of, shapes_of, term_value

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def found(text: str, shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, tuple[DistillTarget, ...]], frozenset[str]]:
    kinds, covered = find_kinds(GraphView(model_of(text).graph), shapes.keys(), shapes)
    return {kind.name: kind.ends for kind in kinds}, covered


def test_a_detector_ends_in_logits_and_boxes_that_count_where_objects_are() -> None:
    kinds, covered = found(DETECTOR, SIZES)
    assert kinds == {
        "values 4": (DistillTarget("b", "values", 1, ("o", "c")),),
        "sigmoid 1": (DistillTarget("o", "sigmoid", 1, ("c",)),),
        "sigmoid 2": (DistillTarget("c", "sigmoid", 1, ("o",)),),
    }
    assert covered == {"out"}


@pytest.mark.parametrize(
    "cut",
    [
        "c, d = Split<axis=1>(f, sizes)",
        "c = Slice(f, zero, two, one)  d = Slice(f, two, six, one)",
        "c = Gather<axis=1>(f, first)  d = Gather<axis=1>(f, last)",
    ],
)
def test_boxes_that_are_cut_from_the_tensor_of_the_scores_are_a_kind(cut: str) -> None:
    """NanoDet's heads: one convolution gives logits and distances, which are an output of their own."""
    text = f"""net (float[1,3,8,8] x) => (float[1,2,8,8] scores, float[1,4,8,8] distances)
    <float[6,3,1,1] w, int64[2] sizes = {{2,4}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
     int64[1] six = {{6}}, int64[2] first = {{0,1}}, int64[4] last = {{2,3,4,5}}>
    {{ f = Conv(x, w)  {cut}  distances = Relu(d)  scores = Sigmoid(c) }}"""
    shapes = {"f": (1, 6, 8, 8), "c": (1, 2, 8, 8), "d": (1, 4, 8, 8), "distances": (1, 4, 8, 8)}
    kinds, covered = found(text, shapes)
    assert kinds == {
        "sigmoid 2": (DistillTarget("c", "sigmoid", 1),),
        "values 4": (DistillTarget("d", "values", 1, ("c",)),),
    }
    assert covered == {"scores", "distances"}
    _, covered = found(text, {name: shape for name, shape in shapes.items() if name != "d"})
    assert covered == {"scores"}


def test_levels_of_a_pyramid_are_of_one_kind() -> None:
    text = """net (float[1,3,8,8] x) => (float[1,2,8,8] p, float[1,2,4,4] q) <float[2,3,1,1] u, float[2,3,1,1] v>
    { a = Conv(x, u)  p = Sigmoid(a)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
      b = Conv(m, v)  q = Sigmoid(b) }"""
    kinds, covered = found(text, {"a": (1, 2, 8, 8), "b": (1, 2, 4, 4)})
    assert kinds == {"sigmoid 2": (DistillTarget("a", "sigmoid", 1), DistillTarget("b", "sigmoid", 1))}
    assert covered == {"p", "q"}


@pytest.mark.parametrize(("tail", "alone"), [("y = Softmax<axis=1>(g)", True), ("y = Identity(g)", False)])
def test_a_classifier_ends_in_its_logits(tail: str, alone: bool) -> None:
    """Where they are the output, they are held as they are, too."""
    text = f"""net (float[1,3,8,8] x) => (float[1,5] y) <float[4,3,3,3] w, float[4,5] v>
    {{ c = Conv(x, w)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  g = Gemm(f, v)  {tail} }}"""
    kinds, covered = found(text, {"g": (1, 5), "y": (1, 5), "r": (1, 4, 6, 6)})
    assert kinds == {
        form: (DistillTarget("g", form.split()[0], 1),) for form in ["softmax 5", "values 5"][: 1 if alone else 2]
    }
    assert covered == {"y"}


def test_what_the_teacher_lacks_is_no_end() -> None:
    kinds, covered = find_kinds(GraphView(model_of(DETECTOR).graph), {"o", "r"}, SIZES)
    assert [kind.name for kind in kinds] == ["sigmoid 1"]
    assert covered == {"out"}


def test_divergences_are_those_of_the_distributions() -> None:
    random = np.random.default_rng(0)
    s, t = (random.normal(0, 3, (2, 3)).astype(np.float32) for _ in range(2))
    p, q = (1 / (1 + np.exp(-one.astype(np.float64))) for one in (t, s))
    wanted = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum()
    assert term_value(lambda a, b: terms.bernoulli_divergence(a, b).sum(), s=s, t=t) == pytest.approx(wanted, rel=1e-5)
    p, q = (np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in (t.astype(np.float64), s))
    wanted = (p * np.log(p / q)).sum()
    made = term_value(lambda a, b: terms.categorical_divergence(a, b, 1).sum(), s=s, t=t)
    assert made == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("opset", [17, 18])
def test_boxes_count_as_much_as_the_teacher_is_sure(opset: int) -> None:
    random = np.random.default_rng(1)
    sizes = {"b": (1, 4, 2, 2), "c": (1, 3, 2, 2)}
    ours, theirs = ({n: random.normal(size=s).astype(np.float32) for n, s in sizes.items()} for _ in range(2))
    proto = bare(opset, **ours)
    nodes = Nodes(proto, shapes_of(proto))
    targets = Targets(nodes, Teacher(Model(bare(opset, **theirs)), {}))
    value = kind_term(nodes, targets, TargetKind("values 4", (DistillTarget("b", "values", 1, ("c",)),)))
    name = nodes.named(value, "loss")
    fed = {taker: theirs[tensor] for tensor, taker in targets.inputs.items()}
    sure = (1 / (1 + np.exp(-theirs["c"]))).max(axis=1, keepdims=True)
    assert outputs_of(proto, fed)[name] == pytest.approx((np.square(ours["b"] - theirs["b"]) * sure).sum(), rel=1e-5)


def test_channels_on_other_scales_are_seen_and_noise_is_not() -> None:
    random = np.random.default_rng(2)
    plain = random.normal(size=(1, 8, 5, 5)).astype(np.float32)
    factors = np.exp2(random.integers(-2, 3, (1, 8, 1, 1))).astype(np.float32)
    noise = random.normal(0, 0.3, plain.shape).astype(np.float32)
    assert rescaled(plain * factors + noise, plain)
    assert not rescaled(plain + noise, plain)
    assert not rescaled(plain, plain)
