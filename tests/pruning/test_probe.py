# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What a run says of tensors: shapes and types, which integers are the same for every input; and made-up inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.pruning.probe import ProbeRun, TensorFacts, look, seeded_input
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def seen(model: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> TensorFacts:
    return look(ProbeRun(Model(model), feeds or [seeded_input(model.graph)]))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("float[2,3]", (2, 3)),
        ("float[N,3]", (1, 3)),
        ("float[N,3,H]", (1, 3, 64)),
        ("float[3,H,W]", (3, 64, 64)),
        ("float16[2]", (2,)),
        ("double[2]", (2,)),
    ],
)
def test_an_input_is_made_for_free_axes(kind: str, shape: tuple[int, ...]) -> None:
    model = model_of(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}")
    made = seeded_input(model.graph)["x"]
    assert made.shape == shape and np.isfinite(made).all() and np.ptp(made) > 0
    assert made.dtype == {"double": np.float64, "float16": np.float16}.get(kind.split("[")[0], np.float32)
    assert (made == seeded_input(model.graph)["x"]).all(), "the same each time"


def test_other_lengths_are_made_where_they_are_asked_for() -> None:
    model = model_of("g (float[N,3,H] x, int64[N] i) => (float[N,3,H] y) { y = Identity(x) }")
    made = seeded_input(model.graph, 96, 2)
    assert made["x"].shape == (2, 3, 96) and made["i"].shape == (2,) and set(made["i"].tolist()) <= {0, 1}


def test_an_input_without_a_rank_or_of_words_wants_data() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(QdqError, match=r"x: .*unknown rank.*--data"):
        seeded_input(model.graph)


def test_shapes_and_types_are_those_of_the_run() -> None:
    model = model_of(
        "g (float[2,3] x) => (float[6] y) <int64[1] flat = {-1}, float[3] c> { a = Add(x, c)  b = Cast<to=10>(a)  h = Cast<to=1>(b)  y = Reshape(h, flat) }"
    )
    facts = seen(model)
    assert facts.shapes["a"] == (2, 3) and facts.shapes["y"] == (6,) and facts.shapes["x"] == (2, 3)
    assert facts.types["b"] == np.float16 and facts.types["a"] == np.float32
    assert "c" not in facts.shapes, "a constant has its own"


def test_integers_of_shapes_are_fixed_where_the_input_has_one_size() -> None:
    model = model_of(
        "g (float[2,3] x) => (int64[1] y) <int64[1] one = {1}, int64[1] two = {2}> { s = Shape(x)  y = Slice(s, one, two) }"
    )
    assert seen(model).fixed["y"].tolist() == [3]


def test_integers_that_a_second_input_changes_are_not() -> None:
    model = model_of("g (float[N,3,H] x) => (int64[3] y) { y = Shape(x) }")
    feeds = [seeded_input(model.graph), seeded_input(model.graph, 96, 2)]
    assert "y" not in seen(model, *feeds).fixed


def test_integers_that_values_decide_are_never_fixed_by_one_run() -> None:
    model = model_of("g (float[2,3] x) => (int64[2,1] y) { y = ArgMax<axis=1>(x) }")
    assert "y" not in seen(model).fixed


def test_a_length_that_is_free_in_name_only_says_nothing_of_integers() -> None:
    """The second input cannot be run: nothing is taken for the same for all inputs."""
    model = model_of("g (float[N,3] x) => (float[N,3] y) <int64[2] to = {1,3}> { s = Shape(x)  y = Reshape(x, to) }")
    feeds = [seeded_input(model.graph), seeded_input(model.graph, 96, 2)]
    facts = seen(model, *feeds)
    assert facts.fixed == {} and facts.shapes["y"] == (1, 3)


def test_a_model_that_does_not_run_is_refused() -> None:
    model = model_of("g (float[2,3] x) => (float[a,b] y) <float[4,2] c> { y = MatMul(x, c) }")
    with pytest.raises(QdqError, match="model"):
        seen(model)
