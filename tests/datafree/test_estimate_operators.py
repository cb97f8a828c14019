# SPDX-License-Identifier: Apache-2.0
"""Ranges after operators: activations against random values, weighted sums, channels that move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from qdqtool.datafree.known_tensors import KnownTensors
from qdqtool.datafree.linear import ALIKE
from qdqtool.datafree.propagate import propagate
from qdqtool.graph.view import GraphView
from tests.datafree.estimated import BN, STATISTICS, amax, estimate, model, of

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
    """Rows of a Gemm after Flatten: 64 places of channel 0, then 64 of channel 1."""
    rows = ",".join(["0"] * 64 + ["1"] + ["0"] * 63)
    table = estimate(f"{BN} F = Flatten(Y) OUT = Gemm(F, W)", f"{STATISTICS}, float[128,1] W = {{{rows}}}")
    assert amax(table, "OUT") == pytest.approx(11, rel=1e-4)


def test_shuffled_channels_come_back() -> None:
    weights = f"{STATISTICS}, int64[5] s = {{1,2,1,8,8}}, int64[4] t = {{1,2,8,8}}, {PICK}"
    body = "A = Reshape(Y, s) B = Transpose<perm=[0,2,1,3,4]>(A) U = Reshape(B, t) OUT = Conv(U, two)"
    assert amax(estimate(f"{BN} {body}", weights), "OUT") == pytest.approx(11, rel=1e-4)
