# SPDX-License-Identifier: Apache-2.0
"""Transformers of real size for amp_peers.py: random weights, as PyTorch exports them at opset 13. No tests here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

SEED = 7


class _AmpNet:
    """Nodes and weights of one network."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(SEED)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One node; its output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: Any) -> str:
        """One constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def stored(self, *shape: int) -> str:
        """A weight of random values."""
        deviation = 0.02 if len(shape) > 1 else 0.1
        return self.constant((self._random.standard_normal(shape) * deviation).astype(np.float32))

    def scalar(self, value: float) -> str:
        """One number."""
        return self.constant(np.float32(value))

    def linear(self, x: str, given: int, wide: int) -> str:
        """MatMul and bias."""
        return self.add("Add", self.add("MatMul", x, self.stored(given, wide)), self.stored(wide))

    def norm(self, x: str, wide: int) -> str:
        """LayerNormalization as operators of opset 13."""
        centered = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1], keepdims=1))
        square = self.add("Pow", centered, self.scalar(2.0))
        variance = self.add("ReduceMean", square, axes=[-1], keepdims=1)
        scaled = self.add("Div", centered, self.add("Sqrt", self.add("Add", variance, self.scalar(1e-6))))
        return self.add("Add", self.add("Mul", scaled, self.constant(np.ones(wide, np.float32))), self.stored(wide))

    def gelu(self, x: str) -> str:
        """GELU by the error function."""
        inner = self.add("Add", self.add("Erf", self.add("Div", x, self.scalar(2**0.5))), self.scalar(1.0))
        return self.add("Mul", self.add("Mul", x, inner), self.scalar(0.5))

    def heads(self, x: str, count: int, wide: int, order: list[int]) -> str:
        """[1, tokens, wide] as [1, count, tokens, wide / count], turned."""
        shape = self.constant(np.array([1, -1, count, wide // count], np.int64))
        return self.add("Transpose", self.add("Reshape", x, shape), perm=order)

    def attention(self, x: str, wide: int, count: int) -> str:
        """Attention of `count` heads."""
        query = self.heads(self.linear(x, wide, wide), count, wide, [0, 2, 1, 3])
        key = self.heads(self.linear(x, wide, wide), count, wide, [0, 2, 3, 1])
        value = self.heads(self.linear(x, wide, wide), count, wide, [0, 2, 1, 3])
        scores = self.add("Mul", self.add("MatMul", query, key), self.scalar((wide / count) ** -0.5))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        turned = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.add("Reshape", turned, self.constant(np.array([1, -1, wide], np.int64)))
        return self.linear(flat, wide, wide)


def make_vit(path: Path, wide: int = 768, layers: int = 12, side: int = 224) -> None:
    """Write a ViT-B/16: 197 tokens, 12 heads."""
    net, patches = _AmpNet(), (side // 16) ** 2
    image = net.add(
        "Conv", "input", net.stored(wide, 3, 16, 16), net.stored(wide), strides=[16, 16], kernel_shape=[16, 16]
    )
    flat = net.add("Reshape", image, net.constant(np.array([1, wide, patches], np.int64)))
    tokens = net.add("Concat", net.stored(1, 1, wide), net.add("Transpose", flat, perm=[0, 2, 1]), axis=1)
    x = net.add("Add", tokens, net.stored(1, patches + 1, wide))
    for _ in range(layers):
        x = net.add("Add", x, net.attention(net.norm(x, wide), wide, 12))
        inner = net.gelu(net.linear(net.norm(x, wide), wide, 4 * wide))
        x = net.add("Add", x, net.linear(inner, 4 * wide, wide))
    first = net.add("Gather", net.norm(x, wide), net.constant(np.int64(0)), axis=1)
    last = net.linear(first, wide, 1000)
    graph = helper.make_graph(
        net.nodes,
        "vit_b",
        [helper.make_tensor_value_info("input", 1, [1, 3, side, side])],
        [helper.make_tensor_value_info(last, 1, [1, 1000])],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString(deterministic=True))
