# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Predicted layers on small graphs: parallel convolutions, what only moves values, joins, shapes, orders, long chains."""

from __future__ import annotations

import pytest

from qdqtool.engine.predict import predict_layers
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from tests.engine.layer_nets import RESIDUAL, SCALES, V8_0, V8_2, V8_5, V10, brief, conv, layers, net, pair, weight
from tests.graphs import model_of, shuffled


def parallel(count: int, odd: str = "pads=[1,1,1,1]") -> str:
    body = "".join(conv(f"c{i}", "x", f"w{i}", odd if i == 1 else "pads=[1,1,1,1]") for i in range(count))
    return net(
        body + f" y = Concat<axis=1>({', '.join(f'c{i}' for i in range(count))})\n", *(f"w{i}" for i in range(count))
    )


def test_parallel_convolutions_run_as_one_eight_at_most() -> None:
    assert [layer.name for layer in layers(parallel(3), V8_2)] == ["c0 || c1 || c2"]
    assert [len(layer.nodes) for layer in layers(parallel(10), V8_2)] == [8, 2]
    assert {layer.name for layer in layers(parallel(3, "pads=[0,0,0,0]"), V8_2)} == {"c0 || c2", "c1"}, (
        "another padding"
    )
    assert [layer.name for layer in layers(parallel(2), V8_0)] == ["c0", "c1"], "not seen in 8.0.1"
    assert [layer.name for layer in layers(parallel(2), V10)] == ["c0", "c1"]


def test_parallel_convolutions_of_float_and_int8_stay_apart() -> None:
    body = (
        pair("x")
        + weight("w")
        + weight("u")
        + conv("a", "x_d", "w_d")
        + conv("b", "x", "v")
        + conv("c", "x_d", "u_d")
        + " y = Concat<axis=1>(a, b, c)\n"
    )
    assert [layer.name for layer in layers(net(body, "w", "v", "u"))] == ["x_q", "b", "w + w_q + a || u + u_q + c"]


def test_concat_is_no_layer_but_what_cannot_be_written_into_it_is_copied() -> None:
    text = net(conv("c", "x") + " r = InstanceNormalization(x, ws, ws) y = Concat<axis=1>(c, r)\n", "w")
    assert [(layer.kind, layer.name) for layer in layers(text)] == [
        ("convolution", "c"),
        ("instancenormalization", "r"),
        ("copy", "r copy"),
    ]


def test_a_concat_in_int8_requantizes_the_input_that_is_float() -> None:
    body = (
        pair("x")
        + weight("w")
        + weight("v")
        + conv("c", "x_d", "w_d")
        + conv("f", "x", "u")
        + " k = Concat<axis=1>(c, f)\n"
        + pair("k")
        + " y = MaxPool<kernel_shape=[2,2]>(k_d)\n"
    )
    found = {(layer.name, layer.output) for layer in layers(net(body, "w", "v", "u"))}
    assert found >= {("w + w_q + c", "int8"), ("f", "float"), ("f copy", "int8")}


JOINED = (
    pair("x")
    + weight("w")
    + weight("v")
    + weight("u")
    + conv("c", "x_d", "w_d")
    + pair("c")
    + conv("f", "x_d", "v_d", "pads=[0,0,0,0]")
    + " i = Resize(f_d, , scales)\n"
    + "{} k = Concat<axis=1>(c_d, i)\n"
    + conv("y", "k", "u_d")
)


def test_pairs_before_a_concat_reach_the_convolution_behind_it_if_their_scale_is_one() -> None:
    body = JOINED.format(pair("f"))
    text = net(body, "w", "v", "u").replace(SCALES, SCALES + ", float[4] scales = {1.0,1.0,1.0,1.0}")
    assert brief(text)[-1] == "u + u_q + y: int8 -> float" and not [line for line in brief(text) if "_d:" in line]
    other = net(JOINED.format(pair("f", scale="t")), "w", "v", "u").replace(
        SCALES, SCALES + ", float[4] scales = {1.0,1.0,1.0,1.0}"
    )
    assert brief(other)[-1] == "y: float -> float" and {"c_d: int8 -> float", "f_d: int8 -> float"} <= set(brief(other))


@pytest.mark.parametrize(("mode", "kind"), [("nearest", "int8 -> int8"), ("linear", "float -> float")])
def test_only_a_nearest_resize_moves_values(mode: str, kind: str) -> None:
    body = pair("x") + weight("w") + f' i = Resize<mode="{mode}">(x_d, , scales)\n' + conv("y", "i", "w_d")
    text = net(body, "w").replace(SCALES, SCALES + ", float[4] scales = {1.0,1.0,2.0,2.0}")
    assert f"i: {kind}" in brief(text)


def test_an_average_over_channels_is_no_int8_layer() -> None:
    for axes, kind in (("[2,3]", "int8 -> int8"), ("[1]", "float -> float")):
        body = pair("x") + f" m = ReduceMean<axes={axes}>(x_d)\n" + pair("m") + weight("w") + conv("y", "m_d", "w_d")
        assert f"m: {kind}" in brief(net(body, "w"))


def test_shapes_reshapes_and_constants_are_no_layers() -> None:
    text = """g (float[1,4,8,8] x) => (float[N,M] y) <float[256,8] w, int64[1] one = {1}, int64 zero = {0}, int64[1] rest = {-1}> {
        sh = Shape(x) n = Gather(sh, zero) u = Unsqueeze(n, rest) k = Concat<axis=0>(u, rest) v = Reshape(x, k) y = MatMul(v, w) }"""
    (layer,) = layers(text)
    assert (layer.name, layer.kind) == ("y", "product") and layer.inputs[0].tensor == "v"


def test_moving_operators_carry_int8_and_the_dequantizer_goes_behind_them() -> None:
    body = pair("x") + weight("w") + " m = Transpose<perm=[0,1,3,2]>(x_d)\n" + conv("y", "m", "w_d")
    assert brief(net(body, "w")) == ["x_q: float -> int8", "m: int8 -> int8", "w + w_q + y: int8 -> float"]
    read = net(pair("x") + " m = Transpose<perm=[0,1,3,2]>(x_d) y = Softmax(m)\n")
    assert brief(read) == ["x_q: float -> int8", "x_d: int8 -> float", "m: int8 -> int8", "y: float -> float"]


def test_weights_that_are_stored_as_integers_and_float_activations() -> None:
    stored = (
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <int8[4,4,1,1] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, "
        + SCALES
        + "> {"
        + pair("x")
        + " w_d = DequantizeLinear<axis=0>(w, ws, wz) y = Conv(x_d, w_d) }"
    )
    assert layers(stored)[1].compute == "int8"
    only = net(weight("w") + conv("y", "x", "w_d"), "w")
    assert [layer.compute for layer in layers(only)] == ["float"], "its activation comes in as float"


def test_products_of_two_computed_tensors() -> None:
    text = (
        "g (float[1,8,8] x, float[1,8,8] k) => (float[1,8,8] y) <"
        + SCALES
        + "> {"
        + pair("x")
        + pair("k")
        + " y = MatMul(x_d, k_d) }"
    )
    assert layers(text)[-1].compute == "int8" and len(layers(text)) == 3
    half = text.replace("x_d, k_d", "x_d, k")
    assert layers(half)[-1].compute == "float"


def test_the_order_of_the_node_list_does_not_matter() -> None:
    model = model_of(net(RESIDUAL.format(pair("x", "2"), "x_d2"), "w", "v"))
    named = {(layer.name, layer.output) for layer in predict_layers(GraphView(model.graph), V8_5)}
    for seed in range(5):
        again = predict_layers(GraphView(shuffled(model, seed).graph), V8_5)
        assert {(layer.name.replace("x_q2", "x_q"), layer.output) for layer in again} == named


def test_the_dla_is_refused() -> None:
    with pytest.raises(QdqError, match=r"--target dla: .*gpu"):
        predict_layers(GraphView(model_of(net(conv("y", "x"), "w")).graph), None, "dla")


def test_a_generated_kernel_quantizes_what_it_gives_out_from_10_on() -> None:
    text = net(" a = Add(x, x)\n" + pair("a") + weight("w") + conv("y", "a_d", "w_d"), "w")
    assert brief(text, V10)[0] == "a: float -> int8"
    assert brief(text, V8_5)[:2] == ["a: float -> float", "a_q: float -> int8"]


def test_an_operator_where_two_chains_meet_runs_in_one_of_them() -> None:
    text = "g (float[1,4] x, float[1,4] z) => (float[1,4] y) { a = Sigmoid(x) b = Tanh(z) y = Add(a, b) }"
    found = layers(text)
    assert sorted(name for layer in found for name in layer.nodes) == ["a", "b", "y"] and len(found) == 2


def test_convolutions_of_another_kernel_are_not_merged() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,A,B] y, float[1,4,C,D] z) <float[4,4,3,3] w, float[4,4,1,1] v> { y = Conv(x, w) z = Conv(x, v) }"
    assert {layer.name for layer in layers(text, V8_2)} == {"y", "z"}
    same = text.replace("[4,4,1,1]", "[4,4,3,3]")
    assert {layer.name for layer in layers(same, V8_2)} == {"y || z"}


def test_what_the_network_gives_out_is_dequantized() -> None:
    text = net(pair("x") + weight("w") + conv("c", "x_d", "w_d") + pair("c"), "w", output="c_d")
    assert brief(text) == ["x_q: float -> int8", "w + w_q + c: int8 -> int8", "c_d: int8 -> float"]


def test_a_split_is_int8_if_all_that_it_gives_is_wanted_so() -> None:
    body = (
        pair("x")
        + weight("w")
        + conv("c", "x_d", "w_d")
        + " m, n = Split<axis=2, num_outputs=2>(c)\n"
        + pair("m")
        + pair("n", scale="{}")
        + " i = MatMul(m_d, n_d) y = Softmax(i)\n"
    )
    assert "w + w_q + c: int8 -> int8" in brief(net(body.replace("{}", "s"), "w"))
    assert "w + w_q + c: int8 -> float" in brief(net(body.replace("{}", "t"), "w"))


def test_long_chains_of_moves_need_no_recursion() -> None:
    moves = "".join(f" m{i + 1} = Transpose<perm=[0,1,3,2]>(m{i})\n" for i in range(1100))
    body = " m0 = Relu(x)\n" + moves + pair("m1100") + weight("w") + conv("y", "m1100_d", "w_d")
    assert len(layers(net(body, "w"))) == 1103
