# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pairs of every kind become functions that compute the same; what cannot be trained is refused by name."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.integer_weights import decode_constants
from qdqtool.training.training_graph import TrainingGraph, make_form
from tests.graphs import model_of

FEED = {"x": (10 * np.random.default_rng(4).standard_normal((2, 3, 4, 4))).astype(np.float32)}
HEAD = "net (float[2,3,4,4] x) => (y) <float[3,3,1,1] w, float s = {0.1}, float[1] s1 = {0.1}, float[3] s3 = {0.1, 0.2, 0.3}, float s0 = {0.0}, float t = {0.11}, int8 z = {0}, int8 z5 = {5}, uint8 u = {128}, int8[3] z3 = {0, 1, -1}, int8 lo = {-7}, int8 hi = {6}, int8[3] o3 = {0, 0, 0}, float[0] no = {}, int8[2] o2 = {0, 0}, float[1] k = {1}>"


def form_of(body: str, ranges: str = "fixed", opset: int = 17) -> TrainingGraph:
    model = model_of(f"{HEAD} {{ {body} }}", opset, 10)
    form = make_form(Model(model), ranges=ranges)  # type: ignore[arg-type]
    for one in (form.proto, form.quantized.proto):
        assert Executor(Model(one)).run(FEED)["y"].tobytes() == Executor(Model(model)).run(FEED)["y"].tobytes()
    assert not any(node.op_type == "DequantizeLinear" for node in form.proto.graph.node)
    return form


def calls(form: TrainingGraph) -> list[str]:
    return [node.op_type for node in form.proto.graph.node if node.domain == PAIR_DOMAIN]


@pytest.mark.parametrize("pair", ["s, z", "s, z5", "s, u", "s1, z", "s"])
def test_per_tensor(pair: str) -> None:
    form = form_of(f"q = QuantizeLinear(x, {pair}) d = DequantizeLinear(q, {pair}) y = Conv(d, w)")
    assert calls(form) == ["Pair"]
    assert all(value.shape == () for name, value in form.initial().items() if name != "w")


@pytest.mark.parametrize(
    ("axis", "source", "expected"),
    [(0, "w", "PairAxis0"), (1, "w", "PairAxis1"), (-3, "w", "PairAxis1"), (1, "x", "PairAxis1")],
)
def test_per_channel(axis: int, source: str, expected: str) -> None:
    other = {"w": "Conv(x, d)", "x": "Conv(d, w)"}[source]
    how = f"<axis={axis}>"
    form = form_of(
        f"q = QuantizeLinear{how}({source}, s3, z3) d = DequantizeLinear{how}(q, s3, z3) y = {other}", opset=19
    )
    assert calls(form) == [expected]


def test_names_stay() -> None:
    form = form_of("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Conv(d, w) y = Relu(c)")
    assert [node.output[0] for node in form.proto.graph.node] == ["d", "c", "y"]


def test_repeated_pairs_of_one_tensor_are_one() -> None:
    form = form_of(
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z)
        p = QuantizeLinear(x, s, z) f = DequantizeLinear(p, s, z) a = Add(d, e) b = Add(a, f) y = Conv(b, w)"""
    )
    assert calls(form) == ["Pair"] and form.activations == {"s": ("x",)}


def test_pairs_in_a_row_are_two() -> None:
    form = form_of(
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) p = QuantizeLinear(d, t, z) e = DequantizeLinear(p, t, z) y = Conv(e, w)"
    )
    assert calls(form) == ["Pair", "Pair"]


@pytest.mark.parametrize("ranges", ["fixed", "learn"])
def test_a_clip_of_integers_is_a_clip_of_floats(ranges: str) -> None:
    form = form_of(
        "q = QuantizeLinear(x, s, z5) i = Identity(q) c = Clip(i, lo, hi) d = DequantizeLinear(c, s, z5) y = Conv(d, w)",
        ranges,
    )
    assert [node.op_type for node in form.proto.graph.node if node.op_type in ("Max", "Min")] == ["Max", "Min"]
    form = form_of(
        "q = QuantizeLinear<axis=0>(w, s3, z3) c = Clip(q, lo, hi) d = DequantizeLinear<axis=0>(c, s3, z3) y = Conv(x, d)",
        ranges,
    )
    assert (form.weight_pairs["w"].low, form.weight_pairs["w"].high) == (-7, 6)


def test_equal_scales_of_q_and_dq_are_one_and_both_are_written() -> None:
    body = "s2 = Constant<value_float=0.1>() q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s2, z) y = Conv(d, w)"
    form = form_of(body, "learn")
    assert form.scales == ("s",) and form.origins["s"].places == ("s", "s2")
    moved = make_form(form.write({"s": np.array(0.5, np.float32)}), ranges="learn")
    assert moved.initial()["s"] == np.float32(0.5)


def test_a_scale_that_others_read_does_not_move() -> None:
    form = form_of("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Conv(d, w) y = Mul(c, s)", "learn")
    assert form.scales == () and "s" not in form.origins


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, t, z) y = Conv(d, w)",
            "^x: its Q and its DQ have different scales",
        ),
        (
            "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z5) y = Conv(d, w)",
            "^x: its Q and its DQ have different zero points",
        ),
        (
            "q = QuantizeLinear(x, s0, z) d = DequantizeLinear(q, s0, z) y = Conv(d, w)",
            "^x: the scale of its Q/DQ is not positive",
        ),
        (
            "q = QuantizeLinear(x, no, z) d = DequantizeLinear(q, no, z) y = Conv(d, w)",
            "^x: the scale of its Q/DQ is empty",
        ),
        (
            "q = QuantizeLinear<axis=1>(x, s3, o2) d = DequantizeLinear<axis=1>(q, s3, o2) y = Conv(d, w)",
            "^x: its Q has 3 scales and 2 zero points",
        ),
        (
            "n = Abs(s) q = QuantizeLinear(x, n, z) d = DequantizeLinear(q, n, z) y = Conv(d, w)",
            "^x: the scale of its Q/DQ is computed",
        ),
        (
            "q = QuantizeLinear<axis=1>(x, s3, o3) c = Clip(q, lo, hi) d = DequantizeLinear<axis=1>(c, s3, o3) y = Conv(d, w)",
            "^x: a Clip of integers with one scale per channel",
        ),
    ],
)
def test_what_is_refused(body: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        form_of(body)


def test_integers_that_are_not_trained_stay_and_are_reported() -> None:
    model = model_of(
        """net (float[2,3,4,4] x) => (y) <int8[3,3,1,1] q = {1,2,3,4,5,6,7,8,9}, float s = {0.1}, float t = {0.2}, int8 z = {0}, float[3,3,1,1] w>
        { a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, t, z) c = Conv(x, a) d = Conv(c, b) y = Conv(d, w) }"""
    )
    form = make_form(Model(model))
    assert form.weights == ("w",) and re.match("q is not trained: .*several scales", "".join(form.notes))
    assert Executor(Model(form.proto)).run(FEED)["y"].tobytes() == Executor(Model(model)).run(FEED)["y"].tobytes()


@pytest.mark.parametrize("pair", ["q, s", "q, s, z"])
def test_integers_of_another_size_than_their_scales_stay(pair: str) -> None:
    model = model_of(
        f"""net (float[2,3,4,4] x) => (y) <int32[3,2,1,1] q = {{1,2,3,4,5,6}}, float[3] s = {{1,1,1}}, int32[3] z = {{0,0,0}}, float[3,3,1,1] w>
        {{ a = DequantizeLinear<axis=1>({pair}) c = Conv(x, w) y = Conv(c, a) }}"""
    )
    codes, left = decode_constants(GraphBuilder(model))
    assert not codes and "its shape" in left["q"]


@pytest.mark.parametrize(("kind", "value"), [("float", "nan"), ("float", "1e30"), ("int32", "7"), ("uint8", "7")])
def test_integers_with_a_zero_point_of_another_type_stay(kind: str, value: str) -> None:
    model = model_of(
        f"""net (float[2,3,4,4] x) => (y) <int8[3,3,1,1] q = {{1,2,3,4,5,6,7,8,9}}, float s = {{0.1}}, {kind} z, float[3,3,1,1] w>
        {{ a = DequantizeLinear(q, s, z) c = Conv(x, a) y = Conv(c, w) }}"""
    )
    zero = np.array(float(value)).astype("float32" if kind == "float" else kind)
    model.graph.initializer.append(onnx.numpy_helper.from_array(zero, "z"))
    draft = GraphBuilder(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes, left = decode_constants(draft)
    assert not codes and re.search(f"{zero.dtype.name}, .*int8$", left["q"])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4", "int16"])
def test_integer_weights_of_every_width(kind: str) -> None:
    code = getattr(onnx.TensorProto, kind.upper())
    model = model_of(
        "net (float[2,3,4,4] x) => (y) <float[3] s = {0.1, 0.2, 0.3}> { d = DequantizeLinear<axis=0>(q, s) y = Conv(x, d) }",
        21,
        10,
    )
    values = np.arange(9).reshape(3, 3, 1, 1) - (0 if kind.startswith("u") else 4)
    model.graph.initializer.append(onnx.helper.make_tensor("q", code, values.shape, values.reshape(-1).tolist()))
    form = make_form(Model(model))
    assert Executor(Model(form.proto)).run(FEED)["y"].tobytes() == Executor(Model(model)).run(FEED)["y"].tobytes()
    written = form.write({"q": form.initial()["q"] + np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1, 1, 1)}).proto
    tensor = next(tensor for tensor in written.graph.initializer if tensor.name == "q")
    assert tensor.data_type == code
    top = {"int4": 7, "uint4": 15}.get(kind, 99)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int64), np.minimum(values + 1, top))
