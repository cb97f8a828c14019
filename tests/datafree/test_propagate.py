# SPDX-License-Identifier: Apache-2.0
"""Mean and deviation after each operator against random values through the reference; bounds; what is only guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from qdqtool.datafree.known_tensors import KnownTensors
from qdqtool.datafree.moments import Moments
from qdqtool.datafree.propagate import propagate
from qdqtool.graph.view import GraphView

SHAPE = (64, 4, 8, 8)
MEANS, DEVIATIONS = np.array([1.0, -0.5, 0.0, 2.0]), np.array([1.0, 2.0, 0.5, 1.5])
STATISTICS = """float[4] gamma = {1, 2, 0.5, 1.5}, float[4] beta = {1, -0.5, 0, 2}, float[4] zeros = {0, 0, 0, 0},
 float[4] ones = {1, 1, 1, 1}"""


def model_of(body: str, weights: str, head: str) -> onnx.ModelProto:
    made = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g ({head}) => (float OUT) <{STATISTICS}{weights and ", "}{weights}> {{ {body} }}""")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def moments_behind(body: str, weights: str = "") -> Moments:
    """What is expected of OUT, where Y comes out of a BatchNormalization with known statistics."""
    norm = "Y = BatchNormalization(X, gamma, beta, zeros, ones)"
    view = GraphView(model_of(f"{norm} {body}", weights, f"float[{','.join(map(str, SHAPE))}] X").graph)
    known = KnownTensors(view)
    for node in view.nodes:
        for name, found in zip(node.outputs, propagate(known, node), strict=True):
            known.moments[name] = found if found.source else replace(found, source=name)
    return known.moments["OUT"]


def overall(found: Moments) -> tuple[float, float]:
    """Mean and deviation of all values together, by the law of total variance."""
    return float(found.mean.mean()), float(np.sqrt(found.var.mean() + found.mean.var()))


def measured(body: str, weights: str) -> tuple[float, float]:
    """The same of OUT in a run with normal Y."""
    draw = np.random.default_rng(7).standard_normal(SHAPE)
    y = (draw * DEVIATIONS[:, None, None] + MEANS[:, None, None]).astype(np.float32)
    (out,) = ReferenceEvaluator(model_of(body, weights, "float[N,4,8,8] Y")).run(None, {"Y": y})
    return float(np.mean(out)), float(np.std(out))


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("OUT = InstanceNormalization(Y, gamma, beta)", ""),
        ("OUT = GroupNormalization<num_groups=4>(Y, gamma, beta)", ""),
        ("OUT = MeanVarianceNormalization<axes=[0,2,3]>(Y)", ""),
        ("A, OUT = Split<axis=1, num_outputs=2>(Y)", ""),
        ("OUT, A = Split<axis=-3>(Y, sizes)", "int64[2] sizes = {3, 1}"),
        ("OUT = Gather<axis=1>(Y, places)", "int64[3] places = {3, 3, 1}"),
        ("OUT = Slice(Y, one, three, one)", "int64[1] one = {1}, int64[1] three = {3}"),
        ("A = Neg(Y) OUT = Concat<axis=1>(Y, A)", ""),
        ("OUT = Sum(Y, Y, last)", "float last = {1}"),
        ("A = Mul(Y, two) OUT = Mean(Y, A)", "float two = {3}"),
        ("OUT = Div(Y, two)", "float two = {4}"),
        ("OUT = Transpose(Y)", ""),
        ("A = Unsqueeze(Y, at) OUT = Squeeze(A, at)", "int64[1] at = {1}"),
    ],
)
def test_mean_and_deviation_are_those_of_random_values(body: str, weights: str) -> None:
    found, (mean, deviation) = moments_behind(body, weights), measured(body, weights)
    # 16,384 values know their mean to less than 1 % of the deviation
    assert overall(found) == pytest.approx((mean, deviation), rel=0.03, abs=0.03 * deviation)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("OUT = ReduceMean<keepdims=0>(Y, axes)", "int64[2] axes = {2, 3}"),
        ("OUT = ReduceSum(Y, axes)", "int64[2] axes = {2, -1}"),
        ("OUT = ReduceSumSquare(Y, axes)", "int64[2] axes = {2, 3}"),
        ("OUT = ReduceL2(Y, axes)", "int64[2] axes = {2, 3}"),
        ("OUT = GlobalAveragePool(Y)", ""),
    ],
)
def test_places_are_taken_for_alike_so_sums_over_them_vary_more(body: str, weights: str) -> None:
    (mean, deviation), (low, most) = overall(moments_behind(body, weights)), measured(body, weights)
    assert mean == pytest.approx(low, rel=0.05, abs=0.02) and most <= deviation < 1.25 * most


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("OUT = Softmax<axis=1>(Y)", 0.0, 1.0),
        ("OUT = LogSoftmax<axis=1>(Y)", -np.inf, 0.0),
        ("OUT = LpNormalization<axis=1>(Y)", -1.0, 1.0),
        ("A = Sigmoid(Y) OUT = ReduceMax<keepdims=0>(A)", 0.0, 1.0),
        ("A = Relu(Y) OUT = ReduceSumSquare(A)", 0.0, np.inf),
        ("A = Greater(Y, ones4) OUT = Cast<to=1>(A)", 0.0, 1.0),
        ("A = Sigmoid(Y) B = ArgMax(Y) OUT = Gather<axis=0>(A, B)", 0.0, 1.0),
        ("A = Tanh(Y) OUT = Pad(A, pads)", -1.0, 1.0),
        ('A = Tanh(Y) OUT = Pad<mode="reflect">(A, pads)', -1.0, 1.0),
    ],
)
def test_bounds_hold_behind(body: str, low: float, high: float) -> None:
    pads = "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float[4,1,1] ones4 = {1, 1, 1, 1}"
    found = moments_behind(body, pads)
    assert low <= found.lo and found.hi <= high


@pytest.mark.parametrize(
    "body",
    [
        "OUT = NoSuchOperator(Y)",
        "OUT = BatchNormalization(Y, Y, beta, zeros, ones)",  # computed statistics
        "OUT = BatchNormalization<training_mode=1>(Y, gamma, beta, zeros, ones)",
        "OUT, mean, var = BatchNormalization(Y, gamma, beta, zeros, ones)",  # before opset 14 it trains by its outputs
        "W = Relu(gamma) OUT = Conv(Y, W)",  # a weight that an operator makes
        "OUT = Conv<group=0>(Y, gamma)",
        # a bias of two axes that an operator makes
        "W = ConstantOfShape(four) B = ConstantOfShape(two) OUT = Conv(Y, W, B)",
    ],
)
def test_what_no_rule_knows_is_a_guess(body: str) -> None:
    assert not moments_behind(body, "int64[4] four = {4, 4, 1, 1}, int64[2] two = {4, 1}").known


def test_an_uneven_split_without_shapes_is_alike_in_every_part() -> None:
    found = moments_behind("A, B, OUT = Split<axis=1, num_outputs=3>(Y)")
    assert np.all(found.mean == found.mean.reshape(-1)[0])


@pytest.mark.parametrize(
    "body",
    [
        "Z = Relu(empty) OUT = GlobalAveragePool(Z)",
        "OUT = ReduceMean<keepdims=1>(empty, two)",
        "OUT = Add(empty, Y)",
        "F = Flatten(Y) OUT = MatMul(F, wide)",
        "F = Flatten(Y) OUT = Gemm(F, wide)",
        "OUT = MatMul(wide, Y)",
    ],
)
def test_a_constant_without_values_takes_no_memory_however_long_its_other_axes_are(body: str) -> None:
    """The mean over an axis of no length is as large as the others: 512 GiB from 1.6 kB."""
    weights = "float[2147483647, 8, 0, 4] empty = {}, float[0, 2147483647] wide = {}, int64[1] two = {2}"
    found = moments_behind(body, weights)
    assert found.mean.size <= 8192 and np.isfinite([found.low, found.high]).all()
