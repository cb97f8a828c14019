# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Minimal graphs of attention for TensorRT for RTX: the forms that exporters write, with all pairs and with too few.

Text as in `minimal_graphs.py`. `c` is the product of queries and keys, `e` the Softmax, `f` the product with values.
Where the pairs stand in a form that is one INT8 kernel is where `insert --attention int8` puts them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from tests.rtx.minimal_graphs import model_from, quantized

TOKENS, HEADS, SIZE = 64, 4, 32
_PAIR = re.compile(r"(\w+) = (?:pair|other)\((\w+)\)")


@dataclass(frozen=True)
class AttentionCase:
    """One graph.

    Attributes:
        body: with its pairs.
        kernels: how many fused kernels it becomes.
        why: a word of the reason that a plan without them gives; "" where a plan has the pairs of the body.
        tokens: of queries, and of keys and values.
        size: values per head of queries and keys, and of values.
        more: constants.
        inputs: in place of queries, keys and values.
        opset: of the file.
        on_gpu: a word of the reason that a plan for `gpu` gives in place of the pairs; "" where it has them, too.
        planned: whether a plan is held against it: not for what no plan makes, pairs on some tensors only.
    """

    body: str
    kernels: int = 1
    why: str = ""
    tokens: tuple[int, int] = (TOKENS, TOKENS)
    size: tuple[int, int] = (SIZE, SIZE)
    more: str = ""
    inputs: str = ""
    opset: int = 17
    on_gpu: str = ""
    planned: bool = True

    def model(self) -> onnx.ModelProto:
        """The network with its pairs."""
        return quantized(self.body, self.more, self.opset, self._inputs())

    def plain(self) -> onnx.ModelProto:
        """The network without pairs."""
        body = self.body
        while (found := _PAIR.search(body)) is not None:
            body = re.sub(rf"\b{found[1]}\b", found[2], body[: found.start()] + body[found.end() :])
        model = model_from(body, self.more, self.opset, self._inputs())
        for node in model.graph.node:
            node.name = node.output[0]
        return model

    def tensors(self) -> set[str]:
        """What has a pair."""
        return {found[2] for found in _PAIR.finditer(self.body)}

    def _inputs(self) -> str:
        (few, many), (size, wide) = self.tokens, self.size
        given = f"float[1,{HEADS},{few},{size}] q, float[1,{HEADS},{size},{many}] k, float[1,{HEADS},{many},{wide}] v"
        return self.inputs or given


_IN = "i = pair(q) j = pair(k) l = pair(v)"
_OUT = "w = other(e) f = MatMul(w, l) a = pair(f) z = Relu(a)"
_S = "float s = {0.4}"
_MASK = f"{_S}, float[1,1,{TOKENS},{TOKENS}] m"
_FREE = f"float[1,{HEADS},N,{SIZE}] q, float[1,{HEADS},{SIZE},N] k, float[1,{HEADS},N,{SIZE}] v"


def _plain(scores: str = "c = MatMul(i, j) d = Mul(c, s) e = Softmax(d)", out: str = _OUT) -> str:
    return f"{_IN} {scores} {out}"


# Queries, keys and values out of one linear layer.
_WIDTH = HEADS * SIZE
_QKV = f"float[{_WIDTH},{3 * _WIDTH}] w5, int64[5] to = {{1,{TOKENS},3,{HEADS},{SIZE}}}, {_S}"
_LINEAR = "y1 = pair(y) h = MatMul(y1, w5) r = Reshape(h, to) t = Transpose<perm=[2,0,3,1,4]>(r)"
_TAKEN = "i = pair(b) n = pair(g) l = pair(o) j = Transpose<perm=[0,1,3,2]>(n)"
_ONE = f"float[1,{TOKENS},{_WIDTH}] y"
_WINDOWS = f"float[1,1,1,{TOKENS},{TOKENS}] n, int64[5] five = {{1,1,{HEADS},{TOKENS},{TOKENS}}}, int64[4] four = {{1,{HEADS},{TOKENS},{TOKENS}}}"
_EXPAND = f"int64[5] kt = {{1,2,2,{SIZE},{TOKENS}}}, int64[4] k4 = {{1,{HEADS},{SIZE},{TOKENS}}}, int64[5] vt = {{1,2,2,{TOKENS},{SIZE}}}, int64[4] v4 = {{1,{HEADS},{TOKENS},{SIZE}}}"
ATTENTIONS = {
    # the forms that exporters write
    "attention/scale-behind": AttentionCase(_plain(), more=_S),
    "attention/divided": AttentionCase(_plain("c = MatMul(i, j) d = Div(c, s) e = Softmax(d)"), more=_S),
    "attention/no-scale": AttentionCase(_plain("c = MatMul(i, j) e = Softmax(c)")),
    "attention/scale-before": AttentionCase(f"qs = Mul(q, s) ks = Mul(k, s) i = pair(qs) j = pair(ks) l = pair(v) c = MatMul(i, j) e = Softmax(c) {_OUT}", more=_S),
    "attention/mask": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Add(d, m) e = Softmax(b)"), more=_MASK),
    "attention/mask-and-bias": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Add(d, m) g = Add(b, n) e = Softmax(g)"), more=f"{_MASK}, float[1,{HEADS},{TOKENS},{TOKENS}] n"),
    "attention/mask-by-where": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Where(m, d, low) e = Softmax(b)"), more=f"{_S}, float low = {{-1000}}", inputs=f"{AttentionCase('')._inputs()}, bool[1,1,{TOKENS},{TOKENS}] m"),
    "attention/clamped": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Add(d, m) g = Max(b, low) e = Softmax(g)"), more=f"{_MASK}, float low = {{-1000}}"),
    "attention/clipped": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) g = Clip(d, low, high) e = Softmax(g)"), more=f"{_S}, float low = {{-1000}}, float high = {{1000}}"),
    "attention/where-then-scale": AttentionCase(_plain("c = MatMul(i, j) b = Where(m, c, low) d = Div(b, s) e = Softmax(d)"), more=f"{_S}, float low = {{-1000}}", inputs=f"{AttentionCase('')._inputs()}, bool[1,1,{TOKENS},{TOKENS}] m"),
    "attention/einsum": AttentionCase('i = pair(q) j = pair(k) l = pair(v) c = Einsum<equation="bqhd,bkhd->bhqk">(i, j) d = Mul(c, s) e = Softmax(d) w = other(e) f = Einsum<equation="bhqk,bkhd->bqhd">(w, l) a = pair(f) z = Relu(a)', more=_S, inputs=f"float[1,{TOKENS},{HEADS},{SIZE}] q, float[1,{TOKENS},{HEADS},{SIZE}] k, float[1,{TOKENS},{HEADS},{SIZE}] v"),
    "attention/reshaped": AttentionCase(f"{_IN} c = MatMul(i, j) b = Add(c, m) g = Reshape(b, four) h = Where(n, low, g) e = Softmax(h) w = other(e) o = Reshape(w, three) f = MatMul(o, l) a = pair(f) z = Relu(a)", more=f"float low = {{-1000}}, float[1,{TOKENS},{TOKENS}] m, int64[4] four = {{1,{HEADS},{TOKENS},{TOKENS}}}, int64[3] three = {{{HEADS},{TOKENS},{TOKENS}}}", inputs=f"float[{HEADS},{TOKENS},{SIZE}] q, float[{HEADS},{SIZE},{TOKENS}] k, float[{HEADS},{TOKENS},{SIZE}] v, bool[1,1,{TOKENS},{TOKENS}] n"),
    "attention/casts": AttentionCase(_plain(out="w = other(e) g = Cast<to=1>(w) f = MatMul(g, l) a = pair(f) z = Relu(a)"), more=_S),
    "attention/windows": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Add(d, m) g = Reshape(b, five) h = Add(g, n) o = Reshape(h, four) e = Softmax(o)"), more=f"{_MASK}, {_WINDOWS}"),
    "attention/cross": AttentionCase(_plain(), tokens=(20, 300), more=_S),
    "attention/grouped": AttentionCase(f"kx = Expand(k, kt) kp = pair(kx) j = Reshape(kp, k4) vx = Expand(v, vt) vp = pair(vx) l = Reshape(vp, v4) i = pair(q) c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) {_OUT}", more=f"{_S}, {_EXPAND}", inputs=f"float[1,{HEADS},{TOKENS},{SIZE}] q, float[1,2,1,{SIZE},{TOKENS}] k, float[1,2,1,{TOKENS},{SIZE}] v"),
    "attention/three-axes": AttentionCase(_plain(), more=_S, inputs=f"float[{HEADS},{TOKENS},{SIZE}] q, float[{HEADS},{SIZE},{TOKENS}] k, float[{HEADS},{TOKENS},{SIZE}] v"),
    "attention/one-linear-split": AttentionCase(f"{_LINEAR} p, u, x = Split<axis=0>(t, k3) b = pair(p) g = pair(u) o = pair(x) i = Squeeze(b, a0) n = Squeeze(g, a0) l = Squeeze(o, a0) j = Transpose<perm=[0,1,3,2]>(n) c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) {_OUT}", more=f"{_QKV}, int64[3] k3 = {{1,1,1}}, int64[1] a0 = {{0}}", inputs=_ONE),
    "attention/one-linear-gather": AttentionCase(f"{_LINEAR} b = Gather<axis=0>(t, k0) g = Gather<axis=0>(t, k1) o = Gather<axis=0>(t, k2) {_TAKEN} c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) {_OUT}", more=f"{_QKV}, int64 k0 = {{0}}, int64 k1 = {{1}}, int64 k2 = {{2}}", inputs=_ONE),
    "attention/one-linear-one-scale": AttentionCase(f"{_LINEAR.replace('r = Reshape(h, to)', 'hp = pair(h) r = Reshape(hp, to)')} i = Gather<axis=0>(t, k0) n = Gather<axis=0>(t, k1) l = Gather<axis=0>(t, k2) j = Transpose<perm=[0,1,3,2]>(n) c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) {_OUT}", more=f"{_QKV}, int64 k0 = {{0}}, int64 k1 = {{1}}, int64 k2 = {{2}}", inputs=_ONE, planned=False),
    # sizes
    "attention/head-16": AttentionCase(_plain(), size=(16, 16), more=_S),
    "attention/head-64": AttentionCase(_plain(), size=(64, 64), more=_S),
    "attention/head-24": AttentionCase(_plain(), 0, "24 values", size=(24, 24), more=_S),
    "attention/head-128": AttentionCase(_plain(), 0, "128 values", size=(128, 128), more=_S),
    "attention/heads-differ": AttentionCase(_plain(), 0, "32 and 64", size=(32, 64), more=_S),
    "attention/tokens-512": AttentionCase(_plain(), tokens=(512, 512), more=_S),
    "attention/tokens-513": AttentionCase(_plain(), 0, "513 tokens", tokens=(513, 513), more=_S),
    "attention/keys-513": AttentionCase(_plain(), 0, "513 tokens", tokens=(20, 513), more=_S),
    "attention/many-queries": AttentionCase(_plain(), tokens=(65536, 256), more=_S, on_gpu="65536 queries"),
    "attention/many-queries-head-16": AttentionCase(_plain(), tokens=(4096, 512), size=(16, 16), more=_S, on_gpu="4096 queries"),
    "attention/many-queries-head-64": AttentionCase(_plain(), tokens=(4096, 512), size=(64, 64), more=_S, on_gpu="4096 queries"),
    "attention/many-queries-mask": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Add(d, m) e = Softmax(b)"), tokens=(2048, 256), more=f"{_S}, float[1,1,2048,256] m", on_gpu="2048 queries"),
    "attention/one-head": AttentionCase(_plain(), 0, more=_S, planned=False, inputs=f"float[1,1,{TOKENS},{SIZE}] q, float[1,1,{SIZE},{TOKENS}] k, float[1,1,{TOKENS},{SIZE}] v"),
    "attention/one-head-of-two-samples": AttentionCase(_plain(), more=_S, inputs=f"float[2,1,{TOKENS},{SIZE}] q, float[2,1,{SIZE},{TOKENS}] k, float[2,1,{TOKENS},{SIZE}] v"),
    "attention/one-token": AttentionCase(_plain(), 1, "1 token", tokens=(1, 1), more=_S),
    # what keeps a form from being one kernel
    "attention/guarded": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) e0 = Softmax(d) n = IsNaN(e0) e = Where(n, low, e0)"), 0, "masked everywhere", more=f"{_S}, float low = {{0}}"),
    "attention/guarded-behind": AttentionCase(f"{_IN} c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) w = other(e) n = IsNaN(w) g = Where(n, low, w) f = MatMul(g, l) a = pair(f) z = Relu(a)", 0, more=f"{_S}, float low = {{0}}", planned=False),
    "attention/masked-twice": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) b = Where(m, low, d) e0 = Softmax(b) e = Where(m, none, e0)"), 0, "masked once more", more=f"{_S}, float low = {{-1000}}, float none = {{0}}", inputs=f"{AttentionCase('')._inputs()}, bool[1,1,{TOKENS},{TOKENS}] m"),
    "attention/weighted-mask": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) e0 = Softmax(d) e = Mul(e0, m)"), 0, "masked once more", more=_MASK),
    "attention/soft-cap": AttentionCase(_plain("c = MatMul(i, j) d = Mul(c, s) g = Tanh(d) h = Mul(g, cap) e = Softmax(h)"), 0, "soft cap", more=f"{_S}, float cap = {{50}}"),
    "attention/transposed-weights": AttentionCase(f"{_IN} c = MatMul(i, j) d = Mul(c, s) e = Softmax(d) w = other(e) g = Transpose<perm=[0,1,3,2]>(w) f = MatMul(l, g) a = pair(f) z = Relu(a)", 0, "left of the transposed", more=_S, inputs=f"float[1,{HEADS},{TOKENS},{SIZE}] q, float[1,{HEADS},{SIZE},{TOKENS}] k, float[1,{HEADS},{SIZE},{TOKENS}] v"),
    "attention/operator": AttentionCase("i = pair(q) j = pair(k) l = pair(v) f = Attention(i, j, l) a = pair(f) z = Relu(a)", 0, "no place for a pair", inputs=f"float[1,{HEADS},{TOKENS},{SIZE}] q, float[1,{HEADS},{TOKENS},{SIZE}] k, float[1,{HEADS},{TOKENS},{SIZE}] v", opset=23),
    # pairs on some tensors only
    "attention/no-queries": AttentionCase(_plain().replace("MatMul(i, j)", "MatMul(q, j)"), 0, more=_S, planned=False),
    "attention/no-softmax": AttentionCase(_plain().replace("w = other(e) f = MatMul(w, l)", "f = MatMul(e, l)"), 0, more=_S, planned=False),
    "attention/no-values": AttentionCase(_plain().replace("MatMul(w, l)", "MatMul(w, v)"), 0, more=_S, planned=False),
    "attention/no-output": AttentionCase(_plain().replace("a = pair(f) z = Relu(a)", "z = Relu(f)"), 0, more=_S, planned=False),
    "attention/none": AttentionCase("c = MatMul(q, k) d = Mul(c, s) e = Softmax(d) f = MatMul(e, v) z = Relu(f)", 0, more=_S, planned=False),
}  # fmt: skip
