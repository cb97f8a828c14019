# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Resizes that become poolings: the same values come out, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import LintOptions
from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types
from qdqtool.graph.view import GraphView
from qdqtool.passes.pooled_resize import find_pooled_resizes
from qdqtool.trtversion import parse
from qdqtool.verbs.lint import lint
from tests.graphs import model_of
from tests.ort_session import session_of

V8 = parse("8.2.1")
HALF = '<mode="linear", coordinate_transformation_mode="half_pixel">'
NEAREST = '<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'


def smaller(
    way: str = HALF, scales: str = "1, 1, 0.5, 0.5", out: str = "1,4,4,6", kind: str = "float"
) -> onnx.ModelProto:
    text = f"g ({kind}[1,4,8,12] x) => ({kind}[{out}] y) <float[4] s = {{{scales}}}> {{ c = Relu(x) y = Resize{way}(c, , s) }}"
    return model_of(text, 13)


def by_sizes(way: str, sizes: str) -> onnx.ModelProto:
    text = f"g (float[1,4,8,12] x) => (float[{sizes}] y) <int64[4] s = {{{sizes}}}> {{ c = Relu(x) y = Resize{way}(c, , , s) }}"
    return model_of(text, 13)


def found(model: onnx.ModelProto) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    chosen = find_pooled_resizes(GraphView(model.graph), known_types(Model(model)))
    return [(one.op, one.kernel, one.strides) for one in chosen]


def run(model: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=(1, 4, 8, 12)).astype(np.float32)
    return np.asarray(session_of(model).run(None, {"x": x})[0])


SMALLER = {
    "linear": (smaller(), ("AveragePool", (2, 2), (2, 2))),
    "linear of one axis": (smaller(HALF, "1, 1, 1, 0.5", "1,4,8,6"), ("AveragePool", (1, 2), (1, 2))),
    "linear of PyTorch": (smaller(HALF.replace("half_", "pytorch_half_")), ("AveragePool", (2, 2), (2, 2))),
    "linear by sizes": (by_sizes(HALF, "1,4,4,6"), ("AveragePool", (2, 2), (2, 2))),
    "nearest": (smaller(NEAREST), ("MaxPool", (1, 1), (2, 2))),
    "nearest by four": (smaller(NEAREST, "1, 1, 0.25, 0.25", "1,4,2,3"), ("MaxPool", (1, 1), (4, 4))),
    "nearest, rounded up": (smaller(NEAREST.replace('"floor"', '"ceil"')), ("MaxPool", (1, 1), (2, 2))),
}


@pytest.mark.parametrize(("model", "expected"), SMALLER.values(), ids=SMALLER)
def test_the_pooling_gives_the_same_values(model: onnx.ModelProto, expected: tuple[object, ...]) -> None:
    assert found(model) == [expected]
    fixed = lint(model, LintOptions("dla", V8, fix=("Q030",)))
    assert any(note.startswith("Q030: 1 Resize ") for note in fixed.notes)
    onnx.checker.check_model(fixed.model, full_check=True)
    np.testing.assert_allclose(run(fixed.model), run(model), rtol=0, atol=1e-6)
    assert [node.op_type for node in fixed.model.graph.node] == ["Relu", expected[0]]
    assert not fixed.model.graph.initializer
    assert fixed.dla is not None and not fixed.dla.fallbacks


OTHERS = {
    "larger": smaller(HALF, "1, 1, 2, 2", "1,4,16,24"),
    "linear to a quarter": smaller(HALF, "1, 1, 0.25, 0.25", "1,4,2,3"),
    "corners": smaller(HALF.replace("half_pixel", "align_corners")),
    "cubic": smaller(HALF.replace("linear", "cubic")),
    "nearest at half pixels": smaller(NEAREST.replace("asymmetric", "half_pixel")),
    "linear from the corner": smaller(HALF.replace("half_pixel", "asymmetric")),
    "scales that are no half": smaller(NEAREST, "1, 1, 0.52, 0.52", "1,4,4,6"),
    "a third": smaller(NEAREST, "1, 1, 1, 0.33333334", "1,4,8,4"),
    "halves": smaller(kind="float16"),
    "PyTorch, one wide": model_of(
        "g (float[1,4,2,12] x) => (float[1,4,1,6] y) <float[4] s = {1, 1, 0.5, 0.5}> { c = Relu(x) y = Resize"
        + HALF.replace("half_", "pytorch_half_") + "(c, , s) }", 13
    ),
    "scales from outside": model_of(
        f"g (float[1,4,8,12] x, float[4] s) => (float[1,4,4,6] y) {{ c = Relu(x) y = Resize{HALF}(c, , s) }}", 13
    ),
    "strided convolution": model_of(
        "g (float[1,4,8,12] x) => (float[1,4,4,6] y) <float[4,4,1,1] w> { c = Relu(x) y = Conv<strides=[2,2]>(c, w) }", 13
    ),
    "antialiased": model_of(
        'g (float[1,4,8,12] x) => (float[1,4,4,6] y) <float[4] s = {1, 1, 0.5, 0.5}> { c = Relu(x) y = Resize<mode="linear", antialias=1>(c, , s) }', 18
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_taken_for_a_pooling(model: onnx.ModelProto) -> None:
    assert found(model) == []


def test_an_old_resize_chooses_the_mode_alone() -> None:
    text = (
        "g (float[1,4,8,12] x) => (float[1,4,4,6] y) <float[4] s = {1, 1, 0.5, 0.5}> { c = Relu(x) y = Resize(c, s) }"
    )
    assert found(model_of(text, 10)) == [("MaxPool", (1, 1), (2, 2))]
    assert found(model_of(text.replace("Resize", 'Resize<mode="linear">'), 10)) == []


def test_the_finding_names_the_pooling_and_shuffles_go_with_it() -> None:
    text = (
        "g (float[1,4,8,12] x) => (float[1,4,4,6] y) <float[4,4,1,1] w, float[4] s = {1, 1, 0.5, 0.5}, "
        "int64[5] five = {1, 2, 2, 4, 6}, int64[4] four = {1, 4, 4, 6}> { c = Conv(x, w) h = Resize"
        + HALF
        + "(c, , s) a = Reshape(h, five) b = Transpose<perm=[0,2,1,3,4]>(a) d = Reshape(b, four) y = Conv(d, w) }"
    )
    model = model_of(text, 13)
    weight = np.random.default_rng(0).normal(size=(4, 4, 1, 1)).astype(np.float32)
    next(one for one in model.graph.initializer if one.name == "w").CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    before = lint(model, LintOptions("dla", V8, select=("Q030",)))
    assert any("as the AveragePool that it is" in one.fix and one.fixable for one in before.findings)
    fixed = lint(model, LintOptions("dla", V8, fix=("Q030",)))
    assert [node.op_type for node in fixed.model.graph.node] == ["Conv", "AveragePool", "Conv", "Conv"]
    np.testing.assert_allclose(run(fixed.model), run(model), rtol=0, atol=1e-5)
    assert fixed.dla is not None and len(fixed.dla.subgraphs.members) == 1
