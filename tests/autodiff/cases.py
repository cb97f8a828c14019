# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Graphs of one operator each that every gradient back end is put through. No tests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GradientCase:
    """A graph that makes y of random float inputs; what is between <> without a value is a parameter.

    Attributes:
        operator: what it is there for.
        text: the graph in ONNX's text form.
        opset: of the graph.
        feed: inputs that are not random.
        oracle: the same graph in operators that the reference evaluator computes rightly, where it is wrong about it.
    """

    operator: str
    text: str
    opset: int = 17
    feed: Mapping[str, Array] = field(default_factory=dict, compare=False)
    oracle: str = ""

    @property
    def name(self) -> str:
        """The operator and a number that tells cases of one operator apart."""
        return f"{self.operator}-{zlib.crc32(f'{self.opset}{self.text}'.encode()) % 1000000:06d}"


def _one(
    operator: str, how: str = "", shape: str = "2,3,4", first: str = "h = Add(x, p)", opset: int = 17
) -> GradientCase:
    """An operator of one input that keeps its shape, after a parameter."""
    text = f"net (float[{shape}] x) => (float[{shape}] y) <float[{shape}] p> {{ {first} y = {operator}{how}(h) }}"
    return GradientCase(operator, text, opset)


_POSITIVE = "s = Add(x, p) a = Mul(s, s) h = Add(a, half)"


def _positive(operator: str, how: str = "") -> GradientCase:
    text = f"net (float[2,3] x) => (float[2,3] y) <float[2,3] p, float half = {{0.5}}> {{ {_POSITIVE} y = {operator}{how}(h) }}"
    return GradientCase(operator, text)


def _two(operator: str, one: str, other: str, out: str) -> GradientCase:
    text = f"net (float[{one}] x) => (float[{out}] y) <float[{one}] p, float[{other}] p2> {{ h = Add(x, p) y = {operator}(h, p2) }}"
    return GradientCase(operator, text)


def _reduce(operator: str, how: str, out: str, opset: int = 17, axes: str = "") -> GradientCase:
    extra, call = (f", int64[{axes.count(',') + 1}] axes = {{{axes}}}", "(h, axes)") if axes else ("", "(h)")
    body = "s = Add(x, p) h = Exp(s)" if "Log" in operator else "h = Add(x, p)"
    return GradientCase(
        operator,
        f"net (float[2,3,4] x) => (float[{out}] y) <float[2,3,4] p{extra}> {{ {body} y = {operator}{how}{call} }}",
        opset,
    )


def _window(
    operator: str, how: str, shape: str, out: str, weight: str = "", bias: int = 0, alike: str = ""
) -> GradientCase:
    if alike:
        return replace(
            _window(operator, how, shape, out, weight, bias),
            oracle=_window(operator, alike, shape, out, weight, bias).text,
        )
    weights = f", float[{weight}] w" if weight else ""
    weights += f", float[{bias}] b" if bias else ""
    call = "(h" + (", w" if weight else "") + (", b" if bias else "") + ")"
    return GradientCase(
        operator,
        f"net (float[{shape}] x) => (float[{out}] y) <float[{shape}] p{weights}> {{ h = Add(x, p) y = {operator}{how}{call} }}",
    )


def _text(operator: str, text: str, opset: int = 17, oracle: str = "", **feed: Array) -> GradientCase:
    return GradientCase(operator, f"net {text}", opset, feed, oracle)


_BOUNDED = "s = Add(x, p) t = Tanh(s) h = Mul(t, most)"
_ELEMENTWISE = [
    *(_text(name, f"(float[2,3] x) => (float[2,3] y) <float[2,3] p, float most = {{0.8}}> {{ {_BOUNDED} y = {name}(h) }}") for name in ("Acos", "Asin", "Atanh", "Tan")),
    _text("Acosh", f"(float[2,3] x) => (float[2,3] y) <float[2,3] p, float half = {{1.5}}> {{ {_POSITIVE} y = Acosh(h) }}"),
    *(_one(name) for name in ["Abs", "Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Relu", "Identity", "HardSwish", "Softplus", "Softsign", "Atan", "Asinh", "Sinh", "Cosh"]),
    *(_positive(name) for name in ("Log", "Sqrt", "Reciprocal")),
    _one("Mish", opset=18), _one("LeakyRelu"), _one("LeakyRelu", "<alpha=0.3>"), _one("Elu"), _one("Elu", "<alpha=0.7>"), _one("Selu"), _one("Celu", "<alpha=0.6>"),
    *(_text(name, f"(float[2,3] x) => (float[2,3] y) <float[2,3] p> {{ h = Add(x, p) s = {name}(h) y = Mul(h, s) }}") for name in ("Ceil", "Floor", "Round", "Sign")),
    _one("HardSigmoid"), _one("HardSigmoid", "<alpha=0.4,beta=0.3>"), _one("ThresholdedRelu", "<alpha=0.2>"),
    replace(_one("Gelu", opset=20), oracle="net (float[2,3,4] x) => (float[2,3,4] y) <float[2,3,4] p, float r = {1.41421356}, float one = {1.0}, float half = {0.5}> { h = Add(x, p) d = Div(h, r) e = Erf(d) f = Add(e, one) k = Mul(h, half) y = Mul(k, f) }"), _one("Gelu", '<approximate="tanh">', opset=20), _one("Softmax"), _one("Softmax", "<axis=1>"), _one("LogSoftmax", "<axis=0>"),
    *(_two(op, "2,3,4", other, "2,3,4") for op in ("Add", "Sub", "Mul", "Div") for other in ("2,3,4", "3,1", "4", "1,1,1")),
    *(_two(op, "3,1", "2,3,4", "2,3,4") for op in ("Add", "Sub", "Mul", "Div", "Max")),
    _two("Max", "2,3", "3", "2,3"), _two("Min", "2,3", "2,3", "2,3"), _two("PRelu", "2,3,4", "3,1", "2,3,4"), _two("PRelu", "2,3,4", "1", "2,3,4"),
    _text("Mul", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) y = Mul(h, h) }"),
    _text("Mul", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { y = Mul(p, p) }"),
    _text("Sum", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Exp(p) y = Sum(p, h, p, p) }"),
    _text("Mul", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) s = Sigmoid(h) y = Mul(s, h) }"),
    _text("Mul", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) s = Sigmoid(h) m = Mul(h, s) y = Add(m, s) }"),
    _text("Sub", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) a = Exp(h) z = Sub(h, h) y = Add(a, z) }"),
    _text("Clip", "(float[4,5] x) => (float[4,5] y) <float[4,5] p, float low = {-0.3}, float high = {0.8}> { h = Add(x, p) y = Clip(h, low, high) }"),
    _text("Clip", "(float[4,5] x) => (float[4,5] y) <float[4,5] p, float low = {0.0}> { h = Add(x, p) y = Clip(h, low) }"),
    _text("Clip", "(float[4,5] x) => (float[4,5] y) <float[4,5] p, float high = {0.4}> { h = Add(x, p) y = Clip(h, , high) }"),
    _text("Max", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[3] p2, float zero = {0.1}> { h = Add(x, p) y = Max(h, p2, zero) }"),
    _text("Pow", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float two = {2.0}> { h = Add(x, p) y = Pow(h, two) }"),
    _text("Pow", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, int64 three = {3}> { h = Add(x, p) y = Pow(h, three) }"),
    _text("Pow", f"(float[2,3] x) => (float[2,3] y) <float[2,3] p, float half = {{0.5}}, float[3] p2> {{ {_POSITIVE} y = Pow(h, p2) }}"),
    _text("Pow", "(float[2,3] x) => (float[2,3] y) <float[1] p, float[2,3] e> { q = Mul(p, p) y = Pow(q, e) }"),
    _text("Sum", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[3] p2> { y = Sum(x, p, p2) }"),
    _text("Sum", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Add(x, p) y = Sum(h) }"),
    _text("Mean", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[3] p2> { h = Add(x, p) y = Mean(h, p2, x) }"),
    _text("Where", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float[3] p2, float zero = {0.0}> { c = Greater(x, zero) h = Exp(p) y = Where(c, h, p2) }"),
    _text("Where", "(float[2,3] x) => (float[2,3] y) <float p, float[2,1] p2, float zero = {0.0}> { c = Greater(x, zero) y = Where(c, p, p2) }"),
    _text("Dropout", "(float[2,3] x) => (float[2,3] y) <float[2,3] p> { h = Mul(x, p) y = Dropout(h) }"),
    _text("Dropout", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float r = {0.5}, bool t = {0}> { h = Mul(x, p) y = Dropout(h, r, t) }"),
    _text("Cast", "(float[2,3] x) => (float[2,3] y) <float[2,3] p, float zero = {0.0}> { h = Mul(x, p) c = Cast<to=1>(h) b = Greater(h, zero) m = Cast<to=1>(b) y = Mul(c, m) }"),
]  # fmt: skip

_REDUCTIONS = [
    *(_reduce(f"Reduce{name}", "<axes=[1]>", "2,1,4") for name in ["Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]),
    *(_reduce(f"Reduce{name}", "<axes=[0,-1],keepdims=0>", "3") for name in ["Mean", "Max", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]),
    *(_reduce(f"Reduce{name}", "<keepdims=0>", "", opset) for name in ["Sum", "Mean", "Max", "L2", "LogSumExp"] for opset in (17, 18)),
    *(_reduce(f"Reduce{name}", "<keepdims=0>", "2,4", 18, "1") for name in ["Sum", "Mean", "Max", "L2", "LogSumExp"]),
    _reduce("ReduceSum", "<keepdims=0>", "2,4", 13, "-2"), _reduce("ReduceSum", "", "1,3,1", 13, "0,2"),
    _text("CumSum", "(float[2,5] x) => (float[2,5] y) <float[2,5] p, int64 a = {1}> { h = Add(x, p) y = CumSum<exclusive=1>(h, a) }"),
    _text("CumSum", "(float[2,5] x) => (float[2,5] y) <float[2,5] p, int64 a = {-1}> { h = Add(x, p) y = CumSum<reverse=1>(h, a) }"),
    _window("GlobalAveragePool", "", "2,3,4,5", "2,3,1,1"), _window("GlobalMaxPool", "", "2,3,4,5", "2,3,1,1"), _window("GlobalAveragePool", "", "2,3,1,1", "2,3,1,1"),
]  # fmt: skip

_GROUPED = "(float[1,4,3,3] x) => (float[1,6,8,4] y) <float[1,4,3,3] p, float[4,3,3,2] w>"
_BY_TWO = "strides=[2,1],output_padding=[1,0]"
_WINDOWS = [
    _window("Conv", "<pads=[1,1,1,1]>", "2,3,5,6", "2,4,5,6", "4,3,3,3", 4), _window("Conv", "<pads=[0,1,2,1],strides=[2,2]>", "2,3,6,7", "2,4,3,4", "4,3,3,3"),
    _window("Conv", "<group=4,pads=[1,1,1,1]>", "1,4,5,5", "1,4,5,5", "4,1,3,3", 4), _window("Conv", "<group=2,dilations=[2,1]>", "1,4,6,5", "1,6,2,4", "6,2,3,2", 6),
    _window("Conv", '<auto_pad="SAME_UPPER",strides=[2,2]>', "1,2,6,7", "1,3,3,4", "3,2,3,3", 3), _window("Conv", '<auto_pad="SAME_LOWER",strides=[2,2]>', "1,2,6,6", "1,3,3,3", "3,2,3,3"),
    _window("Conv", '<auto_pad="VALID">', "1,2,5,5", "1,3,3,3", "3,2,3,3"), _window("Conv", "<pads=[1,1]>", "2,3,8", "2,4,8", "4,3,3", 4), _window("Conv", "", "2,3,4,4", "2,5,4,4", "5,3,1,1", 5),
    _window("Conv", "", "1,2,4,4,4", "1,2,3,3,3", "2,2,2,2,2"),
    _window("ConvTranspose", "<strides=[2,2],pads=[1,1,1,1]>", "2,3,3,4", "2,2,6,8", "3,2,4,4", 2),
    GradientCase("ConvTranspose", f"net {_GROUPED} {{ h = Add(x, p) y = ConvTranspose<{_BY_TWO},group=2>(h, w) }}", oracle=f"net {_GROUPED} {{ h = Add(x, p) h1, h2 = Split<axis=1>(h) w1, w2 = Split<axis=0>(w) y1 = ConvTranspose<{_BY_TWO}>(h1, w1) y2 = ConvTranspose<{_BY_TWO}>(h2, w2) y = Concat<axis=1>(y1, y2) }}"),
    _window("ConvTranspose", '<auto_pad="SAME_UPPER",strides=[2,2]>', "1,2,3,3", "1,3,6,6", "2,3,3,3", 3, "<strides=[2,2],pads=[0,0,1,1]>"),
    _window("ConvTranspose", '<auto_pad="SAME_LOWER",strides=[2,2]>', "1,2,3,3", "1,3,6,6", "2,3,3,3", 3, "<strides=[2,2],pads=[1,1,0,0]>"), _window("ConvTranspose", "<output_shape=[6,7],strides=[2,2]>", "1,2,3,3", "1,3,6,7", "2,3,3,3", 3, "<strides=[2,2],pads=[1,0,0,0]>"), _window("ConvTranspose", "<dilations=[2,2]>", "1,2,3,3", "1,3,7,7", "2,3,3,3"),
    _window("MaxPool", "<kernel_shape=[2,2],strides=[2,2]>", "1,2,4,6", "1,2,2,3"), _window("MaxPool", "<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1],ceil_mode=1>", "1,2,6,6", "1,2,4,4"),
    _window("MaxPool", '<kernel_shape=[3,3],auto_pad="SAME_UPPER">', "1,2,4,4", "1,2,4,4"), _window("MaxPool", "<kernel_shape=[2,2],dilations=[2,2]>", "1,2,5,5", "1,2,3,3"),
    _window("AveragePool", "<kernel_shape=[3,3],pads=[1,1,1,1]>", "1,2,4,5", "1,2,4,5"), _window("AveragePool", "<kernel_shape=[3,2],strides=[2,1],pads=[1,0,1,1],count_include_pad=1>", "1,2,5,5", "1,2,3,5"),
    _window("AveragePool", '<kernel_shape=[2,2],auto_pad="SAME_UPPER">', "1,2,4,4", "1,2,4,4"),
]  # fmt: skip


def _resize(how: str, scales: str, out: str, shape: str = "1,2,4,5", opset: int = 17) -> GradientCase:
    extra = f"float[{scales.count(',') + 1}] s = {{{scales}}}"
    return GradientCase(
        "Resize",
        f"net (float[{shape}] x) => (float[{out}] y) <float[{shape}] p, {extra}> {{ h = Add(x, p) y = Resize<{how}>(h, , s) }}",
        opset,
    )


_RESIZE = [
    _resize('mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor"', "1.0,1.0,2.0,3.0", "1,2,8,15"), _resize('mode="nearest"', "1.0,1.0,1.5,0.6", "1,2,6,3"),
    _resize('mode="linear",coordinate_transformation_mode="half_pixel"', "1.0,1.0,2.0,2.0", "1,2,8,10"), _resize('mode="linear",coordinate_transformation_mode="align_corners"', "1.0,1.0,2.0,1.0", "1,2,8,5"),
    _resize('mode="linear",coordinate_transformation_mode="pytorch_half_pixel"', "1.0,1.0,0.5,1.7", "1,2,2,8"), _resize('mode="cubic",cubic_coeff_a=-0.5', "1.0,1.0,2.0,2.0", "1,2,8,10"),
    _text("Resize", '(float[1,2,4,5] x) => (float[1,2,7,9] y) <float[1,2,4,5] p, int64[4] s = {1,2,7,9}> { h = Add(x, p) y = Resize<mode="linear",coordinate_transformation_mode="half_pixel">(h, , , s) }'),
    _text("Resize", '(float[1,2,4,5] x) => (float[1,2,8,10] y) <float[1,2,4,5] p, float[2] s = {2.0,2.0}> { h = Add(x, p) y = Resize<mode="linear",axes=[2,3]>(h, , s) }', 18),
]  # fmt: skip

_MOVING = [
    _text("Concat", "(float[2,3] x) => (float[2,8] y) <float[2,3] p, float[2,2] p2> { h = Add(x, p) y = Concat<axis=1>(h, p2, x) }"),
    _text("Concat", "(float[2,3] x) => (float[4,3] y) <float[2,3] p> { h = Add(x, p) y = Concat<axis=-2>(h, h) }"),
    _text("Split", "(float[2,6] x) => (float[2,3] y) <float[2,6] p, int64[3] s = {1,3,2}> { h = Add(x, p) a, b, c = Split<axis=1>(h, s) d = Mul(b, b) e = ReduceSum(a) f = ReduceSum(c) g = Add(d, e) y = Mul(g, f) }", 13),
    _text("Split", "(float[2,6] x) => (float[2,3] y) <float[2,6] p, int64[3] s = {1,3,2}> { h = Add(x, p) a, b, c = Split<axis=-1>(h, s) y = Exp(b) }", 13),
    _text("Split", "(float[2,6] x) => (float[2,2] y) <float[2,6] p> { h = Add(x, p) a, b, c = Split<axis=1,num_outputs=3>(h) d = Identity(c) y = Mul(a, b) }", 18),
    _text("Slice", "(float[4,6] x) => (float[2,3] y) <float[4,6] p, int64[2] b = {1,0}, int64[2] e = {3,6}, int64[2] a = {0,1}, int64[2] s = {1,2}> { h = Add(x, p) y = Slice(h, b, e, a, s) }"),
    _text("Slice", "(float[4,6] x) => (float[4,6] y) <float[4,6] p, int64[1] b = {-1}, int64[1] e = {-100}, int64[1] a = {1}, int64[1] s = {-1}> { h = Add(x, p) y = Slice(h, b, e, a, s) }"),
    _text("Slice", "(float[4,6] x) => (float[2,3] y) <float[4,6] p, int64[2] b = {-2,-3}, int64[2] e = {9223372036854775807,9223372036854775807}> { h = Add(x, p) y = Slice(h, b, e) }"),
    _text("Slice", "(float[4,6] x, int64[1] b, int64[1] e) => (float[2,6] y) <float[4,6] p> { h = Add(x, p) y = Slice(h, b, e) }", b=np.asarray([-3]), e=np.asarray([-1])),
    _text("Gather", "(float[4,3] x) => (float[2,2,3] y) <float[4,3] p, int64[2,2] i = {0,3,3,1}> { h = Add(x, p) y = Gather(h, i) }"),
    _text("Gather", "(float[4,3] x) => (float[4] y) <float[4,3] p, int64 i = {-1}> { h = Add(x, p) y = Gather<axis=1>(h, i) }"),
    _text("Gather", "(float[4,3] x, int64[2] i) => (float[2,3] y) <float[4,3] p> { h = Add(x, p) y = Gather<axis=0>(h, i) }", i=np.asarray([-1, 1])),
    _text("GatherElements", "(float[4,3] x) => (float[2,3] y) <float[4,3] p, int64[2,3] i = {0,-1,2,3,1,-4}> { h = Add(x, p) y = GatherElements(h, i) }"),
    _text("GatherElements", "(float[4,3] x, int64[4,2] i) => (float[4,2] y) <float[4,3] p> { h = Add(x, p) y = GatherElements<axis=1>(h, i) }", i=np.asarray([[0, 2], [-1, 1], [1, 1], [2, -3]])),
    _text("GatherND", "(float[4,3] x) => (float[3] y) <float[4,3] p, int64[3,2] i = {0,1,3,-1,-2,0}> { h = Add(x, p) y = GatherND(h, i) }"),
    _text("GatherND", "(float[2,4,3] x) => (float[2,3] y) <float[2,4,3] p, int64[2,1] i = {1,-1}> { h = Add(x, p) y = GatherND<batch_dims=1>(h, i) }"),
    _text("ScatterElements", "(float[4,3] x) => (float[4,3] y) <float[4,3] p, float[2,3] p2, int64[2,3] i = {0,1,2,3,2,0}> { h = Add(x, p) y = ScatterElements(h, i, p2) }"),
    _text("ScatterND", "(float[4,3] x) => (float[4,3] y) <float[4,3] p, float[2,3] p2, int64[2,1] i = {3,1}> { h = Add(x, p) y = ScatterND(h, i, p2) }"),
    _text("Pad", "(float[2,3] x) => (float[5,4] y) <float[2,3] p, int64[4] n = {1,0,2,1}, float v = {0.5}> { h = Add(x, p) y = Pad(h, n, v) }"),
    _text("Pad", "(float[3,4] x) => (float[4,2] y) <float[3,4] p, int64[4] n = {1,-1,0,-1}> { h = Add(x, p) y = Pad(h, n) }", oracle="net (float[3,4] x) => (float[4,2] y) <float[3,4] p, int64[4] n = {1,0,0,0}, int64[1] b = {1}, int64[1] e = {3}, int64[1] a = {1}> { h = Add(x, p) l = Pad(h, n) y = Slice(l, b, e, a) }"),
    _text("Pad", "(float[2,3] x) => (float[2,6] y) <float[2,3] p, int64[2] n = {2,1}, int64[1] a = {-1}> { h = Add(x, p) y = Pad(h, n, , a) }", 18),
    _text("Pad", '(float[3,4] x) => (float[6,6] y) <float[3,4] p, int64[4] n = {2,1,1,1}> { h = Add(x, p) y = Pad<mode="reflect">(h, n) }'),
    _text("Pad", '(float[3,4] x) => (float[6,6] y) <float[3,4] p, int64[4] n = {2,1,1,1}> { h = Add(x, p) y = Pad<mode="edge">(h, n) }'),
    _text("DepthToSpace", "(float[1,8,2,3] x) => (float[1,2,4,6] y) <float[1,8,2,3] p> { h = Add(x, p) y = DepthToSpace<blocksize=2>(h) }"),
    _text("DepthToSpace", '(float[1,8,2,3] x) => (float[1,2,4,6] y) <float[1,8,2,3] p> { h = Add(x, p) y = DepthToSpace<blocksize=2,mode="CRD">(h) }'),
    _text("SpaceToDepth", "(float[1,2,4,6] x) => (float[1,8,2,3] y) <float[1,2,4,6] p> { h = Add(x, p) y = SpaceToDepth<blocksize=2>(h) }"),
    _text("Reshape", "(float[2,6] x) => (float[3,2,2] y) <float[2,6] p, int64[3] s = {3,-1,2}> { h = Add(x, p) y = Reshape(h, s) }"),
    _text("Flatten", "(float[2,3,4] x) => (float[6,4] y) <float[2,3,4] p> { h = Add(x, p) y = Flatten<axis=2>(h) }"),
    _text("Transpose", "(float[2,3,4] x) => (float[4,2,3] y) <float[2,3,4] p> { h = Add(x, p) y = Transpose<perm=[2,0,1]>(h) }"),
    _text("Transpose", "(float[2,3,4] x) => (float[4,3,2] y) <float[2,3,4] p> { h = Add(x, p) y = Transpose(h) }"),
    _text("Squeeze", "(float[2,1,3] x) => (float[2,3] y) <float[2,1,3] p, int64[1] a = {1}> { h = Add(x, p) y = Squeeze(h, a) }"),
    _text("Squeeze", "(float[2,1,3] x) => (float[2,3] y) <float[2,1,3] p> { h = Add(x, p) y = Squeeze(h) }"),
    _text("Unsqueeze", "(float[2,3] x) => (float[2,1,3,1] y) <float[2,3] p, int64[2] a = {1,-1}> { h = Add(x, p) y = Unsqueeze(h, a) }"),
    _text("Expand", "(float[3,1] x) => (float[2,3,4] y) <float[3,1] p, int64[3] s = {2,1,4}> { h = Add(x, p) y = Expand(h, s) }"),
    _text("Tile", "(float[2,3] x) => (float[4,9] y) <float[2,3] p, int64[2] s = {2,3}> { h = Add(x, p) y = Tile(h, s) }"),
    *(_text("Trilu", f"(float[2,3,4] x) => (float[2,3,4] y) <float[2,3,4] p, int64 k = {{{k}}}> {{ h = Add(x, p) y = Trilu<upper={u}>(h, k) }}") for u in (0, 1) for k in (-1, 1)),
    _text("TopK", "(float[2,6] x) => (float[2,3] y) <float[2,6] p, int64[1] k = {3}> { h = Add(x, p) y, at = TopK(h, k) }"),
    _text("MatMul", "(float[2,3] x) => (float[2,4] y) <float[2,3] p, float[3,4] w> { h = Add(x, p) y = MatMul(h, w) }"),
    _text("MatMul", "(float[2,5,3] x) => (float[2,5,4] y) <float[2,5,3] p, float[3,4] w> { h = Add(x, p) y = MatMul(h, w) }"),
    _text("MatMul", "(float[2,2,5,3] x) => (float[2,2,5,4] y) <float[2,2,5,3] p, float[2,1,3,4] w> { h = Add(x, p) y = MatMul(h, w) }"),
    _text("MatMul", "(float[3] x) => (float[2,4] y) <float[3] p, float[2,3,4] w> { h = Add(x, p) y = MatMul(h, w) }"),
    _text("MatMul", "(float[2,3] x) => (float[2] y) <float[2,3] p, float[3] w> { h = Add(x, p) y = MatMul(h, w) }"),
    *(_text("Gemm", f"(float[{a}] x) => (float[2,4] y) <float[{a}] p, float[{b}] w, float[{c}] b> {{ h = Add(x, p) y = Gemm<transA={ta},transB={tb},alpha=0.5,beta=2.0>(h, w, b) }}") for a, ta in (("2,3", 0), ("3,2", 1)) for b, tb in (("3,4", 0), ("4,3", 1)) for c in ("4", "2,1")),
    _text("Gemm", "(float[2,3] x) => (float[2,4] y) <float[2,3] p, float[3,4] w> { h = Add(x, p) y = Gemm(h, w) }"),
]  # fmt: skip

_NORMALIZATIONS = [
    _text("BatchNormalization", "(float[2,3,4,2] x) => (float[2,3,4,2] y) <float[2,3,4,2] p, float[3] w, float[3] b, float[3] m = {0.1,-0.2,0.3}, float[3] v = {0.5,1.0,2.0}> { h = Add(x, p) y = BatchNormalization<epsilon=0.001>(h, w, b, m, v) }"),
    _text("InstanceNormalization", "(float[2,3,4,2] x) => (float[2,3,4,2] y) <float[2,3,4,2] p, float[3] w, float[3] b> { h = Add(x, p) y = InstanceNormalization(h, w, b) }"),
    _text("LayerNormalization", "(float[2,3,4] x) => (float[2,3,4] y) <float[2,3,4] p, float[4] w, float[4] b> { h = Add(x, p) y = LayerNormalization(h, w, b) }"),
    _text("LayerNormalization", "(float[2,3,4] x) => (float[2,3,4] y) <float[2,3,4] p, float[3,4] w> { h = Add(x, p) y = LayerNormalization<axis=1>(h, w) }"),
    _text("GroupNormalization", "(float[2,4,3,2] x) => (float[2,4,3,2] y) <float[2,4,3,2] p, float[4] w, float[4] b> { h = Add(x, p) y = GroupNormalization<num_groups=2>(h, w, b) }", 21),
    _one("LpNormalization", "<axis=1>"),
    replace(_one("LpNormalization", "<axis=-1,p=1>"), oracle="net (float[2,3,4] x) => (float[2,3,4] y) <float[2,3,4] p, int64[1] a = {2}> { h = Add(x, p) m = Abs(h) n = ReduceSum(m, a) y = Div(h, n) }"),
    _text("SoftmaxCrossEntropyLoss", "(float[3,4] x, int64[3] t) => (float y) <float[3,4] p> { h = Add(x, p) y = SoftmaxCrossEntropyLoss(h, t) }", t=np.asarray([1, 0, 3])),
    _text("SoftmaxCrossEntropyLoss", '(float[2,4,3] x, int64[2,3] t) => (float y) <float[2,4,3] p, float[4] k = {1.0,2.0,0.5,1.0}> { h = Add(x, p) y = SoftmaxCrossEntropyLoss<ignore_index=2,reduction="sum">(h, t, k) }', t=np.asarray([[1, 0, 3], [2, 2, 1]])),
]  # fmt: skip

CASES: tuple[GradientCase, ...] = (*_ELEMENTWISE, *_REDUCTIONS, *_WINDOWS, *_RESIZE, *_MOVING, *_NORMALIZATIONS)
"""One operator each, with different attributes and shapes."""
