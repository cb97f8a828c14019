# SPDX-License-Identifier: Apache-2.0
"""Which biases of INT8 convolutions are added after a Transpose."""

from __future__ import annotations

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.match.late_bias import late_biases, placed_biases
from qdqtool.rulebook import load_rules
from tests.graphs import model_of

PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
WEIGHT = "v = QuantizeLinear<axis=0>(w, t, o) e = DequantizeLinear<axis=0>(v, t, o)"
CONV = f"{PAIR} {WEIGHT} c = Conv(d, e, b)"
LAST = "Transpose<perm=[0,2,3,1]>"
NORM = "LayerNormalization"
HEAD = (
    "net (float[1,3,4,6] x) => (float[] y) <float[2,3,1,1] w, float[2] b = {0.5, 0.25}, float[2] u = {1, 2}, "
    "float s = {0.1}, int8 z = {0}, float[2] t = {0.1, 0.2}, int8[2] o = {0, 0}, int64[3] to = {1, 2, 24}, "
    "int64[3] split = {1, 4, 12}, int64[1] last = {3}, float[1,2,1,1] one>"
)
FOUND = {
    "a norm": (f"{CONV} m = {LAST}(c) y = {NORM}(m, u, b)", "c m"),
    "a mean over the channels": (f"{CONV} m = {LAST}(c) n = ReduceMean<axes=[-1]>(m) y = Sub(m, n)", "c m"),
    "a softmax": (f"{CONV} m = {LAST}(c) y = Softmax(m)", "c m"),
    "tokens": (f"{CONV} r = Reshape(c, to) m = Transpose<perm=[0,2,1]>(r) y = {NORM}(m, u, b)", "c r m"),
    "two transposes": (
        f"{CONV} k = Transpose<perm=[0,1,3,2]>(c) m = {LAST}(k) y = {NORM}(m, u, b)",
        "c k m",
    ),
    "a residual reads it too": (f"{CONV} m = {LAST}(c) n = {NORM}(m, u, b) y = Add(m, n)", "c m"),
    "no perm: the axes in reverse": (f"{CONV} m = Transpose(c) y = {NORM}(m, u, b)", ""),
    "channels stay where they are": (f"{CONV} m = Transpose<perm=[0,1,3,2]>(c) y = Softmax(m)", ""),
    "no transpose": (f"{CONV} y = Softmax(c)", ""),
    "a reshape that cuts channels": (f"{CONV} r = Reshape(c, split) m = Transpose<perm=[0,2,1]>(r) y = Softmax(m)", ""),
    "nothing that reduces": (f"{CONV} m = {LAST}(c) y = Relu(m)", ""),
    "the sums are read elsewhere": (f"{CONV} m = {LAST}(c) n = {NORM}(m, u, b) k = {LAST}(c) y = Add(n, k)", ""),
    "an activation": (f"{CONV} r = Relu(c) m = {LAST}(r) y = {NORM}(m, u, b)", ""),
    "no bias": (f"{PAIR} {WEIGHT} c = Conv(d, e) m = {LAST}(c) y = {NORM}(m, u, b)", ""),
    "in float": (f"c = Conv(x, w, b) m = {LAST}(c) y = {NORM}(m, u, b)", ""),
    "a weight in float": (f"{PAIR} c = Conv(d, w, b) m = {LAST}(c) y = {NORM}(m, u, b)", ""),
    "a pair after it": (
        f"{CONV} m = {LAST}(c) i = QuantizeLinear(m, s, z) j = DequantizeLinear(i, s, z) y = {NORM}(j, u, b)",
        "",
    ),
    "it is an output": (f"{CONV} y = {LAST}(c) n = {NORM}(y, u, b)", ""),
}


@pytest.mark.parametrize(("body", "expected"), FOUND.values(), ids=FOUND)
def test_biases_that_are_added_later(body: str, expected: str) -> None:
    view = GraphView(model_of(f"{HEAD} {{ {body} }}").graph)
    found = late_biases(view, load_rules("rtx"))
    assert " ".join(node.key for one in found for node in one.nodes) == expected
    assert {one.bias for one in found} <= {"b"} and not placed_biases(view)


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_other_targets_add_the_bias_in_the_convolution(target: str) -> None:
    body, expected = FOUND["a norm"]
    assert expected and not late_biases(GraphView(model_of(f"{HEAD} {{ {body} }}").graph), load_rules(target))


def test_a_batch_whose_size_is_open_is_no_obstacle() -> None:
    body, expected = FOUND["tokens"]
    head = HEAD.replace("[1,3,4,6] x", "[n,3,4,6] x").replace("to = {1, 2, 24}", "to = {-1, 2, 24}")
    (found,) = late_biases(GraphView(model_of(f"{head} {{ {body} }}").graph), load_rules("rtx"))
    assert " ".join(node.key for node in found.nodes) == expected
