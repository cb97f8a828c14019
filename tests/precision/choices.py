# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Graphs with ranges for tests of the choice of types, and the nets that overflow FP16. No tests here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdqtool.graph.model import Model
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types
from qdqtool.precision.value_ranges import ValueRange, ValueRanges
from tests.graphs import model_of

Float32 = npt.NDArray[np.float32]


def within(low: float, high: float, mean: float | None = None, **more: float) -> ValueRange:
    """A range whose magnitudes are all far from 0 unless something else is said."""
    return ValueRange(low, high, mean, **{"smallest": 1e-3, **more})  # type: ignore[arg-type]


def ranges_for(model: onnx.ModelProto, largest: float = 1.0, **named: float | ValueRange) -> ValueRanges:
    """Ranges of all tensors: symmetric, up to `largest`, but for the named ones."""
    names = {value.name for value in model.graph.input} | {name for node in model.graph.node for name in node.output}
    found = {name: within(-largest, largest) for name in names}
    found.update((name, one if isinstance(one, ValueRange) else within(-one, one)) for name, one in named.items())
    return ValueRanges(found)


def choice_of(
    text: str, options: TypeOptions | None = None, opset: int = 17, largest: float = 1.0, **named: float | ValueRange
) -> TypeChoice:
    """The choice of types for a graph in text."""
    model = model_of(text, opset)
    return choose_types(Model(model), ranges_for(model, largest, **named), options)


def floats(choice: TypeChoice) -> dict[str, str]:
    """Key of each operator in FP32 -> the rule."""
    return {key: reason.rule for key, reason in choice.reasons.items()}


@dataclass(frozen=True)
class Overflowing:
    """A net that FP16 cannot hold, data for it, and what has to stay in FP32.

    Attributes:
        text: the graph.
        batch: one batch of its inputs.
        float32: keys of the operators in FP32 for their values; no product is among the others in FP32.
        weights: constants by name.
        opset: of the model.
    """

    text: str
    batch: Mapping[str, Float32]
    float32: frozenset[str]
    weights: Mapping[str, Float32] = field(default_factory=dict)
    opset: int = 17

    @property
    def model(self) -> onnx.ModelProto:
        """The FP32 model."""
        made = model_of(self.text, self.opset)
        for tensor in made.graph.initializer:
            if tensor.name in self.weights:
                tensor.CopyFrom(numpy_helper.from_array(self.weights[tensor.name], tensor.name))
        return made


def _eye(channels: int, factor: float) -> Float32:
    return (np.eye(channels, dtype=np.float32) * np.float32(factor)).reshape(channels, channels, 1, 1)


_IMAGE = np.linspace(0.5, 1, 4 * 8 * 8, dtype=np.float32).reshape(1, 4, 8, 8)

# A stream to which three branches add 30,000 each: it holds 90,000 behind the third.
RESIDUAL_STREAM = Overflowing(
    """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float[4,4,1,1] w5, float[4] s, float[4] b, float[4] m, float[4] v, float[4,4,1,1] w4>
{
 a = Conv(x, w1)
 b1 = Conv(x, w2)
 r1 = Add(a, b1)
 b2 = Conv(x, w3)
 r2 = Add(r1, b2)
 b3 = Conv(x, w5)
 r3 = Add(r2, b3)
 n = BatchNormalization(r3, s, b, m, v)
 q = Relu(n)
 y = Conv(q, w4)
}""",
    {"x": _IMAGE},
    frozenset(["r2", "r3", "n"]),
    {
        "w1": _eye(4, 20),
        "w2": _eye(4, 30_000),
        "w3": _eye(4, 30_000),
        "w5": _eye(4, 30_000),
        "w4": _eye(4, 1),
        "s": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
        "m": np.full(4, 4e4, np.float32),
        "v": np.full(4, 1e8, np.float32),
    },
)

# A convolution whose output of 1e5 a BatchNormalization brings back to 1.
UNNORMALIZED = Overflowing(
    """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4] s, float[4] b, float[4] m, float[4] v, float[4,4,1,1] w3>
{
 a = Conv(x, w1)
 c = Conv(a, w2)
 n = BatchNormalization(c, s, b, m, v)
 q = Relu(n)
 y = Conv(q, w3)
}""",
    {"x": _IMAGE},
    frozenset(["c", "n"]),
    {
        "w1": _eye(4, 2),
        "w2": _eye(4, 50_000),
        "w3": _eye(4, 1),
        "s": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
        "m": np.full(4, 5e4, np.float32),
        "v": np.full(4, 1e10, np.float32),
    },
)

# Attention of one query over 65,536 keys.
LONG_SOFTMAX = Overflowing(
    """net (float[1,8] x, float[1,65536] k) => (float[1,8] y) <float[8,65536] wk, float[65536,8] wv>
{
 s = MatMul(x, wk)
 t = Add(s, k)
 p = Softmax<axis = -1>(t)
 o = MatMul(p, wv)
 y = Relu(o)
}""",
    {
        "x": np.linspace(0.5, 1, 8, dtype=np.float32).reshape(1, 8),
        "k": np.linspace(-1, 1, 65536, dtype=np.float32).reshape(1, 65536),
    },
    frozenset(["p"]),
    {"wk": np.full((8, 65536), 0.01, np.float32), "wv": np.full((65536, 8), 0.5, np.float32)},
)

# A sum of 1e5 numbers of both signs: the sum itself is small, what is added up on the way need not be.
LONG_SUM = Overflowing(
    """net (float[1,100000] x) => (float[1,1] y) <float[1,1] w, int64[1] axes = {1}>
{
 a = Mul(x, w)
 t = ReduceSum<keepdims = 1>(a, axes)
 y = MatMul(t, w)
}""",
    {"x": np.where(np.arange(100_000) % 2, 1.5, -1.5).astype(np.float32).reshape(1, -1)},
    frozenset(["t"]),
    {"w": np.ones((1, 1), np.float32)},
)

OVERFLOWING = {
    "residual stream": RESIDUAL_STREAM,
    "before BatchNormalization": UNNORMALIZED,
    "softmax over 65,536 keys": LONG_SOFTMAX,
    "sum of 1e5 terms": LONG_SUM,
}
