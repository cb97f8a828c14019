# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The executor's form of a typed model: each half tensor rounded behind its node, in onnxruntime as in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.widen import is_typed
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.session import session_options
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed_graphs import RandomTyped, bf16, half, run, to_type, typed_model, with_roundings, with_types

ONE = np.ones((1, 1, 1, 1), np.float16)


def rounded_run(model: onnx.ModelProto, *names: str, **feed: np.ndarray) -> list[np.ndarray]:
    return run(with_roundings(model), *names, **feed)


def numbers(kind: int) -> np.ndarray:
    """FP32 numbers where rounding is hard: ties, overflow, subnormal numbers, zeros, what is not a number."""
    step = 2.0**-10 if kind == TensorProto.FLOAT16 else 2.0**-7
    ties = [1 + step / 2, 1 + step * 1.5, 1 + step / 2 * (1 + 2.0**-12), 1 + step / 2 * (1 - 2.0**-12)]
    edges = [65504, 65519.99, 65520, 65536, 3.4e38, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 5e-8, 1e-40, 0.0, -0.0]
    return np.array([*ties, *edges, *(-x for x in ties + edges), np.inf, -np.inf, np.nan], np.float32)


def test_two_products_of_300_overflow_fp16_though_onnxruntime_alone_says_90000() -> None:
    text = """g (float16[1,1,1,1] x) => (float16[1,1,1,1] y) { a = Conv(x, w) b = Conv(x, w) y = Mul(a, b) }"""
    model = typed_model(text, w=300 * ONE)
    (alone,) = run(model, x=ONE)
    (ours,) = rounded_run(model, x=ONE.astype(np.float32))
    assert ours.dtype == np.float32 and np.isposinf(ours).all()
    assert not np.isposinf(rounded_run(model, "a", x=ONE.astype(np.float32))).any()
    assert alone.dtype == np.float16  # the last Cast makes Inf of 90,000; what is in between is FP32:
    text = text.replace("y = Mul(a, b) }", "m = Mul(a, b) y = Mul(m, s) }")
    model = typed_model(text, w=300 * ONE, s=half(0.5))
    assert run(model, x=ONE)[0].item() == float(half(45000)[0])  # so it never saw the Inf
    assert np.isposinf(rounded_run(model, x=ONE.astype(np.float32))[0]).all()


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_no_optimization_of_onnxruntime_takes_a_rounding_away(kind: int, level: str) -> None:
    name = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}[kind]
    model = typed_model(
        f"g (float[N] x) => ({name}[N] y, float[N] z) {{ c = Cast<to = {kind}>(x) a = Add(c, c) m = Mul(a, a) y = Identity(m) z = Cast<to = 1>(m) }}"
    )
    runtime, x = load_onnxruntime(), numbers(kind)
    session = runtime.InferenceSession(with_roundings(model).SerializeToString(), session_options(runtime, level))
    with np.errstate(over="ignore", invalid="ignore"):
        a = to_type(to_type(x, kind) * 2, kind)
        expected = to_type(a * a, kind)
    for found in session.run(["y", "z"], {"x": x}):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_rounding_is_to_nearest_even_with_infinity_and_subnormal_numbers(kind: int) -> None:
    model = typed_model(f"g (float[N] x) => (float[N] y) {{ c = Cast<to = {kind}>(x) y = Cast<to = 1>(c) }}")
    (found,) = rounded_run(model, x=numbers(kind))
    np.testing.assert_array_equal(found, to_type(numbers(kind), kind))
    assert np.array_equal(np.signbit(found[:-1]), np.signbit(numbers(kind)[:-1]))


def test_what_bf16_and_fp16_lose_differs() -> None:
    def of(kind: int) -> list[float]:
        model = typed_model(f"g (float[N] x) => (float[N] y) {{ c = Cast<to = {kind}>(x) y = Cast<to = 1>(c) }}")
        return [float(v) for v in rounded_run(model, x=np.array([1e5, 257, 1e-10], np.float32))[0]]

    assert of(TensorProto.FLOAT16) == [np.inf, 257, 0]
    assert of(TensorProto.BFLOAT16)[1] == 256 and np.isfinite(of(TensorProto.BFLOAT16)).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_graphs_have_the_numbers_of_numpy_to_the_bit(seed: int) -> None:
    graph = RandomTyped(seed)
    names = [value.name for value in graph.model.graph.output]
    made = with_roundings(graph.model)
    for name, found in zip(names, run(made, *names, **graph.feed), strict=True):
        np.testing.assert_array_equal(found, graph.answer[name], err_msg=f"{name} of seed {seed}")


def test_a_sum_is_accumulated_in_fp32_and_rounded_once() -> None:
    model = typed_model(
        "g (float16[1,4096] x) => (float16[1,1] y) { y = MatMul(x, w) }", w=np.ones((4096, 1), np.float16)
    )
    assert rounded_run(model, x=np.ones((1, 4096), np.float32))[0].item() == 4096  # FP16 sums stop at 2048


def test_an_fp16_input_is_rounded_before_anything_reads_it_and_weights_are_those_of_the_file() -> None:
    model = typed_model(
        "g (float16[N] x) => (float16[N] y, bool[N] e) { y = Mul(x, w) e = Equal(x, w) }", w=half(1 / 3)
    )
    third = np.float32(np.float16(1 / 3))
    y, equal = rounded_run(model, x=np.array([1 / 3, 1], np.float32))
    assert y.tolist() == [float(np.float16(third * third)), float(third)]
    assert equal.tolist() == [True, False]


def test_an_integer_becomes_half_by_one_rounding() -> None:
    twice = 2049 * 2**13 + 1  # FP32 would lose the 1, and make a tie of it
    model = typed_model("g (int64[N] x) => (bfloat16[N] y) { y = Cast<to = 16>(x) }")
    assert (
        rounded_run(model, x=np.array([twice], np.int64))[0].tolist() == bf16(float(twice)).astype(np.float32).tolist()
    )


@pytest.mark.parametrize(
    ("pair", "opset"),
    [
        ("DequantizeLinear(q, s16)", 13),  # files of old opsets with half scales, as TensorRT takes them
        ("DequantizeLinear(q, s16)", 19),
        ("DequantizeLinear<output_dtype = 10>(q, s)", 23),
    ],
)
def test_codes_stay_and_what_a_dq_makes_has_its_type(pair: str, opset: int) -> None:
    text = f"g (float[N] x) => (float[N] y, int8[N] q) {{ q = QuantizeLinear(x, s, z) d = {pair} m = Mul(d, d) y = Cast<to = 1>(m) }}"
    weights = {"s": np.float32(0.1), "s16": np.float16(0.1), "z": np.int8(0)}
    model = typed_model(
        text, opset, 10, **{name: value for name, value in weights.items() if f"{name})" in text or f"{name}," in text}
    )
    y, q = rounded_run(model, x=np.array([1.26, -5, 300], np.float32))
    assert q.tolist() == [13, -50, 127]
    scale = np.float32(np.float16(0.1)) if "s16" in text else np.float32(0.1)
    d = to_type(q.astype(np.float32) * scale, TensorProto.FLOAT16)
    assert y.tolist() == to_type(d * d, TensorProto.FLOAT16).tolist()


def test_bodies_of_control_flow_round_too_and_see_the_rounded_input() -> None:
    text = """g (float16[N] x, bool c) => (float16[N] y) {
      y = If(c) <then_branch = t () => (float16[N] a) { m = Mul(x, x) a = Mul(m, half) }, else_branch = e () => (float16[N] b) { b = Identity(x) }> }"""
    made = with_roundings(typed_model(text, half=half(0.5)))
    x = np.array([300, 1 / 3], np.float32)
    third = np.float16(1 / 3)
    assert run(made, x=x, c=np.array(True))[0].tolist() == [np.inf, float(half(0.5)[0] * (third * third))]
    assert run(made, x=x, c=np.array(False))[0].tolist() == [300, float(third)]


def test_local_functions_are_written_out_so_that_what_is_within_rounds() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float16[N] x) => (float16[N] y) { y = f.back(x) }
      <domain: "f", opset_import: ["" : 17]> back (a) => (c) { b = Mul(a, a) half = Constant<value = float {0.5}>() h = CastLike(half, a) c = Mul(b, h) }"""
    model = onnx.parser.parse_model(text)
    assert run(with_roundings(model), x=np.array([300, 2], np.float32))[0].tolist() == [np.inf, 2]


def test_every_tensor_keeps_its_name_and_outputs_are_fp32() -> None:
    graph = RandomTyped(3)
    made = with_roundings(graph.model)
    there = {name for node in made.graph.node for name in node.output}
    assert {name for node in graph.model.graph.node for name in node.output} <= there
    assert {value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)} == {
        TensorProto.FLOAT
    }
    onnx.checker.check_model(made)


def test_operators_that_hand_numbers_on_get_no_rounding_and_a_plain_model_none_at_all() -> None:
    text = (
        "g (float16[2,2] x) => (float16[4,2] y) { a = Relu(x) b = Transpose(a) c = Concat<axis = 0>(a, b) y = Neg(c) }"
    )
    casts = sum(node.op_type == "Cast" for node in with_roundings(typed_model(text)).graph.node)
    assert casts == 2  # the input's
    plain = model_of(SMALL_NET)
    assert not is_typed(Model(plain)) and with_roundings(plain) == plain


def test_same_model_same_bytes_and_the_model_is_not_touched() -> None:
    graph = RandomTyped(11)
    before = graph.model.SerializeToString(deterministic=True)
    assert with_roundings(graph.model).SerializeToString(deterministic=True) == with_roundings(
        graph.model
    ).SerializeToString(deterministic=True)
    assert graph.model.SerializeToString(deterministic=True) == before


def test_bf16_is_rounded_in_models_of_an_opset_that_has_none() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Mul(x, x) }", 11)
    made = with_roundings(with_types(model, TypeAssignment(int(TensorProto.BFLOAT16))))
    (got,) = run(made, x=np.array([1.0 + 2.0**-9, 3.0], np.float32))
    assert made.opset_import[0].version == 13
    assert got.tolist() == [1.0, 9.0]
