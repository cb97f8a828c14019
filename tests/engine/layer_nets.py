# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Small graphs for tests of predicted layers, and the layers in short. Nodes are named by what they make. No tests here."""

from __future__ import annotations

from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.graph.view import GraphView
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

V8_0, V8_2, V8_5, V10 = (TrtVersion(*v) for v in ((8, 0, 1), (8, 2, 3), (8, 5, 1), (10, 3, 0)))
SCALES = "float s = {0.1}, float t = {0.2}, int8 z = {0}, float[4] ws = {0.1,0.1,0.1,0.1}, int8[4] wz = {0,0,0,0}"


def pair(tensor: str, end: str = "", scale: str = "s") -> str:
    """Text of a Q/DQ pair: tensor -> tensor_q -> tensor_d."""
    return (
        f" {tensor}_q{end} = QuantizeLinear({tensor}, {scale}, z)"
        f" {tensor}_d{end} = DequantizeLinear({tensor}_q{end}, {scale}, z)\n"
    )


def weight(name: str) -> str:
    return f" {name}_q = QuantizeLinear<axis=0>({name}, ws, wz) {name}_d = DequantizeLinear<axis=0>({name}_q, ws, wz)\n"


def conv(name: str, tensor: str, w: str = "w", words: str = "pads=[1,1,1,1]") -> str:
    return f" {name} = Conv<{words}>({tensor}, {w})\n"


def net(body: str, *weights: str, output: str = "y") -> str:
    names = ", ".join([f"float[4,4,3,3] {name}" for name in weights] + [SCALES])
    return f"g (float[1,4,8,8] x) => (float[N,A,B,C] {output}) <{names}> {{\n{body}}}"


def layers(text: str, version: TrtVersion | None = V8_5) -> list[PredictedLayer]:
    return list(predict_layers(GraphView(model_of(text).graph), version))


def brief(text: str, version: TrtVersion | None = V8_5) -> list[str]:
    """`name: reads -> gives out` per layer."""
    return [f"{layer.name}: {layer.input} -> {layer.output}" for layer in layers(text, version)]


RESIDUAL = (
    pair("x")
    + weight("w")
    + weight("v")
    + conv("c", "x_d", "w_d")
    + "{} a = Add(c, {}) r = Relu(a)\n"
    + pair("r")
    + conv("y", "r_d", "v_d")
)
