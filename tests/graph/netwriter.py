# SPDX-License-Identifier: Apache-2.0
"""Writes small ONNX graphs as torch.onnx.export would: names, shared weights, random values. No network in here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 64


@dataclass(frozen=True)
class WrittenDetector:
    """A model, and name of each head -> its label."""

    model: onnx.ModelProto
    heads: dict[str, str]


class Net:
    """A graph being written: nodes are named as torch.onnx.export names them, outputs `<name>_output_0`."""

    def __init__(self, title: str, channels: int = 3) -> None:
        self.title, self.values = title, np.random.default_rng(len(title))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.width = {"images": channels}
        self.heads: dict[str, str] = {}
        self.domains: set[str] = set()

    def const(self, values: Any, dtype: Any = np.float32, name: str = "") -> str:
        name = name or f"onnx::Const_{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def random(self, *shape: int) -> str:
        return self.const(self.values.normal(0, 0.3, shape))

    def many(self, op: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> list[str]:
        """One node; "Domain::Op" for a plugin. The channel count of its first input is passed on."""
        name = name or f"/{op.rpartition('::')[2]}_{len(self.nodes)}"
        names = [f"{name}_output_{index}" for index in range(outputs)]
        domain, _, kind = op.rpartition("::")
        self.domains |= {domain} - {""}
        self.nodes.append(helper.make_node(kind, list(inputs), names, name, domain=domain, **attributes))
        self.width.update({n: self.width[inputs[0]] for n in names if inputs and inputs[0] in self.width})
        return names

    def op(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        return self.many(op, *inputs, name=name, **attributes)[0]

    def conv(self, x: str, out: int, name: str, k: int = 3, stride: int = 1, groups: int = 1, share: str = "") -> str:
        """A convolution; `share` names the module whose weight several of them read."""
        owner = (share or name).strip("/").replace("/", ".")
        if f"{owner}.weight" not in self.weights:
            shape = (out, self.width[x] // groups, k, k)
            self.const(self.values.normal(0, 1 / math.sqrt(math.prod(shape[1:])), shape), name=f"{owner}.weight")
            self.const(np.zeros(out), name=f"{owner}.bias")
        inputs = (x, f"{owner}.weight", f"{owner}.bias")
        shape_of = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [k // 2] * 4, "group": groups}
        y = self.op("Conv", *inputs, name=f"{name}/Conv", **shape_of)
        self.width[y] = out
        return y

    def norm(self, x: str, name: str) -> str:
        ones, zeros = np.ones(self.width[x]), np.zeros(self.width[x])
        parts = {"weight": ones, "bias": zeros, "running_mean": zeros, "running_var": ones}
        owner = name.strip("/").replace("/", ".")
        names = [self.const(value, name=f"{owner}.{part}") for part, value in parts.items()]
        return self.op("BatchNormalization", x, *names, name=f"{name}/BatchNormalization")

    def act(self, x: str, kind: str = "Relu") -> str:
        if kind == "Silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op(kind, x)

    def block(self, x: str, out: int, name: str, stride: int = 1, kind: str = "Relu", k: int = 3) -> str:
        return self.act(self.norm(self.conv(x, out, f"{name}/conv", k, stride), f"{name}/bn"), kind)

    def backbone(self, depth: int = 4, kind: str = "Relu") -> list[str]:
        """Features at stride 2, 4, 8, ..."""
        features = ["images"]
        for index in range(depth):
            features.append(self.block(features[-1], 8 * min(index + 1, 2), f"/backbone/stage{index}", 2, kind))
        return features[1:]

    def matmul(self, x: str, wide: int, out: int, name: str) -> str:
        """A linear layer on a sequence: MatMul and Add."""
        y = self.op("MatMul", x, self.random(wide, out), name=f"{name}/MatMul")
        return self.op("Add", self.random(out), y, name=f"{name}/Add")

    def gemm(self, x: str, wide: int, out: int, name: str) -> str:
        return self.op("Gemm", x, self.random(out, wide), self.random(out), name=f"{name}/Gemm", transB=1)

    def head(self, x: str, out: int, name: str, label: str, k: int = 1, share: str = "") -> str:
        self.heads[f"{name}/Conv"] = label
        return self.conv(x, out, name, k, share=share)

    def cut(self, x: str, first: int, last: int, axis: int) -> str:
        return self.op("Slice", x, self.ints(first), self.ints(last), self.ints(axis), self.ints(1))

    def rows(self, x: str, columns: int) -> str:
        """N, A*C, H, W -> N, H*W*A, C, as SSD and RetinaNet do it."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 3, 1]), self.ints(1, -1, columns))

    def concat(self, *parts: str, axis: int) -> str:
        joined = self.op("Concat", *parts, axis=axis)
        if axis == 1 and all(part in self.width for part in parts):
            self.width[joined] = sum(self.width[part] for part in parts)
        return joined

    def done(self, *outputs: str, shape: Sequence[int] = ()) -> WrittenDetector:
        """The model; types of its outputs by shape inference, which exporters keep of nothing else."""
        feed = helper.make_tensor_value_info(
            "images", TensorProto.FLOAT, shape or (1, self.width["images"], SIZE, SIZE)
        )
        given = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, self.title, [feed], given, list(self.weights.values()))
        opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 1) for name in sorted(self.domains))]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch")
        inferred = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
        for value in model.graph.output:
            value.CopyFrom(inferred[value.name])
            if not value.type.tensor_type.HasField("shape"):
                kind = value.type.tensor_type.elem_type or TensorProto.FLOAT
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, ["N", "M"]))
        return WrittenDetector(model, self.heads)
