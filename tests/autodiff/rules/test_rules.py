# SPDX-License-Identifier: Apache-2.0
"""Every rule against central differences, on every way of using its operator that the table of cases has."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.activity import STOPS
from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.backends import Builtin
from qdqtool.autodiff.rules import convolution
from qdqtool.autodiff.rules.fusion import SILU
from qdqtool.autodiff.rules.pairs import PAIR
from qdqtool.autodiff.rules.table import DECOMPOSED, RULES
from tests.autodiff.numeric import (
    RuleCase,
    differences,
    distinct,
    forward_of,
    loss_function,
    model_of_case,
    run_whole,
    with_loss,
)
from tests.autodiff.rule_cases import CASES, CONVOLUTION
from tests.ort_session import session_of

# Float32 sums behind central differences of fourth order with step 0.01: their rounding is 1e-5 of the largest number.
TOLERANCE = 2e-4


def check(case: RuleCase, backend: GradientBackend | None = None) -> None:
    """The gradients of a case, by default those of the built-in back end, against differences."""
    rng = np.random.default_rng(3)
    values = {
        name: distinct(rng, [int(n) for n in shape.split(",") if n], case.low, case.high)
        for name, shape in case.params.items()
    }
    model = model_of_case(case, values)
    weights = with_loss(model, case.outputs, run_whole(model, {}), rng)
    f = loss_function(model, weights, list(values))
    graph = (backend or Builtin()).build(forward_of(model, list(values)))
    if backend is None:
        onnx.checker.check_model(graph.proto, full_check=True)
    answers = dict(
        zip(graph.gradients, session_of(graph.proto).run(list(graph.gradients.values()), values), strict=True)
    )
    for name in values:
        expected = differences(f, values, name)
        assert answers[name].shape == values[name].shape
        assert np.abs(answers[name] - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_differences(case: RuleCase) -> None:
    check(case)


@pytest.mark.parametrize("case", CONVOLUTION, ids=lambda case: case.name)
def test_convolutions_by_the_ways_of_large_ones(case: RuleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of images and channels, flipped weights and long rows, which small shapes do not come to otherwise."""
    monkeypatch.setattr(convolution, "_BLOCK", 20)
    monkeypatch.setattr(convolution, "_LARGE_BUFFER", 0)
    monkeypatch.setattr(convolution, "_LONG_ROW", 2)
    monkeypatch.setattr(convolution, "_NARROW", 0)
    check(case)


def test_every_rule_has_a_case() -> None:
    tested = set(re.findall(r"= (\w+)", "\n".join(case.nodes for case in CASES)))
    assert {*RULES, *DECOMPOSED} - {PAIR, SILU} <= tested


def test_no_operator_both_stops_and_passes_on() -> None:
    assert not STOPS & {*RULES, *DECOMPOSED}


def gradient_at(nodes: str, x: object, opset: int = 17, **constants: object) -> np.ndarray:
    """The gradient of sum(y * (1, 2, 3, ...)) by x."""
    values = {"x": np.asarray(x, np.float32)}
    model = model_of_case(RuleCase(nodes, {}, constants, opset), values)
    shape = run_whole(model, {})["y"].shape
    weight = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["y", "weight"], ["weighted"]))
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0))
    graph = Builtin().build(forward_of(model, ["x"]))
    found: np.ndarray = session_of(graph.proto).run(["x_grad"], values)[0]
    return found


CORNERS = [  # where no difference quotient tells what the field takes: borders, ties, zeros
    ("y = Relu(x)", [0, 1], [0, 2]),
    ("y = Abs(x)", [0, -1], [0, -2]),
    ("low = Constant<value_float=-1.0>() y = Clip(x, low)", [-1, -1.5, 0], [1, 0, 3]),
    ("y = ReduceMax<axes=[1]>(x)", [[1, 1], [0, 2]], [[0.5, 0.5], [0, 2]]),
    ("y = ReduceL2<axes=[1]>(x)", [[0, 0], [3, 4]], [[0, 0], [1.2, 1.6]]),
    ("y = ReduceProd<axes=[1]>(x)", [[2, 3], [0, 3], [0, 0]], [[3, 2], [6, 0], [0, 0]]),
    ("y = Max(x, x)", [1, 2], [1, 2]),
    ("z = Constant<value_floats=[1.0, 5.0]>() y = Max(x, z)", [1, 2], [0.5, 0]),
    ("z = Constant<value_float=2.0>() y = Pow(x, z)", [0, -1], [0, -4]),
    ("y = HardSwish(x)", [-3, 3], [0, 2]),
]


@pytest.mark.parametrize(("nodes", "x", "expected"), CORNERS, ids=[nodes for nodes, _, _ in CORNERS])
def test_corners(nodes: str, x: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(gradient_at(nodes, x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("how", "kernel", "stride", "pad"),
    [
        ("kernel_shape=[2,2], strides=[2,2]", 2, 2, 0),
        ("kernel_shape=[3,3], pads=[1,1,1,1]", 3, 1, 1),
        ("kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", 3, 2, 1),
    ],
    ids=["tiles", "one place apart", "others"],
)
def test_the_first_of_equal_maxima_gets_the_gradient(how: str, kernel: int, stride: int, pad: int) -> None:
    """Quantized activations tie in most windows."""
    x = np.random.default_rng(2).integers(-1, 2, (1, 2, 6, 6)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    expected = np.zeros_like(padded)
    count = (6 + 2 * pad - kernel) // stride + 1
    for number, (c, i, j) in enumerate(np.ndindex(2, count, count)):
        window = padded[0, c, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        row, column = np.unravel_index(np.argmax(window), window.shape)
        expected[0, c, i * stride + row, j * stride + column] += number + 1
    inner = expected[:, :, pad : 6 + pad, pad : 6 + pad]
    np.testing.assert_array_equal(gradient_at(f"y = MaxPool<{how}>(x)", x), inner)
