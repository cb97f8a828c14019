# SPDX-License-Identifier: Apache-2.0
"""Typed graphs for tests: from ONNX text with half weights, and random ones with the answer of NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.model import Model
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import Rounding, apply_types
from qdqtool.precision.rounded import rounded
from qdqtool.precision.widen import widen
from qdqtool.runtime.executor import Executor

DTYPES = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
KINDS = {TensorProto.FLOAT: "FLOAT", TensorProto.FLOAT16: "FLOAT16", TensorProto.BFLOAT16: "BFLOAT16"}


def typed_model(text: str, opset: int = 17, ir: int = 8, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from the text of a graph; `weights` become its initializers, of their own types."""
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}, "trt" : 1]> {text}')
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function in FP32."""
    return widen(Model(model)).proto


def with_types(
    model: onnx.ModelProto, assignment: TypeAssignment, folder: Path | None = None, rounding: Rounding | None = None
) -> onnx.ModelProto:
    """A copy with the types of an assignment."""
    return apply_types(Model(model, folder), assignment, rounding).proto


def with_roundings(model: onnx.ModelProto) -> onnx.ModelProto:
    """What a typed model computes, in FP32."""
    return rounded(Model(model)).proto


def half(*values: float) -> np.ndarray:
    """FP16 numbers."""
    return np.array(values, np.float16)


def bf16(*values: float) -> np.ndarray:
    """BF16 numbers."""
    return np.array(values, np.float32).astype(ml_dtypes.bfloat16)


def run(model: onnx.ModelProto, *names: str, **feed: np.ndarray) -> list[np.ndarray]:
    """Tensors of a model in the reference executor; its outputs where none is named."""
    return list(Executor(Model(model), names or None).run(feed).values())


def to_type(value: np.ndarray, kind: int) -> np.ndarray:
    """FP32 numbers rounded to a type, as FP32 again."""
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(DTYPES[kind]).astype(np.float32)


class RandomTyped:
    """A random graph of elementwise operators in FP32, FP16 and BF16, written beside its own answer in NumPy.

    Attributes:
        model: inputs x (FP32) and h (FP16); every tensor is an output.
        feed: values of the inputs, all FP32: h is not rounded yet.
        answer: tensor -> what a machine that rounds each tensor to its type has.
    """

    def __init__(self, seed: int, nodes: int = 14) -> None:
        self.random = np.random.default_rng(seed)
        self.kinds = {"x": TensorProto.FLOAT, "h": TensorProto.FLOAT16}
        magnitude = 10.0 ** self.random.integers(-6, 5, (2, 12))
        x, h = (self.random.standard_normal((2, 12)) * magnitude).astype(np.float32)
        self.feed = {"x": x, "h": h}
        self.answer = {"x": x, "h": to_type(h, TensorProto.FLOAT16)}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        for number in range(nodes):
            self._grow(f"t{number}")
        outputs = [helper.make_tensor_value_info(n, k, [12]) for n, k in self.kinds.items() if n not in self.feed]
        inputs = [helper.make_tensor_value_info(n, self.kinds[n], [12]) for n in self.feed]
        graph = helper.make_graph(self._nodes, "random", inputs, outputs, self._weights)
        self.model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    def _grow(self, made: str) -> None:
        op = str(self.random.choice(["Cast", "Cast", "Add", "Mul", "Sub", "Relu", "Neg", "Weight"]))
        source = str(self.random.choice(list(self.kinds)))
        kind, value = self.kinds[source], self.answer[source]
        if op == "Cast":
            kind = int(self.random.choice(list(DTYPES)))
            self._nodes.append(helper.make_node("Cast", [source], [made], name=f"n_{made}", to=kind))
        elif op in ("Relu", "Neg"):
            self._nodes.append(helper.make_node(op, [source], [made], name=f"n_{made}"))
            value = np.maximum(value, np.float32(0)) if op == "Relu" else -value
        else:
            other, with_value = self._partner(kind, made) if op == "Weight" else self._like(kind)
            op = "Mul" if op == "Weight" else op
            self._nodes.append(helper.make_node(op, [source, other], [made], name=f"n_{made}"))
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                value = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}[op](value, with_value)
        self.kinds[made], self.answer[made] = kind, to_type(value, kind)

    def _like(self, kind: int) -> tuple[str, np.ndarray]:
        name = str(self.random.choice([name for name, other in self.kinds.items() if other == kind]))
        return name, self.answer[name]

    def _partner(self, kind: int, made: str) -> tuple[str, np.ndarray]:
        value = (self.random.standard_normal(12) * 3).astype(DTYPES[kind])
        self._weights.append(numpy_helper.from_array(value, f"w_{made}"))
        return f"w_{made}", value.astype(np.float32)
