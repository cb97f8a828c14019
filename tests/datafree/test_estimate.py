# SPDX-License-Identifier: Apache-2.0
"""Ranges without data: each rule against hand-written numbers or against many random values through the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from qdqtool.datafree.estimate import estimate_scales
from qdqtool.datafree.known_tensors import KnownTensors
from qdqtool.datafree.linear import ALIKE
from qdqtool.datafree.propagate import propagate
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.scales import ScaleTable
from tests.steps import assert_linear

BN = "Y = BatchNormalization(X, gamma, beta, mean, var)"
STATISTICS = "float[2] gamma = {2, -1}, float[2] beta = {1, 5}, float[2] mean = {0, 3}, float[2] var = {4, 9}"


def model(body: str, weights: str = STATISTICS, head: str = "float[1,2,8,8] X", opset: int = 20) -> onnx.ModelProto:
    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "other": 1]>
        g ({head}) => (float OUT) <{weights}> {{ {body} }}""")
    assert isinstance(made, onnx.ModelProto)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def estimate(body: str, weights: str = STATISTICS, head: str = "float[1,2,8,8] X", **more: object) -> ScaleTable:
    return of(model(body, weights, head), **more)


def of(proto: onnx.ModelProto, **more: object) -> ScaleTable:
    view = GraphView(proto.graph)
    names = [*view.inputs, *(name for node in view.nodes for name in node.outputs if name)]
    return estimate_scales(view, names, **more)  # type: ignore[arg-type]


def amax(table: ScaleTable, name: str) -> float:
    return float(table[name].bits) * 127


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


# ------------------------------------------------------- quadrature against random values through the reference

UNARY = [
    *("Relu", "LeakyRelu<alpha=0.3>", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Softplus", "Mish"),
    *("Gelu", 'Gelu<approximate="tanh">', "Erf", "Abs", "Neg", "Celu", "ThresholdedRelu", "Softsign", "Sin", "Cos"),
    *("Sqrt", "Atan"),
]


def measured(body: str, weights: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of channels of OUT where Y is normal, mean 1 and 0.5, deviation 1 and 2."""
    constants = f"<{weights}>" if weights else ""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 20]>
        g (float[N,2] Y) => (float OUT) {constants} {{ {body} }}""")
    normal = np.random.default_rng(3).standard_normal((60_000, 2)).clip(-6, 6)
    out = ReferenceEvaluator(proto).run(None, {"Y": (normal * [1, 2] + [1, 0.5]).astype(np.float32)})[0]
    out = np.nan_to_num(out.astype(np.float64))  # Sqrt below 0: we take 0
    return out.mean(0), out.std(0)


def predicted(body: str, weights: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The same from moments."""
    statistics = "float[2] gamma = {1, 2}, float[2] beta = {1, 0.5}, float[2] mean = {0, 0}, float[2] var = {1, 1}"
    proto = model(f"{BN} {body}", statistics + (", " + weights if weights else ""), "float[64,2] X")
    known = KnownTensors(GraphView(proto.graph))
    for node in known.view.nodes:
        (found,) = propagate(known, node)
        known.moments[node.key] = found if found.source else replace(found, source=node.key)
    out = known.moments["OUT"]
    return out.mean.reshape(-1), np.sqrt(out.var.reshape(-1))


def agree(body: str, weights: str = "") -> None:
    for found, wanted in zip(predicted(body, weights), measured(body, weights), strict=True):
        # 60,000 values know a mean to 0.4 % of the deviation; tails know it worse
        np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("operator", UNARY)
def test_activations_by_quadrature(operator: str) -> None:
    agree(f"OUT = {operator}(Y)")


def test_exponential() -> None:
    mean, _ = predicted("OUT = Exp(Y)")
    np.testing.assert_allclose(mean, np.exp(np.array([1 + 0.5, 0.5 + 2])), rtol=0.01)  # log-normal: exp(m + v / 2)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("S = Sigmoid(Y) OUT = Mul(Y, S)", ""),
        ("S = HardSigmoid<alpha=0.1666667, beta=0.5>(Y) OUT = Mul(S, Y)", ""),
        ("A = Add(Y, h) B = Clip(A, o, s) C = Div(B, s) OUT = Mul(Y, C)", "float h={3}, float o={0}, float s={6}"),
        ("A = Softplus(Y) B = Tanh(A) OUT = Mul(Y, B)", ""),
        (
            "A = Mul(Y, r) B = Erf(A) C = Add(B, o) D = Mul(Y, C) OUT = Mul(D, h)",
            "float r={0.707}, float o={1}, float h={0.5}",
        ),
        ("OUT = Mul(Y, Y)", ""),
        ("A = Relu(Y) B = Neg(Y) C = Relu(B) OUT = Sub(A, C)", ""),
        ("OUT = Pow(Y, two)", "float two = {2}"),
        ("OUT = PRelu(Y, slope)", "float[2] slope = {0.1, 0.5}"),
        ("A = Neg(Y) OUT = Max(Y, A)", ""),
        ("OUT = Sub(c, Y)", "float[2] c = {1, 2}"),
    ],
    ids=["silu", "gate", "hardswish", "mish", "gelu", "square", "halves", "pow", "prelu", "max", "minus"],
)
def test_tensors_of_one_source_are_not_taken_for_independent(body: str, weights: str) -> None:
    agree(body, weights)


def test_silu_keeps_its_small_negative_side() -> None:
    weights = STATISTICS.replace("beta = {1, 5}", "beta = {-9, -9}").replace("{2, -1}", "{1, 1}")
    table = estimate(f"{BN} S = Sigmoid(Y) OUT = Mul(Y, S)", weights)
    assert 0.14 < amax(table, "OUT") < 0.15  # -3 sigmoid(-3) = -0.142 at the end of the range; bounds say 15 * 1


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_independent_operands(op: str) -> None:
    """Both from BatchNormalization of other inputs: sums and products of variances."""
    body = f"{BN} Z = BatchNormalization(X2, gamma, beta, mean, var) OUT = {op}(Y, Z)"
    table = estimate(body, head="float[1,2,8,8] X, float[1,2,8,8] X2")
    means, var = np.array([1.0, 5.0]), np.array([4.0, 1.0])
    if op == "Mul":
        mean, total = means**2, var**2 + 2 * var * means**2
    else:
        mean, total = means * (2 if op == "Add" else 0), 2 * var
    assert amax(table, "OUT") == pytest.approx(float(np.max(np.abs(mean) + 6 * np.sqrt(total))), rel=1e-5)


# ---------------------------------------------------------------------------------------- weighted sums


def test_pointwise_convolution_with_groups_and_bias() -> None:
    weights = STATISTICS + ", float[4,1,1,1] W = {1, -2, 3, 4}, float[4] b = {0, 1, 0, -1}"
    table = estimate(f"{BN} OUT = Conv<group=2>(Y, W, b)", weights)
    mean = np.array([1 * 1, -2 * 1 + 1, 3 * 5, 4 * 5 - 1])
    deviation = np.array([1 * 2, 2 * 2, 3 * 1, 4 * 1])
    assert amax(table, "OUT") == pytest.approx(float(np.max(np.abs(mean) + 6 * deviation)), rel=1e-5)


@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("body", ["Conv(Y, W, v)", "ConvTranspose(Y, W, v)", "Gemm(Y, M, v)", "Pad(Y, p, v)"])
def test_a_computed_bias_of_another_length_is_no_bug(body: str, length: int) -> None:
    stored = f"float[{length}] b = {{{', '.join(['1'] * length)}}}" if length else "float[0] b"
    made = model(
        f"{BN} v = Identity(b) OUT = {body}",
        f"{STATISTICS}, {stored}, float[2,2,1,1] W = {{1, -2, 3, 4}}, float[2,2] M = {{1, -2, 3, 4}}, "
        "int64[8] p = {0, 0, 0, 0, 0, 0, 1, 1}",
    )
    assert 0 < amax(of(made), "OUT") < np.inf


def test_convolution_over_places_counts_likeness() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 2, 3, 3)).astype(np.float32)
    proto = model(f"{BN} OUT = Conv(Y, W)", STATISTICS + ", float[3,2,3,3] W = {" + ",".join(["0"] * 54) + "}")
    proto.graph.initializer[4].CopyFrom(onnx.numpy_helper.from_array(weight, "W"))
    mean, var = np.array([1.0, 5.0]), np.array([4.0, 1.0])
    expected = 0.0
    for outputs in weight.astype(np.float64):
        center = sum(outputs[c].sum() * mean[c] for c in range(2))
        spread = sum(((1 - ALIKE) * (outputs[c] ** 2).sum() + ALIKE * outputs[c].sum() ** 2) * var[c] for c in range(2))
        expected = max(expected, abs(center) + 6 * np.sqrt(spread))
    assert amax(of(proto), "OUT") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("OUT = Gemm(Y, W)", "2,3"),
        ("OUT = Gemm<transB=1>(Y, W)", "3,2"),
        ("OUT = Gemm<alpha=2.0>(Y, W)", "2,3"),
        ("OUT = MatMul(Y, W)", "2,3"),
        ("T = Transpose(Y) OUT = MatMul(W, T)", "3,2"),
        ("F = Flatten(Y) OUT = MatMul(F, W)", "2,3"),
    ],
)
def test_matrix_products(body: str, shape: str) -> None:
    weights = STATISTICS + f", float[{shape}] W = {{1, 2, 3, 4, 5, 6}}"
    matrix = np.arange(1.0, 7).reshape([int(n) for n in shape.split(",")])
    matrix = (matrix if shape == "2,3" else matrix.T) * (2 if "alpha" in body else 1)
    mean, var = np.array([1.0, 5.0]) @ matrix, np.array([4.0, 1.0]) @ matrix**2
    table = estimate(f"{BN} {body}", weights, "float[1,2] X")
    assert amax(table, "OUT") == pytest.approx(float(np.max(mean + 6 * np.sqrt(var))), rel=1e-5)


def test_layer_norm_and_its_parts_agree() -> None:
    weights = "float[64] s = {" + ",".join(["1"] * 64) + "}, int64[1] last = {-1}, float two = {2}, float eps = {1e-5}"
    parts = """M = ReduceMean(X, last) D = Sub(X, M) P = Pow(D, two) V = ReduceMean(P, last) E = Add(V, eps)
        R = Sqrt(E) OUT = Div(D, R)"""
    whole = amax(estimate("OUT = LayerNormalization(X, s)", weights, "float[4,16,64] X"), "OUT")
    assert whole == pytest.approx(6)
    assert amax(estimate(parts, weights, "float[4,16,64] X"), "OUT") == pytest.approx(whole, rel=0.15)


# ------------------------------------------------------------------------------- who is channel 0 afterwards

PICK = "float[1,2,1,1] one = {1, 0}, float[1,2,1,1] two = {0, 1}, int64[2] halves = {1, 1}"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("OUT = Conv(Y, one)", 1 + 12),
        ("OUT = Conv(Y, two)", 5 + 6),
        ("T = Transpose<perm=[0,2,3,1]>(Y) U = Transpose<perm=[0,3,1,2]>(T) OUT = Conv(U, two)", 11),
        ("A, B = Split<axis=1>(Y, halves) U = Concat<axis=1>(B, A) OUT = Conv(U, one)", 11),
        ("B = Slice(Y, i1, i2, i1) A = Slice(Y, i0, i1, i1) U = Concat<axis=1>(B, A) OUT = Conv(U, two)", 13),
        ("U = Gather<axis=1>(Y, swap) OUT = Conv(U, one)", 11),
        ("A = Reshape(Y, flat) U = Reshape(A, back) OUT = Conv(U, two)", 11),
        ("A = Unsqueeze(Y, i1) U = Squeeze(A, i1) OUT = Conv(U, two)", 11),
        ("A = Relu(Y) U = Pad(Y, pads) OUT = Conv(U, two)", 11),
        ("U = Resize(Y, , scales) OUT = Conv(U, two)", 11),
    ],
)
def test_channels_are_followed(body: str, wanted: float) -> None:
    more = """, int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[2] swap = {1, 0},
        int64[3] flat = {1, 2, 64}, int64[4] back = {0, 2, 8, 8}, int64[8] pads = {0,0,1,1,0,0,1,1},
        float[4] scales = {1,1,2,2}"""
    table = estimate(f"{BN} {body}", f"{STATISTICS}, {PICK}{more}")
    assert amax(table, "OUT") == pytest.approx(wanted, rel=1e-4)


def test_flattened_map_meets_its_rows() -> None:
    """Rows of a Gemm behind Flatten: 64 places of channel 0, then 64 of channel 1."""
    rows = ",".join(["0"] * 64 + ["1"] + ["0"] * 63)
    table = estimate(f"{BN} F = Flatten(Y) OUT = Gemm(F, W)", f"{STATISTICS}, float[128,1] W = {{{rows}}}")
    assert amax(table, "OUT") == pytest.approx(11, rel=1e-4)


def test_shuffled_channels_come_back() -> None:
    weights = f"{STATISTICS}, int64[5] s = {{1,2,1,8,8}}, int64[4] t = {{1,2,8,8}}, {PICK}"
    body = "A = Reshape(Y, s) B = Transpose<perm=[0,2,1,3,4]>(A) U = Reshape(B, t) OUT = Conv(U, two)"
    assert amax(estimate(f"{BN} {body}", weights), "OUT") == pytest.approx(11, rel=1e-4)


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
    measured = calibrate_scales(opened.proto, opened.folder, [{view.inputs[0]: images}], options)
    names = [name for name in measured if not view.is_constant(name)]
    found = estimate_scales(view, names)
    ratio = np.array([float(found[name].bits / measured[name].bits) for name in names])
    assert np.mean((ratio > 0.5) & (ratio < 3)) > 0.95
    assert 0.8 < np.median(ratio) < 1.6
