# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Predicted layers on small graphs: what runs together, what gives out INT8, which Q/DQ nodes stay."""

from __future__ import annotations

import pytest

from qdqtool.trtversion import TrtVersion
from tests.engine.layer_nets import RESIDUAL, V8_2, V8_5, V10, brief, conv, layers, net, pair, weight


def test_a_plain_convolution_takes_bias_batch_normalization_residual_and_activation() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4] g1> { c = Conv(x, w) b = BatchNormalization(c, g1, g1, g1, g1) a = Add(b, x) y = Relu(a) }"
    (layer,) = layers(text)
    assert layer.name == "c + b + a + y" and layer.kind == "convolution" and layer.rule == "conv"
    assert layer.named == layer.nodes == ("c", "b", "a", "y")
    assert (layer.compute, layer.output) == ("float", "float")
    assert layer.residual is not None and layer.residual.tensor == "x"
    assert layer.weights == ("w", "g1")


def test_a_tensor_that_another_reads_ends_the_layer() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] e) <float[4,4,1,1] w> { c = Conv(x, w) y = Relu(c) e = Erf(c) }"
    assert brief(text) == ["c: float -> float", "PWN(y): float -> float", "PWN(e): float -> float"]


def test_int8_convolutions_are_named_after_weight_and_quantizer_and_hide_relu() -> None:
    text = net(
        pair("x")
        + weight("w")
        + weight("v")
        + conv("c", "x_d", "w_d")
        + " r = Relu(c)\n"
        + pair("r")
        + conv("y", "r_d", "v_d"),
        "w",
        "v",
    )
    found = layers(text)
    assert [layer.name for layer in found] == ["x_q", "w + w_q + c", "v + v_q + y"]
    assert [layer.output for layer in found] == ["int8", "int8", "float"]
    assert [layer.compute for layer in found] == ["float", "int8", "int8"]
    assert set(found[1].nodes) == {"c", "r", "x_d", "w_q", "w_d", "r_q"} and found[1].named == ("w_q", "c")


def test_a_clip_stays_in_the_name() -> None:
    text = net(pair("x") + weight("w") + conv("c", "x_d", "w_d") + " y = Clip(c, s, t)\n", "w")
    assert brief(text)[1] == "w + w_q + c + PWN(y): int8 -> float"


def test_a_pair_between_convolution_and_batch_normalization_splits_them() -> None:
    body = (
        pair("x")
        + weight("w")
        + conv("c", "x_d", "w_d")
        + pair("c")
        + " b = BatchNormalization(c_d, ws, ws, ws, ws) y = Relu(b)\n"
    )
    assert brief(net(body, "w")) == [
        "x_q: float -> int8",
        "w + w_q + c: int8 -> int8",
        "c_d: int8 -> float",
        "b: float -> float",
        "PWN(y): float -> float",
    ]


def test_a_float_residual_makes_the_output_float_and_leaves_its_quantizer() -> None:
    found = layers(net(RESIDUAL.format("", "x"), "w", "v"))
    assert [layer.name for layer in found] == ["x_q", "w + w_q + c + a + r", "r_q", "v + v_q + y"]
    assert found[1].output == "float" and found[1].residual is not None and found[1].residual.precision == "float"


def test_a_residual_through_a_pair_keeps_it_int8() -> None:
    found = layers(net(RESIDUAL.format(pair("x", "2"), "x_d2"), "w", "v"))
    assert [layer.name for layer in found] == ["x_q", "w + w_q + c + a + r", "v + v_q + y"]
    assert found[1].output == "int8" and found[1].residual is not None and found[1].residual.precision == "int8"
    assert set(found[0].nodes) == {"x_q", "x_q2"}, "equal quantizers on one tensor are one layer"


def test_an_int8_residual_of_a_float_output_is_dequantized_first() -> None:
    text = net(pair("x") + pair("x", "2") + weight("w") + conv("c", "x_d", "w_d") + " y = Add(c, x_d2)\n", "w")
    assert brief(text) == ["x_q: float -> int8", "x_d2: int8 -> float", "w + w_q + c + y: int8 -> float"]


PROJECTION = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4,4,1,1] v, float[4,4,1,1] u> { c1 = Conv(x, w) r1 = Relu(c1) c2 = Conv(r1, v) p = Conv(x, u) y = Add(c2, p) }"


@pytest.mark.parametrize(
    ("version", "names"),
    [(V8_5, {"c1 + r1", "c2", "p + y"}), (V8_2, {"c1 + r1", "p", "c2 + y"}), (V10, {"c1 + r1", "c2", "p + y"})],
)
def test_which_convolution_takes_the_add_is_a_matter_of_version(version: TrtVersion, names: set[str]) -> None:
    assert {layer.name for layer in layers(PROJECTION, version)} == names
    swapped = PROJECTION.replace("Add(c2, p)", "Add(p, c2)")
    assert {layer.name for layer in layers(swapped, version)} == names


def test_a_pair_on_one_branch_decides_whatever_the_version() -> None:
    body = (
        pair("x")
        + weight("w")
        + weight("v")
        + weight("u")
        + conv("c1", "x_d", "w_d")
        + pair("c1")
        + conv("c2", "c1_d", "v_d")
    )
    body += conv("p", "x_d", "u_d") + pair("p") + " a = Add(c2, p_d)\n" + pair("a") + " y = GlobalAveragePool(a_d)\n"
    for version in (V8_2, V8_5, V10):
        assert "v + v_q + c2 + a: int8 -> int8" in brief(net(body, "w", "v", "u"), version)


POOLED = (
    pair("x")
    + weight("w")
    + weight("v")
    + conv("c", "x_d", "w_d")
    + " r = Relu(c) p = MaxPool<kernel_shape=[2,2]>(r)\n{}"
    + conv("y", "p_d", "v_d")
)


def test_the_pool_of_the_stem_joins_its_convolution_from_8_4_on() -> None:
    text = net(POOLED.format(pair("p")), "w", "v")
    assert "w + w_q + c + p: int8 -> int8" in brief(text, V8_5)
    older = brief(text, TrtVersion(8, 2, 1))
    assert "w + w_q + c: int8 -> int8" in older and "p: int8 -> int8" in older


def test_a_pool_that_is_read_in_float_stays_alone_and_in_float() -> None:
    text = net(
        POOLED.format(pair("p")).replace(conv("y", "p_d", "v_d"), conv("k", "p_d", "v_d") + " y = Add(k, p)\n"),
        "w",
        "v",
    )
    found = brief(text)
    assert found[1:4] == ["w + w_q + c: int8 -> float", "p: float -> float", "p_q: float -> int8"]


def test_a_second_equal_pair_before_the_pool_changes_nothing_another_scale_does() -> None:
    before = POOLED.replace("(r)", "(r_d)").replace(" p = Max", "\n" + pair("r") + " p = Max")
    assert "w + w_q + c + p: int8 -> int8" in brief(net(before.format(pair("p")), "w", "v"))
    other = before.format(pair("p", scale="t"))
    assert "w + w_q + c + p: int8 -> int8" not in brief(net(other, "w", "v"))


def test_two_scales_on_one_tensor_leave_two_quantizers() -> None:
    body = pair("x") + weight("w") + weight("v") + conv("c", "x_d", "w_d") + pair("c") + pair("c", "2", "t")
    body += conv("k", "c_d", "v_d") + conv("l", "c_d2", "v_d") + " y = Add(k, l)\n"
    found = brief(net(body, "w", "v"))
    assert {"c_q: float -> int8", "c_q2: float -> int8", "w + w_q + c: int8 -> float"} <= set(found)


AVERAGE = pair("x") + " g = GlobalAveragePool({})\n{} y = {}\n"


def test_an_average_is_int8_with_pairs_on_both_sides_only() -> None:
    both = net(AVERAGE.format("x_d", pair("g") + weight("w") + conv("k", "g_d", "w_d"), "Relu(k)"), "w")
    assert "g: int8 -> int8" in brief(both)
    one = net(AVERAGE.format("x_d", "", "Relu(g)"))
    assert brief(one) == ["x_q: float -> int8", "x_d: int8 -> float", "g: float -> float", "PWN(y): float -> float"]


def test_elementwise_operators_in_a_row_are_one_layer() -> None:
    text = "g (float[1,4,8,8] x, float[1,4,8,8] z) => (float[1,4,8,8] y) <float[4,1,1] k> { e = Add(x, z) p = PRelu(e, k) q = Softmax(p) m = Sigmoid(q) y = Mul(q, m) }"
    assert [layer.name for layer in layers(text)] == ["PWN(e, PWN(k, p))", "q", "PWN(m, PWN(y))"]
    assert {layer.kind for layer in layers(text)} == {"pointwise", "softmax"}


ADDED = pair("x") + weight("w") + conv("c", "x_d", "w_d") + pair("c") + " a = Add(c_d, {})\n{} y = {}\n"


def test_an_add_between_pairs_is_an_int8_layer() -> None:
    text = net(ADDED.format("x_d", pair("a"), "GlobalAveragePool(a_d)"), "w")
    assert "a: int8 -> int8" in brief(text)


def test_from_10_on_generated_kernels_take_in_the_pairs_around_them() -> None:
    text = net(ADDED.format("x_d", "", "Softmax(a)"), "w")
    assert [line.split(":")[0] for line in brief(text, V8_5)] == ["x_q", "x_d", "w + w_q + c", "c_d", "a", "y"]
    newer = layers(text, V10)
    assert [layer.name for layer in newer] == ["x_q", "w + w_q + c", "a", "y"]
    assert newer[2].input == "int8" and newer[2].output == "float" and {"c_d", "x_d"} < set(newer[2].nodes)


def test_generic_activations_join_no_convolution_of_one_input_channel() -> None:
    text = "g (float[1,{0},8,8] x) => (float[1,4,8,8] y) <float[4,{1},1,1] w, float[4,1,1] k> {{ c = Conv<group={2}>(x, w) y = PRelu(c, k) }}"
    assert [layer.name for layer in layers(text.format(4, 4, 1))] == ["c + PWN(k, y)"]
    assert [layer.name for layer in layers(text.format(1, 1, 1))] == ["c", "PWN(k, y)"]
    assert [layer.name for layer in layers(text.format(4, 1, 4))] == ["c + PWN(k, y)"], (
        "depthwise: four channels come in"
    )


def test_transposed_convolution_takes_batch_normalization_in_float_only() -> None:
    behind = " b = BatchNormalization(c, ws, ws, ws, ws) y = Relu(b)\n"
    plain = net(" c = ConvTranspose(x, w)\n" + behind, "w")
    assert brief(plain) == ["c + b + y: float -> float"]
    quantized = net(pair("x") + weight("w") + " c = ConvTranspose(x_d, w_d)\n" + behind, "w")
    assert brief(quantized) == [
        "x_q: float -> int8",
        "w + w_q + c: int8 -> float",
        "b: float -> float",
        "PWN(y): float -> float",
    ]
