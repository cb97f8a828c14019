# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""One graph that stays half and one that does not, for each reason to be in FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.precision.choose import TypeOptions, choose_types
from qdqtool.precision.reasons import CASTS, INT8, TOGETHER
from qdqtool.precision.required import CONSTRAINTS
from qdqtool.precision.value_ranges import ValueRange, ValueRanges
from tests.docs.pages import VERB_PAGES, first_cells
from tests.graphs import model_of
from tests.precision.choices import choice_of, floats, ranges_for, within

RELU = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
MUL = "g (float[4] x) => (float[4] y) <float[4] c> { y = Mul(x, c) }"


def rules_of(text: str, options: TypeOptions | None = None, opset: int = 17, **ranges: Any) -> dict[str, str]:
    """Key -> rule, without what is FP32 for the casts alone."""
    return {key: rule for key, rule in floats(choice_of(text, options, opset, **ranges)).items() if rule != "casts"}


@pytest.mark.parametrize(
    ("text", "ranges", "expected"),
    [
        # values near the limit of the type
        pytest.param(RELU, {"x": 32_000.0}, {}, id="range: below half of the largest"),
        pytest.param(RELU, {"x": 33_000.0}, {"y": "range"}, id="range: above, of an input"),
        pytest.param(RELU, {"y": 33_000.0}, {"y": "range"}, id="range: above, of an output"),
        pytest.param(RELU, {"x": within(-33_000.0, 1.0)}, {"y": "range"}, id="range: below zero"),
        pytest.param(RELU, {"x": ValueRange(-9_000, 9_000, clipped=True)}, {"y": "range"}, id="range: of a clipping value"),
        pytest.param(RELU, {"x": ValueRange(-8_000, 8_000, clipped=True)}, {}, id="range: of a smaller one"),
        # constants
        pytest.param("g (float x) => (float y) <float c = {65504.0}> { y = Add(x, c) }", {}, {}, id="constant: the largest"),
        pytest.param("g (float x) => (float y) <float c = {-1e9}> { y = Add(x, c) }", {}, {"y": "constant"}, id="constant: a mask"),
        pytest.param("g (float x) => (float y) <float c = {1e-12}> { y = Add(x, c) }", {}, {"y": "constant"}, id="constant: an epsilon that becomes 0"),
        pytest.param("g (float x) => (float y) <float c = {1e-5}> { y = Add(x, c) }", {}, {}, id="constant: an epsilon that is held"),
        pytest.param("g (float x) => (float y) <float c = {1e-12}> { y = Add(x, c) }", {"x": within(0.001, 9.0)}, {}, id="constant: an epsilon far below what it guards"),
        pytest.param("g (float x) => (float y) <float c = {1e-12}> { y = Add(x, c) }", {"x": within(0.0001, 9.0)}, {"y": "constant"}, id="constant: an epsilon below small values"),
        pytest.param("g (float x) => (float y) <float c = {1e-12}> { y = Max(c, x) }", {"x": within(0.001, 9.0)}, {}, id="constant: an epsilon of a norm"),
        pytest.param("g (float x) => (float y) <float c = {1e-12}> { y = Mul(x, c) }", {"x": within(0.001, 9.0)}, {"y": "constant"}, id="constant: a factor is none"),
        pytest.param("g (float[2] x) => (float[2] y) <float[2] c = {1e-12, 1e-12}> { y = Max(x, c) }", {"x": within(0.001, 9.0)}, {"y": "constant"}, id="constant: several are none"),
        pytest.param("g (float[2] x) => (float[2] y) <float[2] c = {1e-8, 1e-8}> { y = Add(x, c) }", {}, {}, id="constant: an addend may vanish"),
        pytest.param("g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}, float[2] c = {1e-8, 1e-8}> { y = Gemm(x, w, c) }", {}, {}, id="constant: so may a bias"),
        pytest.param("g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1e-8, 1e-8, 0.0, 0.0}, float[2] c = {1.0, 1.0}> { y = Gemm(x, w, c) }", {}, {"y": "constant"}, id="constant: a weight may not"),
        pytest.param("g (float x) => (float y) <float[2] c = {0.0, 0.0}> { y = Add(x, c) }", {}, {}, id="constant: zeros"),
        pytest.param("g (float x) => (float y) { c = Constant<value_float = 1e6>() y = Add(x, c) }", {}, {"y": "constant"}, id="constant: a node"),
        pytest.param("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 1e6}> { t = Transpose(w) y = MatMul(x, t) }", {}, {"t": "range", "y": "constant"}, id="constant: behind what moves it"),
        # sums
        pytest.param("g (float[1,70000] x) => (float[1,70000] y) { y = Softmax(x) }", {}, {"y": "sum"}, id="sum: a long softmax"),
        pytest.param("g (float[1,60000] x) => (float[1,60000] y) { y = Softmax(x) }", {}, {}, id="sum: a shorter one"),
        pytest.param("g (float[300,300] x) => (float[300,300] y) { y = Softmax<axis = 0>(x) }", {}, {}, id="sum: along a short axis"),
        pytest.param("g (float[1,4,200,200] x) => (float[1,4,1,1] y) { y = GlobalAveragePool(x) }", {"x": 10.0}, {"y": "sum"}, id="sum: a mean is one, too"),
        pytest.param("g (float[1,4,20,20] x) => (float[1,4,1,1] y) { y = GlobalAveragePool(x) }", {"x": 10.0}, {}, id="sum: a small mean"),
        pytest.param("g (float[1,4,200,200] x) => (float[1,4,1,1] y) { y = GlobalAveragePool(x) }", {"x": within(0, 1000), "y": within(0, 1.5)}, {}, id="sum: without negative values the mean tells it"),
        pytest.param("g (float[1,4,200,200] x) => (float[1,4,1,1] y) { y = GlobalAveragePool(x) }", {"x": within(-1000, 1000, 0.1)}, {}, id="sum: a small mean magnitude"),
        pytest.param("g (float[N,4] x) => (float[M,4] y) { y = ReduceMean<axes = [0]>(x) }", {}, {"y": "sum"}, id="sum: of nobody knows how many"),
        pytest.param("g (float[N,4] x) => (float[M,4] y) { y = ReduceMean<axes = [0]>(x) }", {"x": ValueRange(-1, 1, smallest=1, elements=400)}, {}, id="sum: no more than the tensor has"),
        pytest.param("g (float[1,64] x) => (float[1,1] y) { y = ReduceL2<axes = [1]>(x) }", {"x": 100.0}, {"y": "sum"}, id="sum: of squares"),
        pytest.param("g (float[1,64] x) => (float[1,1] y) { y = ReduceL2<axes = [1]>(x) }", {"x": 10.0}, {}, id="sum: of smaller squares"),
        pytest.param("g (float[1,1,300,300] x) => (float[1,1,1,1] y) { y = AveragePool<kernel_shape = [300,300]>(x) }", {}, {"y": "sum"}, id="sum: over a window"),
        pytest.param("g (float[1,8] x) => (float[1,8] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }", {"x": 30_000.0}, {}, id="sum: no axes named, and none meant"),
        pytest.param("g (float[1,8] x) => (float[1,1] y) { y = ReduceSum(x) }", {"x": 30_000.0}, {"y": "sum"}, id="sum: no axes named are all axes"),
        # products
        pytest.param("g (float[1,100] x) => (float[1,1] y) <float[100,1] w> { y = MatMul(x, w) }", {"x": 3000.0}, {"y": "product"}, id="product: sums of magnitudes"),
        pytest.param("g (float[1,100] x) => (float[1,1] y) <float[100,1] w> { y = MatMul(x, w) }", {"x": within(-3000, 3000, 2.0)}, {}, id="product: most values are small"),
        pytest.param("g (float[1,100] x) => (float[1,1] y) <float[1,100] w> { y = Gemm<transB = 1>(x, w) }", {"x": 3000.0}, {"y": "product"}, id="product: Gemm"),
        pytest.param("g (float[1,9,3,3] x) => (float[1,1,1,1] y) <float[1,9,3,3] w> { y = Conv(x, w) }", {"x": 3000.0}, {"y": "product"}, id="product: Conv"),
        pytest.param("g (float[1,100] x, float[100,1] z) => (float[1,1] y) { y = MatMul(x, z) }", {"x": 40.0, "z": 40.0}, {"y": "product"}, id="product: of two activations"),
        pytest.param("g (float[1,100] x, float[100,1] z) => (float[1,1] y) { p = Softmax(x) y = MatMul(p, z) }", {"z": 3000.0}, {}, id="product: a softmax averages"),
        # steep, singular, faint
        pytest.param("g (float[4] x) => (float[4] y) { y = Sin(x) }", {"x": 20.0}, {"y": "steep"}, id="steep: a large angle"),
        pytest.param("g (float[4] x) => (float[4] y) { y = Sin(x) }", {"x": 4.0}, {}, id="steep: a small one"),
        pytest.param("g (float[4] x) => (float[4] y) { y = Floor(x) }", {"x": 3000.0}, {"y": "steep"}, id="steep: integers beyond 2048"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y) { y = Div(x, z) }", {"z": within(0, 1, smallest=1e-9)}, {"y": "singular"}, id="singular: a divisor that may become 0"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y) { y = Div(x, z) }", {"x": within(0, 1, smallest=1e-9)}, {}, id="singular: not what is divided"),
        pytest.param("g (float[4] x) => (float[4] y) { y = Log(x) }", {"x": within(0, 1, smallest=0.0)}, {"y": "singular"}, id="singular: too close to 0 to tell"),
        pytest.param(RELU, {"x": within(0, 1e-6, 1e-7)}, {"y": "faint"}, id="faint: few bits are left"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y) { a = Relu(z) y = Add(x, a) }", {"z": within(0, 1.0, 0.5), "a": within(0, 1e-6, 1e-7), "y": within(-1, 1, 0.1)}, {}, id="faint: added to what is far larger"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y) { a = Relu(z) y = Add(x, a) }", {"z": within(0, 1.0, 0.5), "a": within(0, 1e-6, 1e-7), "y": within(-1, 1, 1e-5)}, {"a": "faint", "y": "faint"}, id="faint: added to small values"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y) { a = Relu(z) y = Mul(x, a) }", {"z": within(0, 1.0, 0.5), "a": within(0, 1e-6, 1e-7), "y": within(-1, 1, 0.1)}, {"a": "faint", "y": "faint"}, id="faint: a factor"),
        pytest.param("g (float[4] x, float[4] z) => (float[4] y, float[4] a) { a = Relu(z) y = Add(x, a) }", {"z": within(0, 1.0, 0.5), "a": within(0, 1e-6, 1e-7), "y": within(-1, 1, 0.1)}, {"a": "faint", "y": "faint"}, id="faint: an output, too"),
        pytest.param(RELU, {"x": within(0, 1.0, 1e-4)}, {}, id="faint: small, and held"),
        pytest.param(RELU, {"x": within(0, 0.0, 0.0)}, {}, id="faint: zeros are exact"),
        # operators
        pytest.param("g (float[4] x, int64 k) => (float[4] y) { y = CumSum(x, k) }", {}, {"y": "operator"}, id="operator: on the deny list"),
        pytest.param("g (float[4] x) => (float[4] y) { y = trt.Plugin(x) }", {}, {"y": "operator"}, id="operator: of another domain"),
        pytest.param("g (float[4] x) => (float[4] y) { y = Celu(x) }", {}, {"y": "operator"}, id="operator: FP32 alone by ONNX"),
    ],
)  # fmt: skip
def test_a_reason_to_be_in_fp32(text: str, ranges: dict[str, Any], expected: dict[str, str]) -> None:
    assert rules_of(text, **ranges) == expected


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        (RELU, {"x": 1e30}),
        ("g (float x) => (float y) <float c = {-1e9}> { y = Add(x, c) }", {}),
        ("g (float x) => (float y) <float c = {1e-12}> { y = Add(x, c) }", {}),
        ("g (float[1,70000] x) => (float[1,70000] y) { y = Softmax(x) }", {}),
        (RELU, {"x": within(0, 1e-6, 1e-7)}),
    ],
)
def test_bf16_has_the_range_of_fp32(text: str, ranges: dict[str, Any]) -> None:
    assert rules_of(text, TypeOptions(TensorProto.BFLOAT16), **ranges) == {}


def test_what_nothing_is_known_of_stays_in_fp32() -> None:
    choice = choose_types(Model(model_of(RELU)), ValueRanges())
    assert "nothing is known" in choice.reasons["y"].text and choice.reasons["y"].text.endswith(" x")


def test_a_product_of_pairs_adds_integers() -> None:
    text = """g (float[1,100] x) => (float[1,1] y) <float s = {60.0}, int8 z = {0}, int8[100,1] q, float t = {1.0}> {
 a = QuantizeLinear(x, s, z)
 b = DequantizeLinear(a, s, z)
 w = DequantizeLinear(q, t, z)
 y = MatMul(b, w)
}"""
    model = model_of(text.replace(", int8[100,1] q", ""))
    model.graph.initializer.append(numpy_helper.from_array(np.full((100, 1), 100, np.int8), "q"))
    choice = choose_types(Model(model), ranges_for(model, x=7000.0, y=10.0))
    assert floats(choice) == {}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "--keep-fp32 (: not a regular expression"), ("nothing", "--keep-fp32 nothing: matches no operator")],
)
def test_patterns_that_say_nothing_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(QdqError) as caught:
        choice_of(RELU, TypeOptions(keep_fp32=(pattern,)))
    assert message in str(caught.value)


def test_a_pattern_finds_names_of_nodes_and_outputs() -> None:
    text = "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { [first] a = Relu(x) b = Abs(a) y = MatMul(b, w) }"
    assert floats(choice_of(text, TypeOptions(keep_fp32=("^first$", "^b$")))) == {"a": "kept", "b": "kept"}


@pytest.mark.parametrize(
    ("text", "ranges", "words"),
    [
        (RELU, {"x": 50_000.0}, "x holds values up to 5e+04; 65504 / 2 is the limit"),
        (RELU, {"x": ValueRange(-2e4, 2e4, clipped=True)}, "x has a clipping value of 2e+04; 65504 / 8 is the limit"),
        ("g (float x) => (float y) <float c = {-1e9}> { y = Add(x, c) }", {}, "the constant c holds 1e+09, beyond 65504"),
        ("g (float[1,70000] x) => (float[1,70000] y) { y = Softmax(x) }", {}, "Softmax adds up 70000 values, with intermediate sums up to 7e+04, beyond 65504"),
        ("g (float[4] x) => (float[4] y) { y = Sin(x) }", {"x": 20.0}, "Sin reads values up to 20. From 16 on two neighboring"),
    ],
)  # fmt: skip
def test_reasons_name_the_tensor_and_the_figure(text: str, ranges: dict[str, Any], words: str) -> None:
    (reason,) = choice_of(text, **ranges).reasons.values()
    assert reason.text.startswith(words)


def test_a_sum_of_a_constant_is_known_though_no_data_tell_of_it() -> None:
    text = "g (float[1] x) => (float[1] y) <float[2] c = {1.0, 2.0}> { s = ReduceSum<keepdims=0>(c) y = Mul(x, s) }"
    ranges = ValueRanges({name: within(-1.0, 1.0) for name in "xsy"}, "data", 4)
    assert floats(choose_types(Model(model_of(text)), ranges, TypeOptions())) == {}


def test_every_reason_has_its_row_in_the_documentation() -> None:
    words = [word for constraint in CONSTRAINTS for word in constraint.rules if word != INT8]
    told = first_cells(VERB_PAGES["amp"], "reason")
    assert list(dict.fromkeys(words)) == [word for word in told if word in words]
    assert set(told) - set(words) == {"overflow", "loss", TOGETHER, CASTS}
