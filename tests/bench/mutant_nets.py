# SPDX-License-Identifier: Apache-2.0
"""Sound little Q/DQ graphs, which mutants are made of."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE

FLOAT = TensorProto.FLOAT


class MutantNet:
    """A graph under construction; pairs are `<tensor>_q`, `<tensor>_dq` with constants `<tensor>_s`, `<tensor>_z`."""

    def __init__(self, sides: tuple[int, ...]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.sides = sides
        self.values = np.random.default_rng(7)

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def weight(self, name: str, *shape: int) -> str:
        self.constants[name] = self.values.normal(0, 0.1, shape).astype(np.float32)
        return name

    def pair(self, name: str, channels: int = 0, axis: int = 0) -> str:
        """A pair on a tensor: one scale, or one for each of so many channels along an axis."""
        scale = np.full(channels, 0.02, np.float32) if channels else np.float32(0.02)
        self.constants[f"{name}_s"] = np.asarray(scale)
        self.constants[f"{name}_z"] = np.zeros(np.shape(scale), np.int8)
        along = {"axis": axis} if channels else {}
        self.node(QUANTIZE, [name, f"{name}_s", f"{name}_z"], f"{name}_q", **along)
        return self.node(DEQUANTIZE, [f"{name}_q", f"{name}_s", f"{name}_z"], f"{name}_dq", **along)

    def model(self, last: str, opset: int = 17) -> onnx.ModelProto:
        self.nodes[-1].output[0] = self.nodes[-1].name = "y"
        ends = [helper.make_tensor_value_info("x", FLOAT, self.sides), helper.make_tensor_value_info("y", FLOAT, None)]
        stored = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "mutant", ends[:1], ends[1:], stored)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def base(kind: str) -> onnx.ModelProto:
    """A sound Q/DQ graph: pairs on `x` and on the weight `w`."""
    if kind in ("gemm", "matmul"):
        net = MutantNet((4, 16))
        if kind == "gemm":
            net.node("Gemm", [net.pair("x"), net.pair(net.weight("w", 32, 16), 32)], "p", transB=1)
        else:
            net.node("MatMul", [net.pair("x"), net.pair(net.weight("w", 16, 32), 32, 1)], "p")
        net.node("Relu", ["p"], "r")
        return net.model("r")
    net = MutantNet((1, 8, 16, 16))
    pads = {"pads": [1, 1, 1, 1]}
    if kind == "transposed":
        net.node("ConvTranspose", [net.pair("x"), net.pair(net.weight("w", 8, 8, 3, 3))], "c", **pads)
    elif kind == "depthwise":
        net.node("Conv", [net.pair("x"), net.pair(net.weight("w", 8, 1, 3, 3), 8)], "c", group=8, **pads)
    else:
        net.node("Conv", [net.pair("x"), net.pair(net.weight("w", 8, 8, 3, 3), 8), net.weight("b", 8)], "c", **pads)
    net.node("Relu", ["c"], "r")
    if kind == "residual":
        net.node("Add", ["r", "x_dq"], "a")
    elif kind == "concat":
        net.node("Concat", [net.pair("r"), "x_dq"], "a", axis=1)
    elif kind == "pool":
        net.node("MaxPool", [net.pair("r")], "a", kernel_shape=[2, 2], strides=[2, 2])
    return net.model("r")
