# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Relu that unsigned integers made needless comes back where its work would be lost, and nowhere else."""

from __future__ import annotations

import re

import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.activation import restore_activations
from qdqtool.passes.peel import peel_pairs
from tests.graphs import model_of

W = "float[4,4,1,1] w, float[1,4,2,2] s4 = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, float s = {0.25}, float six = {0.023529412}, uint8 u = {0}, int8 i = {-128}, uint8 m = {100}, int8 o = {0}"


def model(body: str, opset: int = 17) -> onnx.ModelProto:
    return model_of(f"g (float[1,4,2,2] x) => (float[N] z) <{W}> {{ {body} }}", opset)


def pair(tensor: str, zero: str = "u", scale: str = "s") -> str:
    return f"{tensor}q = QuantizeLinear({tensor}, {scale}, {zero}) {tensor}d = DequantizeLinear({tensor}q, {scale}, {zero})"


@pytest.mark.parametrize(("zero", "scale", "op"), [("u", "s", "Relu"), ("i", "s", "Relu"), ("u", "six", "Clip")])
def test_an_activation_comes_back_behind_a_convolution(zero: str, scale: str, op: str) -> None:
    graph = model(f"c = Conv(x, w) {pair('c', zero, scale)} z = Conv(cd, w)").graph
    assert restore_activations(GraphView(graph), 17) == ("c",)
    view = GraphView(graph)
    assert view.producers["c_Relu"].op == op and list(view.pairs) == ["c_Relu"]
    if op == "Clip":
        assert [float(view.array(name)) for name in view.producers["c_Relu"].inputs[1:]] == [0.0, 6.0]


def test_clip_of_six_is_relu_before_its_bounds_were_inputs() -> None:
    graph = model(f"c = Conv(x, w) {pair('c', 'u', 'six')} z = Conv(cd, w)").graph
    assert restore_activations(GraphView(graph), 10) == ("c",)
    assert GraphView(graph).producers["c_Relu"].op == "Relu"


@pytest.mark.parametrize(
    "body",
    [
        f"{pair('x')} z = Conv(xd, w)",
        f"c = Conv(x, w) r = Relu(c) {pair('r')} z = Conv(rd, w)",
        f"c = Sigmoid(x) p = MaxPool<kernel_shape=[1,1]>(c) {pair('p')} z = Conv(pd, w)",
        f"c = Conv(x, w) {pair('c', 'm')} z = Conv(cd, w)",
        f"c = Conv(x, w) {pair('c', 'o')} z = Conv(cd, w)",
        f"c = Clip(x, s, six) {pair('c')} z = Conv(cd, w)",
        f"r = Relu(x) p = Concat<axis=1>(r, r) {pair('p')} z = Relu(pd)",
        f"r = Relu(x) p = Concat<axis=1>(r, s4) {pair('p')} z = Relu(pd)",
    ],
    ids=[
        "input",
        "Relu is there",
        "no sign through a pool",
        "a range on both sides",
        "symmetric",
        "cut above zero",
        "one tensor twice",
        "a positive constant",
    ],
)
def test_none_where_nothing_would_be_lost(body: str) -> None:
    made = model(body)
    before = made.SerializeToString()
    assert restore_activations(GraphView(made.graph), 17) == ()
    assert made.SerializeToString() == before


def test_one_is_enough_for_what_follows() -> None:
    body = f"c = Conv(x, w) {pair('c')} p = MaxPool<kernel_shape=[1,1]>(cd) {pair('p')} z = Conv(pd, w)"
    assert restore_activations(GraphView(model(body).graph), 17) == ("c",)


def test_peeling_widens_and_says_so() -> None:
    made = model(f"c = Conv(x, w) {pair('c')} z = Conv(cd, w)")
    peeled = peel_pairs(Model(made), on_asymmetric="widen", opset=17)
    assert [node.op_type for node in made.graph.node] == ["Conv", "Relu", "Conv"] and list(peeled.scales) == ["c_Relu"]
    assert re.search("a Relu was added .*1 tensors, such as c$", peeled.notes[0])
    assert re.match("asymmetric integers .*: 1 tensors", peeled.notes[1])
    assert peeled.scales["c_Relu"].method == "widened from uint8 with zero point 0"
