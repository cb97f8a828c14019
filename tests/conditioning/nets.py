# SPDX-License-Identifier: Apache-2.0
"""Small networks whose channels lie far apart, and data for them. No tests here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.conditioning.condition_context import ConditionContext, look
from qdqtool.data.loader import DataLoader, DataOptions, inputs_of, open_loader
from qdqtool.data.single_samples import SingleSamples
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.graphs import model_of
from tests.ort_session import session_of

RELU = """g (float[N,4,6,6] x) => (float[N,3,6,6] y) <float[8,4,1,1] w1, float[8] b1, float[3,8,3,3] w2, float[3] b2>
{ c1 = Conv(x, w1, b1)  r1 = Relu(c1)  y = Conv<pads=[1,1,1,1]>(r1, w2, b2) }"""
SILU = """g (float[N,4,6,6] x) => (float[N,8,6,6] y) <float[8,4,1,1] w1, float[8] b1, float[8,1,3,3] w2>
{ c1 = Conv(x, w1, b1)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)  y = Conv<pads=[1,1,1,1], group=8>(m1, w2) }"""
CONCAT = """g (float[N,4,6,6] x) => (float[N,3,6,6] y)
<float[8,4,1,1] w1, float[8,4,1,1] w2, float[3,16,1,1] w3>
{ c1 = Conv(x, w1)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)  c2 = Conv(x, w2)  s2 = Sigmoid(c2)  m2 = Mul(c2, s2)
  k = Concat<axis=1>(m1, m2)  p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(k)  y = Conv(p, w3) }"""
SPREAD = 2.0 ** -np.arange(8)  # how far the channels of the first convolution lie apart


def spread(text: str, opset: int = 17, ir: int = 8, names: tuple[str, ...] = ("w1", "b1")) -> onnx.ModelProto:
    """A network in text whose tensors `names` have their rows divided by SPREAD."""
    proto = model_of(text, opset, ir)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            value = onnx.numpy_helper.to_array(tensor)
            rows = (value * SPREAD.reshape(-1, *(1,) * (value.ndim - 1))).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(rows, tensor.name))
    return proto


def even() -> onnx.ModelProto:
    """SILU with eight equal channels: nothing to win."""
    proto = model_of(SILU)
    for tensor in proto.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.repeat(value[:1], 8, axis=0), tensor.name))
    return proto


def samples(count: int = 6, shape: tuple[int, ...] = (4, 6, 6)) -> npt.NDArray[np.float32]:
    return np.random.default_rng(3).normal(size=(count, *shape)).astype(np.float32)


def feed_of(proto: onnx.ModelProto, rows: npt.NDArray[np.float32] | None = None, batch: int = 1) -> DataLoader:
    rows = samples() if rows is None else rows
    name = inputs_of(proto.graph)[0].name
    return open_loader(lambda: [{name: row[None]} for row in rows], inputs_of(proto.graph), DataOptions(batch=batch))


def singles_of(proto: onnx.ModelProto, rows: npt.NDArray[np.float32] | None = None, batch: int = 1) -> SingleSamples:
    return SingleSamples(feed_of(proto, rows, batch), inputs_of(proto.graph))


def context_of(proto: onnx.ModelProto, **options: Any) -> ConditionContext:
    options.setdefault("float_heads", "none")
    return look(Model(proto), PlanOptions(**options))


def value_of(proto: onnx.ModelProto, name: str) -> npt.NDArray[Any]:
    return onnx.numpy_helper.to_array(next(tensor for tensor in proto.graph.initializer if tensor.name == name))


def run_model(proto: onnx.ModelProto, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    session = session_of(proto)
    made: npt.NDArray[np.float32] = session.run(None, {session.get_inputs()[0].name: rows})[0]
    return made
