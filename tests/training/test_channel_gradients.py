# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Gradients of what a network says, without labels: by hand for each kind of end, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.channel_gradients import channel_gradients
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

SAMPLE = {"x": np.array([[0.3, -0.7]], np.float32)}
ROWS = {"x": SAMPLE["x"][None]}
# Three features behind factors g; what they are read by gives them out as they are.
CLASSES = "n (float[N,2] x) => (float[N,3] y) <float[2,3] w, float[1,3] g = {1,1,1}, float[3,3] v = {1,0,0,0,1,0,0,0,1}> { h = MatMul(x, w)  z = Mul(h, g)  y = MatMul(z, v) }"
VALUES = CLASSES.replace("float[N,2]", "float[N,1,2]").replace("float[N,3]", "float[N,1,3]")
PRESENT = CLASSES.replace("y = MatMul(z, v)", "l = MatMul(z, v)  y = Sigmoid(l)").replace("float[N", "float[N,1")
NAMED = CLASSES.replace("y = MatMul(z, v)", "l = MatMul(z, v)  y = Softmax<axis=1>(l)")


def gradients(text: str, sample: dict[str, np.ndarray], samples: int) -> np.ndarray:
    """[samples, 3]: the gradient by each factor, drawn again and again for the same sample."""
    found = channel_gradients(Model(model_of(text)), ["g"], [sample] * samples)
    return np.stack([one["g"] for one in found])


def features(text: str) -> np.ndarray:
    weight = next(tensor for tensor in model_of(text).graph.initializer if tensor.name == "w")
    found: np.ndarray = (SAMPLE["x"] @ onnx.numpy_helper.to_array(weight))[0].astype(np.float64)
    return found


def test_values_count_by_their_share_of_the_output() -> None:
    z = features(VALUES)
    found = np.abs(gradients(VALUES, ROWS, 3))
    assert found == pytest.approx(np.tile(np.abs(z) / np.sqrt(np.square(z).sum()), (3, 1)), rel=1e-4)


@pytest.mark.slow
def test_what_a_softmax_says_counts_by_its_fisher_information() -> None:
    """The covariance of the gradients is z z' times diag(p) - p p'."""
    z = features(NAMED)
    p = np.exp(z) / np.exp(z).sum()
    wanted = (np.diag(p) - np.outer(p, p)) * np.outer(z, z)
    found = gradients(NAMED, SAMPLE, 3000)
    assert found.T @ found / len(found) == pytest.approx(wanted, abs=0.06 * np.abs(wanted).max())


def test_what_a_sigmoid_says_counts_by_its_variance() -> None:
    z = features(PRESENT)
    p = 1 / (1 + np.exp(-z))
    found = gradients(PRESENT, ROWS, 2)
    assert np.abs(found) == pytest.approx(np.tile(np.abs(z) * np.sqrt(p * (1 - p)), (2, 1)), rel=1e-4)


def test_the_same_samples_give_the_same_gradients() -> None:
    assert np.array_equal(gradients(CLASSES, SAMPLE, 4), gradients(CLASSES, SAMPLE, 4))


def test_a_constant_that_nothing_depends_on_is_left_out() -> None:
    model = model_of(CLASSES.replace("float[3,3] v", "float[1,3] k, float[3,3] v").replace("} }", "}  u = Mul(h, k) }"))
    (found,) = channel_gradients(Model(model), ["g", "k"], [SAMPLE])
    assert set(found) == {"g"}


def test_no_samples_give_no_gradients() -> None:
    assert list(channel_gradients(Model(model_of(CLASSES)), ["g"], [])) == []


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(QdqError):
        list(channel_gradients(Model(model_of(CLASSES)), ["g"], [{"x": np.zeros((1, 5), np.float32)}]))
