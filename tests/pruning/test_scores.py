# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What a channel is worth, by hand: TAO's norms, normalizers and equalizations."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.pruning.scores import Equalization, Normalizer, class_scores, equalized, filter_norms, normalized
from tests.graphs import model_of
from tests.pruning.nets import channels_of, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("max", [0.6, 0.8, 1.0]),
        ("L2", [3 / 50**0.5, 4 / 50**0.5, 5 / 50**0.5]),
    ],
)
def test_norms_of_a_layer_are_divided(how: Normalizer, expected: list[float]) -> None:
    assert normalized(np.array([3.0, 4.0, 5.0]), how) == pytest.approx(expected)


@pytest.mark.parametrize("how", ["max", "L2"])
def test_a_layer_of_zeros_stays_zero(how: Normalizer) -> None:
    assert normalized(np.zeros(3), how).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("union", 0.9), ("intersection", 0.1), ("arithmetic_mean", 0.5), ("geometric_mean", 0.3)],
)
def test_filters_that_are_one_channel(how: Equalization, expected: float) -> None:
    assert equalized([0.1, 0.9], how) == pytest.approx(expected)


def test_a_filter_counts_by_its_l2_norm_without_its_bias() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,1,4,4] y) <float[2,2,1,1] w, float[2] b, float[1,2,1,1] u> { a = Conv(x, w, b)  y = Conv(a, u) }"
    weight = np.array([[3, 4], [6, 8]]).reshape(2, 2, 1, 1)
    channels = channels_of(with_values(model_of(text), w=weight, b=np.array([100, 0])))
    assert class_scores(channels, channels.groups[0]).tolist() == pytest.approx([0.5, 1.0])
    assert class_scores(channels, channels.groups[0], "L2") == pytest.approx([5 / 125**0.5, 10 / 125**0.5])


@pytest.mark.parametrize(("how", "expected"), [("union", [1.0, 1.0]), ("intersection", [0.5, 0.25])])
def test_operands_of_an_add_are_equalized(how: Equalization, expected: list[float]) -> None:
    text = "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[2,1,1,1] w, float[2,1,1,1] v, float[1,2,1,1] u> { a = Conv(x, w)  b = Conv(x, v)  c = Add(a, b)  y = Conv(c, u) }"
    weights = {"w": np.array([1, 2]).reshape(2, 1, 1, 1), "v": np.array([4, 1]).reshape(2, 1, 1, 1)}
    channels = channels_of(with_values(model_of(text), **weights))
    assert class_scores(channels, channels.groups[0], "max", how).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("constants", "nodes", "axis"),
    [
        ("float[4,6] w, float[6,2] u", "a = MatMul(x, w)  y = MatMul(a, u)", 1),
        ("float[4,6] w, float[6,2] u", "a = Gemm(x, w)  y = MatMul(a, u)", 1),
        ("float[6,4] w, float[6,2] u", "a = Gemm<transB=1>(x, w)  y = MatMul(a, u)", 0),
    ],
)
def test_matrices_by_their_output_axis(constants: str, nodes: str, axis: int) -> None:
    model = model_of(f"g (float[1,4] x) => (float[1,2] y) <{constants}> {{ {nodes} }}")
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    norms = np.sqrt(np.square(weight).sum(axis=1 - axis))
    channels = channels_of(model)
    assert class_scores(channels, channels.groups[0]) == pytest.approx(norms / norms.max())


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_by_its_output_axis(groups: int) -> None:
    text = f"g (float[1,4,4,4] x) => (float[1,1,4,4] y) <float[4,{6 // groups},1,1] w, float[1,6,1,1] u> {{ a = ConvTranspose<group={groups}>(x, w)  y = Conv(a, u) }}"
    model = model_of(text)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    norms = np.sqrt(np.square(weight.reshape(groups, 4 // groups, -1)).sum(axis=1)).reshape(-1)
    channels = channels_of(model)
    expected = (norms / norms.max()).reshape(groups, -1).max(axis=0)
    assert class_scores(channels, channels.groups[0]) == pytest.approx(expected)


def test_a_weight_that_cannot_be_read_is_refused_by_name() -> None:
    """What the graph computes of constants is read where it can be folded; this one cannot be."""
    model = model_of(
        "g (float[1,4,8,8] x) => (float[1,2,8,8] y) <float[8,4,1,1] w, float[2,8,1,1] u> { a = Conv(x, w)  y = Conv(a, u) }"
    )
    channels = channels_of(model)
    axis = channels.groups[0].made[0]
    channels.view.initializers.pop(axis.use.node.inputs[1])
    with pytest.raises(QdqError, match=r"a weight .*--exclude"):
        filter_norms(channels, axis)
