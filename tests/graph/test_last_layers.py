# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Last weighted operators that are no detection heads, each beside a graph that looks alike and has one."""

from __future__ import annotations

import pytest

from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.heads import find_heads
from qdqtool.graph.last_layers import LastLayers, is_log_odds
from qdqtool.rulebook import load_rules
from tests.graphs import view_of

WEIGHTS = "float[50,8] table, float[8,8] w, float[8,2] w2, float[8,4] w4, float[8,6] w6, float[9,3,3,3] cw, float[8,3,3,3] cw8, float[8] g, float eps = {0.1}"
TOKENS = "int64[1,4] x"
PATCHES = "float[1,4,8] x"
IMAGE = "float[1,3,16,16] x"


def labels_of(inputs: str, body: str, outputs: str = "float[N] z", more: str = "") -> dict[str, str]:
    text = f"g ({inputs}) => ({outputs}) <{WEIGHTS}{', ' + more if more else ''}> {{ {body} }}"
    return {head.key: head.label for head in find_heads(view_of(text), load_rules("gpu").heads)}


TWO = "float[N] z, float[N] y"
NORM = "m = ReduceMean<axes=[-1]>(f) d = Sub(f, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) u = Add(v, eps) s = Sqrt(u) n = Div(d, s)"
FOUND = {
    "answers of BERT, cut into start and end": (TOKENS, "e = Gather(table, x) l = MatMul(e, w2) z, y = Split<axis=2, num_outputs=2>(l)", TWO, {"l": "last layer"}),
    "answers, whose tokens are cast first": ("int32[1,4] x", "i = Cast<to=7>(x) e = Gather(table, i) z = MatMul(e, w2)", "float[N] z", {"z": "last layer"}),
    "the next token": (TOKENS, "e = Gather(table, x) z = MatMul(e, w6)", "float[N] z", {"z": "last layer"}),
    "a pooled token after Tanh": (TOKENS, "e = Gather(table, x) c = MatMul(e, w) z = Tanh(c)", "float[N] z", {"c": "last layer"}),
    "patches without tokens": (PATCHES, "z = MatMul(x, w6)", "float[N] z", {"z": "regression"}),
    "classes of queries beside a box": (PATCHES, "y = MatMul(x, w6) b = MatMul(x, w4) z = Sigmoid(b)", TWO, {"y": "last layer", "b": "regression"}),
    "four raw numbers beside a box": (PATCHES, "y = MatMul(x, w4) b = MatMul(x, w4) z = Sigmoid(b)", TWO, {"y": "regression", "b": "regression"}),
    "classes beside a box, computed on": (PATCHES, "c = MatMul(x, w6) y = Exp(c) b = MatMul(x, w4) z = Sigmoid(b)", TWO, {"c": "regression", "b": "regression"}),
    "features after a LayerNormalization": (PATCHES, "f = MatMul(x, w) z = LayerNormalization(f, g)", "float[N] z", {"f": "last layer"}),
    "a LayerNormalization that is written out": (PATCHES, f"f = MatMul(x, w) {NORM} z = Mul(n, g)", "float[N] z", {"f": "last layer"}),
    "an RMS normalization by the reciprocal root": (PATCHES, "f = MatMul(x, w) q = Mul(f, f) v = ReduceMean<axes=[-1]>(q) u = Add(v, eps) s = Sqrt(u) r = Reciprocal(s) n = Mul(f, r) z = Mul(n, g)", "float[N] z", {"f": "last layer"}),
    "an embedding of length one": (PATCHES, "f = MatMul(x, w) l = ReduceL2<axes=[-1]>(f) c = Clip(l, eps) z = Div(f, c)", "float[N] z", {"f": "last layer"}),
    "a division by something else": (PATCHES, "f = MatMul(x, w) l = ReduceMax<axes=[-1]>(f) z = Div(f, l)", "float[N] z", {"f": "regression"}),
    "a class token's logits": (PATCHES, "h = MatMul(x, w) n = LayerNormalization(h, g) t = Gather<axis=1>(n, zero) z = MatMul(t, w6)", "float[N] z", {"z": "last layer"}),
    "a fine map of classes": (IMAGE, "z = Conv<strides=[2,2], pads=[1,1,1,1]>(x, cw)", "float[1,9,8,8] z", {"z": "last layer"}),
    "a fine map made larger": (IMAGE, 'c = Conv<strides=[2,2], pads=[1,1,1,1]>(x, cw) z = Resize<mode="linear">(c, , twice)', "float[1,9,16,16] z", {"c": "last layer"}),
    "two of them": (IMAGE, "z = Conv<pads=[1,1,1,1]>(x, cw) y = Conv<pads=[1,1,1,1]>(x, cw)", "float[1,9,16,16] z, float[1,9,16,16] y", {"z": "last layer", "y": "last layer"}),
    "a map beside scores": (IMAGE, "z = Conv<pads=[1,1,1,1]>(x, cw) c = Conv<pads=[1,1,1,1]>(x, cw) y = Sigmoid(c)", "float[1,9,16,16] z, float[1,9,16,16] y", {"z": "regression", "c": "score"}),
    "a coarse map": (IMAGE, "c = Conv<pads=[1,1,1,1]>(x, cw) z = AveragePool<kernel_shape=[9,9], strides=[9,9]>(c)", "float[1,9,1,1] z", {"c": "last layer"}),
    "a map of few channels": (IMAGE, "z = Conv<pads=[1,1,1,1]>(x, cw8)", "float[1,8,16,16] z", {"z": "regression"}),
    "a picture": (IMAGE, "c = Conv<pads=[1,1,1,1]>(x, cw) z = DepthToSpace<blocksize=3>(c)", "float[N] z", {"c": "regression"}),
    "a map of unknown size": (IMAGE, "z = Conv<pads=[1,1,1,1]>(x, cw)", "float[N] z", {"z": "regression"}),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "body", "outputs", "labels"), FOUND.values(), ids=FOUND)
def test_what_a_last_layer_is(inputs: str, body: str, outputs: str, labels: dict[str, str]) -> None:
    assert labels_of(inputs, body, outputs, "int64 zero = {0}, float[4] twice = {1,1,2,2}") == labels


def test_a_coarse_map_is_a_detectors() -> None:
    text = "g (float[1,3,144,144] x) => (float[1,9,8,8] z) <float[9,3,18,18] w> { z = Conv<strides=[18,18]>(x, w) }"
    view = view_of(text)
    assert [head.label for head in find_heads(view, load_rules("gpu").heads)] == ["regression"]


@pytest.mark.parametrize(
    ("inputs", "body", "tokens", "alone"),
    [
        (TOKENS, "z = Gather(table, x)", True, True),
        (f"{TOKENS}, {PATCHES.replace('x', 'p')}", "e = Gather(table, x) z = Add(e, p)", True, False),
        (f"{TOKENS}, {PATCHES.replace('x', 'p')}", "f = Cast<to=1>(x) z = Add(f, p)", False, False),
        (PATCHES, "z = Relu(x)", False, False),
    ],
    ids=["tokens", "tokens and patches", "the size of the image", "patches"],
)
def test_whether_a_network_reads_tokens(inputs: str, body: str, tokens: bool, alone: bool) -> None:
    view = view_of(f"g ({inputs}) => (float[N] z) <{WEIGHTS}> {{ {body} }}")
    last = LastLayers(view, load_rules("gpu").heads, TensorSizes(view))
    assert (last.reads_tokens, last.reads_tokens_alone) == (tokens, alone)


def test_log_odds_are_a_logarithm_or_the_difference_of_two() -> None:
    view = view_of("g (float[4] x, float[4] y) => (float[4] z) { l = Log(x) m = Log(y) z = Sub(l, m) s = Sub(x, y) }")
    assert [is_log_odds(view, name) for name in ("l", "z", "s", "x")] == [True, True, False, False]
