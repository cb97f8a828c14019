# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Minimal graphs with Q/DQ for TensorRT for RTX: pattern, placement, and the type that the product downstream is built in.

`measure.py` builds each of them with NVIDIA's compiler and records what comes out in `evidence.json`; the rules of
`rules/rtx.toml` cite it.

A graph is ONNX text with three words more: `a = pair(r)` is Q and DQ with the scale 0.05, `other(r)` with 0.08,
`vector(r)` with a scale of shape [1], `next(r)` with the float32 after 0.05. A constant whose name begins with `w` is an INT8 weight after a DequantizeLinear,
with scales per output channel (one for ConvTranspose); every other constant stays as it is. Nodes are named by their
first outputs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.graphs import model_of

SMS = ("86", "89", "120")
_SCALES = {
    "pair": np.float32(0.05),
    "other": np.float32(0.08),
    "vector": np.full(1, 0.05, np.float32),
    "next": np.nextafter(np.float32(0.05), np.float32(1)),
}
_PAIR = re.compile(r"(\w+) = (pair|other|vector|next)\((\w+)\)")
_PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
_W = "float[32,32,3,3] w1, float[32,32,3,3] w2, float[32,32,3,3] w3, float[32,32,3,3] w4"


@dataclass(frozen=True)
class MinimalPattern:
    """One operator, or few, between a convolution (`c1`, after its activation `r`) and the product `z`.

    Attributes:
        body: from `r` to `a`.
        more: constants beside w1 to w4.
        passes: whether INT8 passes: a pair before alone leaves `z` in INT8.
        product: what reads `a`.
        opset: of the file.
    """

    body: str
    more: str = ""
    passes: bool = True
    product: str = "Conv3(a, w2)"
    opset: int = 17

    def plain(self) -> onnx.ModelProto:
        """The network without Q/DQ: what a plan is made for."""
        return model_from(f"c1 = Conv3(x, w1) r = Relu(c1) {self.body} z = {self.product}", self.more, self.opset)

    def placed(self, placement: str) -> onnx.ModelProto:
        """The network with pairs before the operator, after it, or on both sides."""
        before = "q = pair(r) " if placement in ("before", "both") else ""
        behind = "b = pair(a) " if placement in ("behind", "both") else ""
        body = re.sub(r"\br\b", "q", self.body) if before else self.body
        product = re.sub(r"\ba\b", "b", self.product) if behind else self.product
        text = f"i = pair(x) c1 = Conv3(i, w1) r = Relu(c1) {before}{body} {behind}z = {product}"
        return quantized(text, self.more, self.opset)


PLACEMENTS = ("before", "behind", "both")
_S = "float[4] s = {1,1,2,2}"
_P = "int64[8] pads = {0,0,1,1,0,0,1,1}"
PATTERNS = {
    # values are moved or selected: a DequantizeLinear travels through
    "max-pool": MinimalPattern("a = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r)"),
    "max-pool-same-size": MinimalPattern("a = MaxPool<kernel_shape=[5,5],pads=[2,2,2,2]>(r)"),
    "max-pool-rounded-up": MinimalPattern("a = MaxPool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1>(r)"),
    "pad-zero": MinimalPattern("a = Pad(r, pads)", _P),
    "pad-reflect": MinimalPattern('a = Pad<mode="reflect">(r, pads)', _P),
    "pad-edge": MinimalPattern('a = Pad<mode="edge">(r, pads)', _P),
    "slice-channels": MinimalPattern("a = Slice(r, f, t, x1)", "int64[1] f = {0}, int64[1] t = {16}, int64[1] x1 = {1}, float[32,16,3,3] w5", product="Conv3(a, w5)"),
    "slice-stride": MinimalPattern("a = Slice(r, f, t, x1, st)", "int64[1] f = {0}, int64[1] t = {32}, int64[1] x1 = {2}, int64[1] st = {2}"),
    "slice-backwards": MinimalPattern("a = Slice(r, f, t, x1, st)", "int64[1] f = {31}, int64[1] t = {-100}, int64[1] x1 = {3}, int64[1] st = {-1}"),
    "split": MinimalPattern("a, y = Split<axis=1>(r, n)", "int64[2] n = {16,16}, float[32,16,3,3] w5", product="Conv3(a, w5)"),
    "gather": MinimalPattern("a = Gather<axis=1>(r, j)", "int64[4] j = {3,1,2,0}, float[32,4,3,3] w5", product="Conv3(a, w5)"),
    "transpose": MinimalPattern("a = Transpose<perm=[0,1,3,2]>(r)"),
    "reshape": MinimalPattern("a = Reshape(r, to)", "int64[4] to = {1,32,16,64}"),
    "squeeze-unsqueeze": MinimalPattern("e = Squeeze(r, x0) a = Unsqueeze(e, x0)", "int64[1] x0 = {0}"),
    "identity": MinimalPattern("a = Identity(r)"),
    "dropout": MinimalPattern("a = Dropout(r)"),
    "tile": MinimalPattern("a = Tile(r, n)", "int64[4] n = {1,1,2,1}"),
    "expand": MinimalPattern("e = Slice(r, f, t, x1) a = Expand(e, to)", "int64[1] f = {0}, int64[1] t = {1}, int64[1] x1 = {2}, int64[4] to = {1,32,8,32}"),
    "shuffle": MinimalPattern("e = Reshape(r, up) t = Transpose<perm=[0,2,1,3,4]>(e) a = Reshape(t, back)", "int64[5] up = {1,2,16,32,32}, int64[4] back = {1,32,32,32}"),
    "depth-to-space": MinimalPattern("a = DepthToSpace<blocksize=2>(r)", "float[32,8,3,3] w5", product="Conv3(a, w5)"),
    "space-to-depth": MinimalPattern("a = SpaceToDepth<blocksize=2>(r)", "float[32,128,3,3] w5", product="Conv3(a, w5)"),
    "flatten-gemm": MinimalPattern("a = Flatten(r)", "float[32768,16] w5", product="Gemm(a, w5)"),
    "global-max-pool": MinimalPattern("a = GlobalMaxPool(r)", "float[32,32,1,1] w5", product="Conv(a, w5)"),
    # values are computed, or INT8 does not pass though they are copied
    "resize-nearest": MinimalPattern('a = Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(r, , s)', _S, passes=False),
    "resize-nearest-half-pixel": MinimalPattern('a = Resize<mode="nearest">(r, , s)', _S, passes=False),
    "resize-nearest-down": MinimalPattern('a = Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(r, , s)', "float[4] s = {1,1,0.5,0.5}", passes=False),
    "resize-nearest-behind-pad": MinimalPattern('e = Pad(r, pads) a = Resize<mode="nearest">(e, , s)', f"{_S}, {_P}", passes=False),
    "resize-linear": MinimalPattern('a = Resize<mode="linear">(r, , s)', _S, passes=False),
    "average-pool": MinimalPattern("a = AveragePool<kernel_shape=[2,2],strides=[2,2]>(r)", passes=False),
    "global-average-pool": MinimalPattern("a = GlobalAveragePool(r)", "float[32,32,1,1] w5", passes=False, product="Conv(a, w5)"),
    "reduce-mean": MinimalPattern("a = ReduceMean<axes=[2,3]>(r)", "float[32,32,1,1] w5", passes=False, product="Conv(a, w5)"),
    "relu": MinimalPattern("a = Relu(r)", passes=False),
    "clip": MinimalPattern("a = Clip(r, lo, hi)", "float lo = {0}, float hi = {6}", passes=False),
    "sigmoid": MinimalPattern("a = Sigmoid(r)", passes=False),
    "add-constant": MinimalPattern("a = Add(r, k)", "float[1,32,1,1] k", passes=False),
    "mul-constant": MinimalPattern("a = Mul(r, k)", "float[1,32,1,1] k", passes=False),
    "batch-norm": MinimalPattern("a = BatchNormalization(r, k, k, k, v)", "float[32] k, float[32] v = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}", passes=False),
    "pad-one": MinimalPattern("a = Pad(r, pads, one)", f"{_P}, float one = {{1}}", passes=False),
    "softmax": MinimalPattern("a = Softmax<axis=1>(r)", passes=False),
    "instance-norm": MinimalPattern("a = InstanceNormalization(r, k, k)", "float[32] k", passes=False),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A graph of its own with Q/DQ, and the type each of its judged products is built in."""

    body: str
    types: tuple[tuple[str, str], ...]
    more: str = ""
    inputs: str = "float[1,32,32,32] x"
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        """The network."""
        return quantized(self.body, self.more, self.opset, self.inputs)


_TWO = "i = pair(x) c1 = Conv3(i, w1) c2 = Conv3(i, w2) r = Relu(c1) s = Relu(c2)"
_K = "float[32,64,1,1] wk"
_K96 = "float[32,96,1,1] w5"
_GATE = "i = pair(x) g = MatMul(i, w5) u = MatMul(i, w6) s = Sigmoid(g) m = Mul(g, s)"
_GATED = "float[64,128] w5, float[64,128] w6, float[128,64] w7"
_POOL = "MaxPool<kernel_shape=[5,5],pads=[2,2,2,2]>"
_CONV = "i = pair(x) c1 = Conv3(i, w1) r = Relu(c1) q = pair(r)"
_POOLS = f"{_CONV} m = {_POOL}(q) o = MaxPool<kernel_shape=[9,9],pads=[4,4,4,4]>(q)"
# Two recurrences beside one another, each over half of the channels, as in the dual paths of speech models.
_GRU = 'GRU<hidden_size=4,direction="bidirectional",linear_before_reset=1>'
_RECURRENT = f"t = Squeeze(a, x0) u, v = Split<axis=2>(t, n) d, e = {_GRU}(u, gi, gr, gb, , g0) f, h = {_GRU}(v, gi, gr, gb, , g0) k = Concat<axis=3>(d, f) z = Squeeze(k, x1)"
_GATES = "float[2,12,8] gi, float[2,12,4] gr, float[2,24] gb, float[2,1,4] g0, int64[2] n = {8,8}, int64[1] x0 = {0}, int64[1] x1 = {2}"
_STEPS = "float[1,33,1,16] x"
_INT8, _FLOAT = (("z", "INT8"),), (("z", "FP32"),)
# A depthwise convolution, then what reduces the channels of each pixel in FP16, then a linear layer.
_SUMS = "i = pair(x) c1 = Conv<pads=[3,3,3,3],group={channels}>(i, w5{bias}) "
_TO_LAST = "Transpose<perm=[0,2,3,1]>"
_REDUCED = {
    "norm": "gh = Cast<to=10>(g) oh = Cast<to=10>(o) n = LayerNormalization(t, gh, oh)",
    "mean": "m = ReduceMean<axes=[-1]>(t) n = Sub(t, m)",
    "softmax": "n = Softmax(t)",
}
_LINEAR = "e = Cast<to=1>(n) q = pair(e) z = MatMul(q, w6)"


def _normed(channels: int, side: int, how: str, reduced: str = "norm") -> Case:
    """Such a block: "" for the bias in the convolution, "-pair" with a pair after it, "-late" for a later bias."""
    moved = {
        "": f"h = Cast<to=10>(c1) t = {_TO_LAST}(h)",
        "-pair": f"a = pair(c1) h = Cast<to=10>(a) t = {_TO_LAST}(h)",
        "-late": f"a = {_TO_LAST}(c1) h = Add(a, k) t = Cast<to=10>(h)",
    }[how]
    sums = _SUMS.format(channels=channels, bias="" if how == "-late" else ", k")
    more = f"float[{channels},1,7,7] w5, float[{channels},{channels}] w6, float[{channels}] k, float[{channels}] g, float[{channels}] o"
    body = f"{sums}{moved} {_REDUCED[reduced]} {_LINEAR}"
    return Case(body, (("c1", "INT8"), ("z", "INT8")), more, f"float[1,{channels},{side},{side}] x")


# A product, its bias and a Relu in FP32 in a file whose rest is FP16, then a pair: with a scale for each channel, and with
# one scale and the factors of the channels after the product, which FP16 holds.
_SCALED = {
    "conv": ("Conv<pads=[1,1,1,1]>", "[32,32,3,3]", "[32,1,1,1]", "[32,1,1]", "Conv3(q, w2)"),
    "depthwise": ("Conv<pads=[1,1,1,1],group=32>", "[32,1,3,3]", "[32,1,1,1]", "[32,1,1]", "Conv3(q, w2)"),
    "matmul": ("MatMul", "[32,32]", "[32]", "[32]", "MatMul(q, w6)"),
}


def _factored(kind: str, how: str) -> Case:
    """Such a product: "channels" or "one", for how many scales the weight has."""
    op, weight, before, behind, product = _SCALED[kind]
    more = f"float{weight} w5, float[32,32] w6, float{behind} o"
    body = f"c1 = {op}(i, w5) b = Add(c1, o)"
    if how == "one":
        more = f"float{weight} u, float{before} f, float{behind} g, float sc = {{0.01}}, int8 ze = {{0}}, float[32,32] w6, float{behind} o"
        divided = "d = Div(u, f) v = QuantizeLinear(d, sc, ze) e = DequantizeLinear(v, sc, ze)"
        half = f"ih = Cast<to=10>(i) eh = Cast<to=10>(e) c1 = {op}(ih, eh) ch = Cast<to=1>(c1)"
        body = f"{divided} {half} m = Mul(ch, g) b = Add(m, o)"
    return Case(f"i = pair(x) {body} r = Relu(b) q = pair(r) z = {product}", (("c1", "INT8"), ("z", "INT8")), more)


# The attention of a deformable DETR in FP16: samples of two maps, joined along the axis of their points or along a new one.
_SAMPLED = (
    "h = Cast<to=10>(x) e = Cast<to=10>(y) g = Cast<to=10>(k1) v = MatMul(h, g) s, t = Split<axis=1>(v, n) "
    "a = Transpose<perm=[0,2,1]>(s) b = Transpose<perm=[0,2,1]>(t) c = Reshape(a, n1) d = Reshape(b, n2) "
    "f = Cast<to=10>(k2) l = MatMul(e, f) m = Reshape(l, n3) o = Transpose<perm=[0,2,3,1,4,5]>(m) p, q = Split<axis=2>(o, n4) "
    "r = Reshape(p, n5) u = Reshape(q, n5) a1 = GridSample(c, r) a2 = GridSample(d, u)"
)
_JOINED = {
    "samples/one-axis": "a3 = Concat<axis=3>(a1, a2)",
    "samples/new-axis": "b1 = Unsqueeze(a1, n6) b2 = Unsqueeze(a2, n6) b3 = Concat<axis=-2>(b1, b2) a3 = Reshape(b3, n7)",
}
_WEIGHTED = (
    "i = Cast<to=10>(k3) j = MatMul(e, i) c1 = Reshape(j, n8) c2 = Softmax(c1) c3 = Transpose<perm=[0,2,1,3]>(c2) c4 = Reshape(c3, n9) "
    "d1 = Mul(a3, c4) d2 = ReduceSum<keepdims=0>(d1, m1) d3 = Reshape(d2, m2) d4 = Transpose<perm=[0,2,1]>(d3) d5 = Cast<to=1>(d4) d6 = pair(d5) z = MatMul(d6, w5)"
)
_SHAPES = (
    "float[64,64] k1, float[64,64] k2, float[64,32] k3, float[64,64] w5, int64[2] n = {1600,400}, int64[4] n1 = {4,16,40,40}, int64[4] n2 = {4,16,20,20}, "
    "int64[6] n3 = {1,100,4,2,4,2}, int64[2] n4 = {1,1}, int64[4] n5 = {4,100,4,2}, int64[1] n6 = {-2}, int64[4] n7 = {0,0,0,-1}, "
    "int64[4] n8 = {1,100,4,8}, int64[4] n9 = {4,1,100,8}, int64[1] m1 = {-1}, int64[3] m2 = {1,64,100}"
)


def _tokens(behind: str) -> Case:
    """Feature maps of a pyramid as tokens, read by a product and by a Mul with a mask: with a pair after the Concat for that, or not."""
    body, sides = "", {"x": 80, "y": 40, "v": 20}
    for at, name in enumerate(sides):
        body += f"i{at} = pair({name}) c{at} = Conv(i{at}, w1{at}) b{at} = Add(c{at}, k1) q{at} = pair(b{at}) "
        body += f"r{at} = Reshape(q{at}, n) t{at} = Transpose<perm=[0,2,1]>(r{at}) "
    body += "j = Concat<axis=1>(t0, t1, t2) " + ("l = pair(j) m = Mul(l, k2) " if behind else "m = Mul(j, k2) ")
    body += "a = other(m) u = MatMul(a, w14) p = MatMul(j, w15) z = Add(u, p)"
    more = ", ".join(f"float[256,256,1,1] w1{at}" for at in range(3)) + ", float[256,256] w14, float[256,256] w15"
    more += ", float[1,256,1,1] k1, float[1,8400,1] k2, int64[3] n = {1,256,-1}"
    inputs = ", ".join(f"float[1,256,{side},{side}] {name}" for name, side in sides.items())
    return Case(body, (("u", "INT8"), ("p", "INT8")), more, inputs)


_CONSTANTS = "float[32,32] k1, float[2,32] k2, int64[2,1] n1 = {0,1}, int64[2,2] n2 = {0,1,1,0}, float[2,2] k3, int64 n3 = {0}, int64[1] n4 = {0}"
_OF_CONSTANTS = {
    "arithmetic": "Mul(k1, k1)",
    "gather": "Gather(k1, n4)",
    "transpose": "Transpose(k1)",
    "scatter-nd": "ScatterND(k1, n1, k2)",
    "scatter-elements": "ScatterElements(k1, n2, k3)",
    "cumsum": "CumSum(k1, n3)",
}
SIDES = {56: 96, 28: 192, 14: 384}  # of a map -> its channels
CASES = {
    # Concat: before, behind, unequal, one branch bare
    "concat/same": Case(f"{_TWO} q = pair(r) p = pair(s) k = Concat<axis=1>(q, p) z = Conv(k, wk)", _INT8, _K),
    "concat/behind": Case(f"{_TWO} k = Concat<axis=1>(r, s) q = pair(k) z = Conv(q, wk)", _INT8, _K),
    "concat/differ": Case(f"{_TWO} q = pair(r) p = other(s) k = Concat<axis=1>(q, p) z = Conv(k, wk)", _FLOAT, _K),
    "concat/differ-pair-behind": Case(f"{_TWO} q = pair(r) p = other(s) k = Concat<axis=1>(q, p) e = other(k) z = Conv(e, wk)", _INT8, _K),
    "concat/one-bare": Case(f"{_TWO} q = pair(r) k = Concat<axis=1>(q, s) z = Conv(k, wk)", _FLOAT, _K),
    "concat/one-bare-pair-behind": Case(f"{_TWO} q = pair(r) k = Concat<axis=1>(q, s) e = pair(k) z = Conv(e, wk)", _INT8, _K),
    "concat/height": Case(f"{_TWO} q = pair(r) p = pair(s) k = Concat<axis=2>(q, p) z = Conv3(k, w3)", _INT8),
    "concat/constant": Case(f"{_TWO} q = pair(r) k = Concat<axis=1>(q, t) z = Conv(k, wk)", _FLOAT, f"{_K}, float[1,32,32,32] t"),
    "concat/constant-pair-behind": Case(f"{_TWO} k = Concat<axis=1>(r, t) e = pair(k) z = Conv(e, wk)", _INT8, f"{_K}, float[1,32,32,32] t"),
    "concat/same-twice": Case(f"{_TWO} q = pair(r) k = Concat<axis=1>(q, q) z = Conv(k, wk)", _INT8, _K),
    "concat/nested": Case(f"{_TWO} q = pair(r) p = pair(s) k = Concat<axis=1>(q, p) l = Concat<axis=1>(k, q) z = Conv(l, w5)", _INT8, "float[32,96,1,1] w5"),
    "concat/with-resize-before": Case(f'{_TWO} q = pair(r) p = pair(s) m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(q) u = Resize<mode="nearest">(m, , n) k = Concat<axis=1>(u, p) z = Conv(k, wk)', _FLOAT, f"{_K}, float[4] n = {{1,1,2,2}}"),
    "concat/with-resize-behind": Case(f'{_TWO} q = pair(r) p = pair(s) m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(q) u = Resize<mode="nearest">(m, , n) k = Concat<axis=1>(u, p) e = pair(k) z = Conv(e, wk)', _INT8, f"{_K}, float[4] n = {{1,1,2,2}}"),
    "concat/with-resize-and-pair": Case(f'{_TWO} q = pair(r) p = pair(s) m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(q) u = Resize<mode="nearest">(m, , n) e = pair(u) k = Concat<axis=1>(e, p) z = Conv(k, wk)', _INT8, f"{_K}, float[4] n = {{1,1,2,2}}"),
    "concat/pools-before": Case(f"{_POOLS} k = Concat<axis=1>(q, m, o) z = Conv(k, w5)", _INT8, _K96),
    "concat/pools-behind": Case(f"{_POOLS} k = Concat<axis=1>(q, m, o) e = pair(k) z = Conv(e, w5)", _INT8, _K96),
    "concat/pools-with-pairs": Case(f"{_POOLS} n = pair(m) p = pair(o) k = Concat<axis=1>(q, n, p) e = pair(k) z = Conv(e, w5)", _INT8, _K96),
    "concat/pools-next": Case(f"{_POOLS} n = pair(m) p = pair(o) k = Concat<axis=1>(q, n, p) e = next(k) z = Conv(e, w5)", _INT8, _K96),
    "concat/pools-in-a-row-before": Case(f"{_CONV} m = {_POOL}(q) o = {_POOL}(m) k = Concat<axis=1>(q, m, o) z = Conv(k, w5)", _INT8, _K96),
    "concat/pools-in-a-row-behind": Case(f"{_CONV} m = {_POOL}(q) o = {_POOL}(m) k = Concat<axis=1>(q, m, o) e = pair(k) z = Conv(e, w5)", _INT8, _K96),
    "concat/pools-in-a-row-next": Case(f"{_CONV} m = {_POOL}(q) n = pair(m) o = {_POOL}(n) p = pair(o) k = Concat<axis=1>(q, n, p) e = next(k) z = Conv(e, w5)", _INT8, _K96),
    "concat/resize-then-pad": Case('i = pair(x) c1 = Conv3(i, w1) q = pair(c1) u = Resize<mode="nearest">(q, , n) e = pair(u) a = Pad(e, pads) z = Conv3(a, w2)', _INT8, f"float[4] n = {{1,1,2,2}}, {_P}"),
    # what operators make of constants: stored in the engine, or computed in each run
    "constants/stored": Case("a = Add(x, k1) i = pair(a) z = Conv3(i, w1)", _INT8, _CONSTANTS),
    **{f"constants/{name}": Case(f"c = {text} a = Add(x, c) i = pair(a) z = Conv3(i, w1)", _INT8, _CONSTANTS) for name, text in _OF_CONSTANTS.items()},
    # the form of a scale, and of a pair
    "scale/scalar": Case("i = pair(x) z = Conv3(i, w1)", _INT8),
    "scale/shape-1": Case("i = vector(x) z = Conv3(i, w1)", _FLOAT),
    "scale/shape-1-matmul": Case("i = vector(x) z = MatMul(i, w5)", _INT8, "float[32,16] w5"),
    "scale/activation-pair-only": Case("i = pair(x) z = Conv3(i, f1)", _FLOAT, "float[32,32,3,3] f1"),
    "scale/weight-pair-only": Case("z = Conv3(x, w1)", _FLOAT),
    "scale/one-reads-float": Case("i = pair(x) y = Conv3(i, w1) z = Conv3(x, w2)", (("y", "INT8"), ("z", "FP32"))),
    "scale/two-pairs-in-a-row": Case("j = pair(x) i = pair(j) z = Conv3(i, w1)", _INT8),
    # kinds of products
    "product/conv-transpose": Case("i = pair(x) z = ConvTranspose<kernel_shape=[2,2],strides=[2,2]>(i, w5)", _FLOAT, "float[32,16,2,2] w5"),
    "product/conv-transpose-depthwise": Case("i = pair(x) z = ConvTranspose<kernel_shape=[2,2],strides=[2,2],group=32>(i, w5)", _FLOAT, "float[32,1,2,2] w5"),
    "product/depthwise": Case("i = pair(x) z = Conv<pads=[1,1,1,1],group=32>(i, w5)", _INT8, "float[32,1,3,3] w5"),
    "product/depthwise-multiplied": Case("i = pair(x) z = Conv<pads=[1,1,1,1],group=32>(i, w5)", _INT8, "float[64,1,3,3] w5"),
    "product/grouped": Case("i = pair(x) z = Conv<pads=[1,1,1,1],group=4>(i, w5)", _INT8, "float[32,8,3,3] w5"),
    "product/grouped-odd": Case("i = pair(x) z = Conv<pads=[1,1,1,1],group=3>(i, w5)", _INT8, "float[21,5,3,3] w5", "float[1,15,32,32] x"),
    "product/one-channel": Case("i = pair(x) z = Conv3(i, w5)", _INT8, "float[32,1,3,3] w5", "float[1,1,32,32] x"),
    "product/three-channels": Case("i = pair(x) z = Conv3(i, w5)", _INT8, "float[32,3,3,3] w5", "float[1,3,32,32] x"),
    "product/one-output-channel": Case("i = pair(x) z = Conv3(i, w5)", _INT8, "float[1,32,3,3] w5"),
    "product/dilated": Case("i = pair(x) z = Conv<pads=[2,2,2,2],dilations=[2,2]>(i, w1)", _INT8),
    "product/same-upper": Case('i = pair(x) z = Conv<auto_pad="SAME_UPPER",strides=[2,2]>(i, w1)', _INT8),
    "product/uneven-pads": Case("i = pair(x) z = Conv<pads=[0,1,2,1],strides=[2,1]>(i, w1)", _INT8),
    "product/kernel-7": Case("i = pair(x) z = Conv<pads=[3,3,3,3]>(i, w5)", _INT8, "float[32,32,7,7] w5"),
    "product/conv-1d": Case("i = pair(x) z = Conv<pads=[1,1]>(i, w5)", _INT8, "float[32,32,3] w5", "float[1,32,64] x"),
    "product/conv-3d": Case("i = pair(x) z = Conv<pads=[1,1,1,1,1,1]>(i, w5)", _INT8, "float[32,32,3,3,3] w5", "float[1,32,8,8,8] x"),
    "product/one-pixel": Case("i = pair(x) z = Conv(i, w5)", _INT8, "float[32,32,1,1] w5", "float[1,32,1,1] x"),
    "product/one-pixel-few-channels": Case("i = pair(x) z = Conv(i, w5)", (("z", "none"),), "float[8,4,1,1] w5", "float[1,4,1,1] x"),
    "product/gemm": Case("i = pair(x) z = Gemm(i, w5)", _INT8, "float[64,32] w5", "float[4,64] x"),
    "product/gemm-transposed": Case("i = pair(x) z = Gemm<transB=1>(i, w5)", _INT8, "float[32,64] w5", "float[4,64] x"),
    "product/gemm-one-row": Case("i = pair(x) z = Gemm(i, w5)", _INT8, "float[64,32] w5", "float[1,64] x"),
    "product/matmul": Case("i = pair(x) z = MatMul(i, w5)", _INT8, "float[64,32] w5", "float[2,16,64] x"),
    # an Einsum with a weight, one scale for each output channel where that is one axis of the weight
    "einsum/linear": Case('i = pair(x) z = Einsum<equation="bij,jk->bik">(i, w5)', _INT8, "float[64,32] w5", "float[2,16,64] x"),
    "einsum/linear-transposed": Case('i = pair(x) z = Einsum<equation="bij,kj->bik">(i, w5)', _INT8, "float[32,64] w5", "float[2,16,64] x"),
    "einsum/to-heads": Case('i = pair(x) z = Einsum<equation="btd,dhk->bthk">(i, w5)', _INT8, "float[64,4,16] w5", "float[2,16,64] x"),
    "einsum/from-heads": Case('i = pair(x) z = Einsum<equation="bthk,hkd->btd">(i, w5)', _INT8, "float[4,16,64] w5", "float[2,16,4,16] x"),
    "einsum/moved": Case('i = pair(x) z = Einsum<equation="bij,jk->bki">(i, w5)', _INT8, "float[64,32] w5", "float[2,16,64] x"),
    "einsum/pixels": Case('i = pair(x) z = Einsum<equation="bchw,oc->bohw">(i, w5)', _INT8, "float[32,64] w5", "float[1,64,8,8] x"),
    "einsum/weight-first": Case('i = pair(x) z = Einsum<equation="oc,bchw->bohw">(w5, i)', _INT8, "float[32,64] w5", "float[1,64,8,8] x"),
    "einsum/bias-relu-next": Case('i = pair(x) c1 = Einsum<equation="bij,jk->bik">(i, w5) m = Add(c1, k) r = Relu(m) q = pair(r) z = MatMul(q, w6)', (("c1", "INT8"), ("z", "INT8")), "float[64,32] w5, float[32,32] w6, float[32] k", "float[2,16,64] x"),
    # products of two computed tensors
    "matmul-computed/both": Case("i = pair(x) j = pair(y) z = MatMul(i, j)", _INT8, "", "float[2,64,64] x, float[2,64,64] y"),
    "matmul-computed/one": Case("i = pair(x) z = MatMul(i, y)", (("z", "mixed"),), "", "float[2,64,64] x, float[2,64,64] y"),
    "matmul-computed/none": Case("z = MatMul(x, y)", (("z", "none"),), "", "float[2,64,64] x, float[2,64,64] y"),
    # the gate of SwiGLU: pairs on its inputs change neither layers nor types
    "swiglu/plain": Case(f"{_GATE} h = Mul(m, u) p = pair(h) z = MatMul(p, w7)", (("g", "INT8"), ("u", "INT8"), ("z", "INT8")), _GATED, "float[1,64,64] x"),
    "swiglu/pairs": Case(f"{_GATE} k = pair(m) l = pair(u) h = Mul(k, l) p = pair(h) z = MatMul(p, w7)", (("g", "INT8"), ("u", "INT8"), ("z", "INT8")), _GATED, "float[1,64,64] x"),
    # residuals and squeeze blocks: pairs on a branch leave every convolution in INT8
    "residual/skip": Case("i = pair(x) c1 = Conv3(i, w1) m = Add(c1, i) r = Relu(m) q = pair(r) z = Conv3(q, w2)", (("c1", "INT8"), ("z", "INT8"))),
    "residual/both": Case("i = pair(x) c1 = Conv3(i, w1) e = pair(c1) m = Add(e, i) r = Relu(m) q = pair(r) z = Conv3(q, w2)", (("c1", "INT8"), ("z", "INT8"))),
    "residual/resized-skip": Case('i = pair(x) v = pair(y) c1 = Conv3(i, w1) u = Resize<mode="nearest">(v, , s) m = Add(c1, u) q = pair(m) z = Conv3(q, w2)', (("c1", "INT8"), ("z", "INT8")), "float[4] s = {1,1,2,2}", "float[1,32,32,32] x, float[1,32,16,16] y"),
    "recurrent/float": Case(f"a = Relu(x) {_RECURRENT}", (), _GATES, _STEPS),
    "recurrent/pair-before": Case(f"r = Relu(x) a = pair(r) {_RECURRENT}", (), _GATES, _STEPS),
    **{f"norm/{side}{how}": _normed(channels, side, how) for side, channels in SIDES.items() for how in ("", "-pair", "-late")},
    **{f"factors/{kind}-{how}": _factored(kind, how) for kind in _SCALED for how in ("channels", "one")},
    **{f"{reduced}/28{how}": _normed(192, 28, how, reduced) for reduced in ("mean", "softmax") for how in ("", "-late")},
    **{f"tokens/mask{behind}": _tokens(behind) for behind in ("", "-pair-behind")},
    **{name: Case(f"{_SAMPLED} {how} {_WEIGHTED}", _INT8, _SHAPES, "float[1,2000,64] x, float[1,100,64] y") for name, how in _JOINED.items()},
    "squeeze/gate": Case("i = pair(x) c1 = Conv3(i, w1) r = Relu(c1) q = pair(r) g = GlobalAveragePool(q) h = pair(g) c2 = Conv(h, w5) e = HardSigmoid(c2) m = Mul(q, e) p = pair(m) z = Conv3(p, w2)", (("c1", "INT8"), ("c2", "INT8"), ("z", "INT8")), "float[32,32,1,1] w5"),
}  # fmt: skip


@functools.cache
def all_models() -> Mapping[str, onnx.ModelProto]:
    """Every graph that is measured, by the name that evidence.json has it under; not to be changed."""
    found = {f"{name}/{how}": one.placed(how) for name, one in PATTERNS.items() for how in PLACEMENTS}
    return {**found, **{name: case.model() for name, case in CASES.items()}}


def expected() -> dict[str, dict[str, str]]:
    """What each graph's judged products are to be built in."""
    found = {
        f"{name}/{how}": {"c1": "INT8", "z": "INT8" if one.passes or how != "before" else "FP32"}
        for name, one in PATTERNS.items()
        for how in PLACEMENTS
    }
    return {**found, **{name: dict(case.types) for name, case in CASES.items()}}


def quantized(body: str, more: str = "", opset: int = 17, inputs: str = "float[1,32,32,32] x") -> onnx.ModelProto:
    """The model of a graph's text with its pairs and INT8 weights written out."""
    written = _PAIR.sub(
        r"\1_Q = QuantizeLinear(\3, \2_scale, zero_\2) \1 = DequantizeLinear(\1_Q, \2_scale, zero_\2)", body
    )
    model = model_from(written, more, opset, inputs)
    graph = model.graph
    for word, value in _SCALES.items():
        if f"{word}_scale" in written:
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{word}_scale"))
            graph.initializer.append(numpy_helper.from_array(np.zeros_like(value, np.int8), f"zero_{word}"))
    stored = {one.name for one in graph.initializer}
    for node in list(graph.node):
        places = (1, 0) if node.op_type == "Einsum" else (1,) if node.op_type in _PRODUCTS else ()
        for place in places:
            if node.input[place].startswith("w") and node.input[place] in stored:
                _quantize_weight(graph, node, place)
    for node in graph.node:
        node.name = node.output[0]
    return model


def _quantize_weight(graph: onnx.GraphProto, node: onnx.NodeProto, place: int) -> None:
    tensor = next(one for one in graph.initializer if one.name == node.input[place])
    value = numpy_helper.to_array(tensor)
    transposed = any(item.name == "transB" and item.i for item in node.attribute)
    axis = None if node.op_type == "ConvTranspose" else 0 if node.op_type == "Conv" or transposed else value.ndim - 1
    if node.op_type == "Einsum":
        *terms, output = re.split(",|->", node.attribute[0].s.decode())
        data, weight = terms[1 - place], terms[place]
        free = [place for place, letter in enumerate(weight) if letter in output and letter not in data]
        axis = free[0] if len(free) == 1 else None
    others = None if axis is None else tuple(k for k in range(value.ndim) if k != axis)
    scale = (np.abs(value).max(axis=others) / 127).astype(np.float32)
    shape = [1] * value.ndim
    if axis is not None:
        shape[axis] = -1
    codes = np.round(value / scale.reshape(shape if axis is not None else ())).astype(np.int8)
    name = tensor.name
    graph.initializer.remove(tensor)
    graph.initializer.append(numpy_helper.from_array(codes, f"{name}_int8"))
    graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
    graph.initializer.append(numpy_helper.from_array(np.zeros_like(scale, np.int8), f"{name}_zero"))
    words = {} if axis is None else {"axis": axis}
    behind = helper.make_node(
        "DequantizeLinear", [f"{name}_int8", f"{name}_scale", f"{name}_zero"], [f"{name}_DQ"], **words
    )
    node.input[place] = f"{name}_DQ"
    graph.node.insert(list(graph.node).index(node), behind)


def plain_case(name: str) -> onnx.ModelProto:
    """A case in FP32 without its pairs and Casts: the network that a user has."""
    case = CASES[name]
    body = re.sub(r"Cast<to=\d+>\(|\b(pair|other|vector|next)\(", "Identity(", case.body)
    return model_from(body, case.more, case.opset, case.inputs)


def model_from(body: str, more: str, opset: int, inputs: str = "float[1,32,32,32] x") -> onnx.ModelProto:
    """The model of a graph's text without pairs, its constants as they are."""
    model = model_of(_net(body, more, inputs), opset)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value, known in zip(model.graph.output, onnx.shape_inference.infer_shapes(model).graph.output, strict=True):
        value.CopyFrom(known)
    return model


def _net(body: str, more: str, inputs: str = "float[1,32,32,32] x") -> str:
    text = body.replace("Conv3(", "Conv<pads=[1,1,1,1]>(")
    named = ", ".join(part for part in (_W, more) if part)
    used = [
        one
        for one in re.split(r",\s*(?=(?:float|int64)\b)", named)
        if re.search(rf"\b{re.split(r'[ =]+', one)[1]}\b", text)
    ]
    outputs = ", ".join(f"float[N{k}] {name}" for k, name in enumerate(_outputs(text)))
    return f"g ({inputs}) => ({outputs}) <{', '.join(used)}> {{ {text} }}"


def _outputs(text: str) -> list[str]:
    """What is made and read by nobody; always with `z`."""
    return ["z", *(["y"] if re.search(r"\by = Conv", text) else [])]


def products_of(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes that multiply."""
    return [node.name for node in model.graph.node if node.op_type in _PRODUCTS]
