# SPDX-License-Identifier: Apache-2.0
"""Ranges without data: each rule against hand-written numbers or against many random values through the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.datafree.estimate import estimate_scales
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.scales import ScaleTable
from tests.datafree.estimated import BN, STATISTICS, amax, estimate, model, of
from tests.steps import assert_linear


def test_behind_a_batch_norm_is_beta_and_six_gamma() -> None:
    table = estimate(f"{BN} OUT = Relu(Y)")
    assert amax(table, "Y") == pytest.approx(13)  # 1 + 6*2 in channel 0, 5 + 6*1 in channel 1
    assert amax(table, "OUT") == pytest.approx(13)
    assert table["Y"].method == "bn-statistics"
    assert table["OUT"].method == "moments"
    assert {scale.origin for scale in (table[name] for name in table)} == {"estimated"}


def test_relu_cuts_the_negative_side_away() -> None:
    weights = STATISTICS.replace("beta = {1, 5}", "beta = {-20, -9}")
    table = estimate(f"{BN} OUT = Relu(Y)", weights)
    assert amax(table, "Y") == pytest.approx(32)  # 20 + 6*2
    assert table["OUT"].method == "guess"  # nothing is left: every scale is as good
    table = estimate(f"{BN} OUT = Relu(Y)", weights.replace("-9", "-4"))
    assert amax(table, "OUT") == pytest.approx(2)  # -4 + 6*1


def test_what_a_batch_norm_reads_has_its_running_statistics() -> None:
    weights = STATISTICS + ", float[2,2,1,1] W = {1, 2, 3, 4}"
    table = estimate("C = Conv(X, W) OUT = BatchNormalization(C, gamma, beta, mean, var)", weights)
    assert amax(table, "C") == pytest.approx(3 + 6 * 3, rel=1e-4)  # epsilon is in the variance
    assert table["C"].method == "bn-statistics"


@pytest.mark.parametrize(
    ("operator", "most"),
    [
        ("Clip(Y, zero, six)", 6.0),
        ("Sigmoid(Y)", 1.0),
        ("Tanh(Y)", 1.0),
        ("HardSigmoid(Y)", 1.0),
        ("Softmax<axis=1>(Y)", 1.0),
        ("Softsign(Y)", 1.0),
        ("Erf(Y)", 1.0),
    ],
)
def test_bounds_of_an_operator_hold(operator: str, most: float) -> None:
    table = estimate(f"{BN} OUT = {operator}", STATISTICS + ", float zero = {0}, float six = {6}")
    assert 0.5 * most < amax(table, "OUT") <= most * (1 + 1e-6)
    assert table["OUT"].method in ("bounds", "moments")


def test_nothing_behind_relu6_passes_six() -> None:
    constants = ", float zero = {0}, float six = {6}, int64[4] shape = {1, 4, 4, 8}, float[2,2,1,1] W = {1,0,0,1}"
    table = estimate(
        f"""{BN} C = Clip(Y, zero, six)  A = MaxPool<kernel_shape=[2,2]>(C) B = AveragePool<kernel_shape=[2,2]>(C)
            D = Concat<axis=1>(C, C) E = GlobalAveragePool(C) F = Reshape(C, shape) OUT = Conv(C, W)""",
        STATISTICS + constants,
    )
    assert all(amax(table, name) <= 6 * (1 + 1e-6) for name in "CABDEF")
    assert amax(table, "A") == amax(table, "D") == amax(table, "F") == amax(table, "C")


# -------------------------------------------------------------------------------------------- the input


def solvable(mean: float, deviation: float, front: str = "") -> ScaleTable:
    """A convolution over independent values of this mean and deviation, and the statistics it would leave."""
    weight = np.random.default_rng(5).standard_normal((16, 3, 3, 3)).astype(np.float32)
    wide = weight.astype(np.float64).reshape(16, -1)
    proto = model(
        f"{front or 'P = Identity(X)'} C = Conv(P, W) OUT = BatchNormalization(C, s, s, m, v)",
        "float[1] W = {0}, float[1] s = {0}, float[1] m = {0}, float[1] v = {0}, float half = {0.5}, float k = {4}, "
        "int64[4] places = {1, 3, 8, 8}",
        "float[1,3,8,8] X",
    )
    values = [weight, np.ones(16), wide.sum(1) * mean + 0, (wide**2).sum(1) * deviation**2]
    for tensor, value in zip(list(proto.graph.initializer)[:4], values, strict=True):
        tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32), tensor.name))
    return of(proto)


def test_input_is_solved_back_from_the_first_batch_norm() -> None:
    table = solvable(0.4, 1.5)
    assert amax(table, "X") == pytest.approx(0.4 + 3 * 1.5, rel=1e-3)
    assert table["X"].method == "bn-statistics"


def test_input_is_solved_back_through_preprocessing() -> None:
    table = solvable(0.4, 1.5, "A = Sub(X, half) P = Mul(A, k)")
    assert amax(table, "X") == pytest.approx((0.4 / 4 + 0.5) + 3 * 1.5 / 4, rel=1e-3)


@pytest.mark.parametrize(
    "front", ["P = Dropout(X)", "F = Flatten<axis=3>(X) P = Reshape(F, places)", "P = DepthToSpace<blocksize=1>(X)"]
)
def test_input_is_solved_back_through_what_moves_every_value_once(front: str) -> None:
    table = solvable(0.4, 1.5, front)
    assert amax(table, "X") == pytest.approx(0.4 + 3 * 1.5, rel=1e-3)
    assert table["X"].method == "bn-statistics"


def test_input_without_statistics_is_a_guess_and_so_is_what_follows() -> None:
    table = estimate("A = Relu(X) S = Sigmoid(X) OUT = Mul(A, A)", "float n = {0}")
    assert amax(table, "X") == pytest.approx(3)
    assert [table[name].method for name in ("X", "A", "OUT")] == ["guess"] * 3
    assert table.provenance.origins["guess"] >= 3


def test_given_range_is_kept_and_ends_guessing() -> None:
    table = estimate("A = Neg(X) OUT = Add(A, A)", "float n = {0}", input_range=(-2, 255))
    assert amax(table, "X") == amax(table, "A") == pytest.approx(255)
    assert amax(table, "OUT") == pytest.approx(510)
    assert table["X"].method == "given"
    assert "guess" not in table.provenance.origins


@pytest.mark.parametrize("given", [(1, 1), (2, 1), (0, float("inf")), (float("nan"), 1)])
def test_range_that_is_none_is_refused(given: tuple[float, float]) -> None:
    with pytest.raises(QdqError, match="--input-range"):
        estimate("OUT = Relu(X)", "float n = {0}", input_range=given)


# ---------------------------------------------------------------------------------------- strange graphs

STRANGE = [
    "OUT = other.Thing(X)",
    "A = Exp(X) B = Exp(A) C = Exp(B) OUT = Mul(C, C)",
    "A = Mul(X, big) B = Mul(A, big) C = Mul(B, B) D = Mul(C, C) OUT = Softmax(D)",
    "A = Mul(X, zero) OUT = Relu(A)",
    "A = Add(X, inf) OUT = Softmax(A)",
    "A = Div(X, zero) OUT = Log(A)",
    "S = Shape(X) A = Gather(S, i) B = Cast<to=1>(A) OUT = Mul(X, B)",
    "A = ReduceMean(X) B = ReduceMax<keepdims=0>(X) OUT = Sub(A, B)",
    'A = MatMul(X, X) B = Einsum<equation="abcd->abdc">(A) OUT = CumSum(B, i)',
    "A = Transpose(X) OUT = Add(A, c5)",
    "A = Concat<axis=7>(X, X) OUT = Squeeze(A)",
    "A = Conv(X, X) OUT = ConvTranspose(A, X)",
    "A = Split<axis=1, num_outputs=2>(X) OUT = Reciprocal(A)",
    "A, B = TopK(X, i1) OUT = Where(A, A, X)",
    "A = Gather<axis=1>(X, i99) OUT = Expand(A, i99)",
    "A = Equal(X, X) B = Not(A) OUT = Where(B, X, inf)",
    "OUT = Pow(X, X)",
    "OUT = Clip(X, , )",
    "OUT = Gemm(X, c5, c5)",
    "A, B, C, D, E = BatchNormalization(X, c5, c5, c5, c5) OUT = Add(A, B)",
]


@pytest.mark.parametrize("body", STRANGE)
def test_every_tensor_gets_a_finite_positive_scale(body: str) -> None:
    weights = """float big = {1e30}, float zero = {0}, float inf = {-3.4e38}, int64 i = {0}, float[5] c5 = {1,2,3,4,5},
        int64[1] i1 = {1}, int64[1] i99 = {99}"""
    table = estimate(body, weights)
    assert all(np.isfinite(table[name].bits) and table[name].bits > 0 for name in table)
    assert "OUT" in table


def test_names_that_the_graph_lacks_are_guessed_and_constants_read() -> None:
    proto = model(f"{BN} OUT = Relu(Y)")
    table = estimate_scales(GraphView(proto.graph), ["no such tensor", "beta"])
    assert table["no such tensor"].method == "guess"
    assert amax(table, "beta") == pytest.approx(5)
    assert list(table) == ["no such tensor", "beta"]


def test_weight_with_nan_is_named() -> None:
    proto = model(f"{BN} OUT = Conv(Y, W)", STATISTICS + ", float[1,2,1,1] W = {1, 1}")
    proto.graph.initializer[4].CopyFrom(onnx.numpy_helper.from_array(np.full((1, 2, 1, 1), np.nan, np.float32), "W"))
    with pytest.raises(QdqError, match="W: the weight holds NaN"):
        of(proto)


def test_initializers_listed_as_inputs_are_weights() -> None:
    proto = model(f"{BN} OUT = Relu(Y)")
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert amax(of(proto), "Y") == pytest.approx(13)


def test_order_of_nodes_does_not_matter() -> None:
    proto = model(f"{BN} A = Relu(Y) B = Neg(A) OUT = Add(A, B)")
    names = ["X", "Y", "A", "B", "OUT"]
    before = estimate_scales(GraphView(proto.graph), names).to_json()
    nodes = list(proto.graph.node)[::-1]
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    assert estimate_scales(GraphView(proto.graph), names).to_json() == before


def test_pairs_are_seen_through() -> None:
    plain = estimate(f"{BN} OUT = Relu(Y)")
    pairs = f"{BN} Q = QuantizeLinear(Y, s, z) D = DequantizeLinear(Q, s, z) OUT = Relu(D)"
    proto = model(pairs, STATISTICS + ", float s = {0.1}, int8 z = {0}")
    table = estimate_scales(GraphView(proto.graph), ["X", "Y", "OUT", "D"])
    assert all(table[name].same_bits(plain[name]) for name in ("X", "Y", "OUT"))
    assert table["D"].same_bits(plain["Y"])


def test_integer_weights_are_dequantized() -> None:
    weights = STATISTICS + ", int8[1,2,1,1] Q = {10, 0}, float s = {0.1}, int8 z = {0}"
    assert amax(estimate(f"{BN} W = DequantizeLinear(Q, s, z) OUT = Conv(Y, W)", weights), "OUT") == pytest.approx(13)


def test_the_cost_is_linear_in_the_nodes() -> None:
    def estimate_chain(count: int) -> Callable[[], object]:
        nodes = " ".join(f"T{i + 1} = {'Relu' if i % 2 else 'Neg'}(T{i})" for i in range(count))
        proto = model(f"T0 = BatchNormalization(X, gamma, beta, mean, var) {nodes} OUT = Identity(T{count})")
        return lambda: of(proto)

    assert_linear(estimate_chain, 100)


# ---------------------------------------------------------------------------------------- trained models


@pytest.mark.slow  # all networks
@pytest.mark.shared
def test_every_model_of_the_corpus_gets_finite_scales(shared: Path) -> None:
    files = sorted((shared / "corpus" / "models").glob("*.onnx"))
    assert files
    for file in files:
        opened = open_model(file)
        view = GraphView(opened.proto.graph, opened.folder)
        names = [*view.inputs, *(name for node in view.nodes for name in node.outputs if name)]
        table = estimate_scales(view, names)
        assert all(np.isfinite(table[name].bits) and table[name].bits > 0 for name in names), file.name


@pytest.mark.shared
def test_trained_batch_norm_model_is_near_the_measured_ranges(shared: Path) -> None:
    pytest.importorskip("onnxruntime")
    from qdqtool.calibration.engine import CalibrationOptions, calibrate_scales

    images = np.load(shared / "corpus" / "datasets" / "cifar10_1000.npz")["calib"][:32].astype(np.float32) / 255
    images = ((images - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(0, 3, 1, 2).astype(np.float32)
    opened = open_model(shared / "corpus" / "models" / "cifar_resnet20_bn.onnx")
    view = GraphView(opened.proto.graph)
    options = CalibrationOptions(method="max", progress=False)
    measured = calibrate_scales(opened, [{view.inputs[0]: images}], options)
    names = [name for name in measured if not view.is_constant(name)]
    found = estimate_scales(view, names)
    ratio = np.array([float(found[name].bits / measured[name].bits) for name in names])
    assert np.mean((ratio > 0.5) & (ratio < 3)) > 0.95
    assert 0.8 < np.median(ratio) < 1.6
