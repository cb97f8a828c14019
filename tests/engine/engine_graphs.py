# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs of engines whose exports lie beside the project, rebuilt from a log or by the names in the engine."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

_PARSED = re.compile(r"Parsing node: (.+) \[(\S+)\]\s*$")
_PORTS = re.compile(r"\[(\S+) -> \(([\d, -]*)\)")
_KERNEL = re.compile(
    r"Using kernel: \(([\d, ]+)\), strides: \(([\d, ]+)\), prepadding: \(([\d, ]+)\), postpadding: \(([\d, ]+)\)"
)


@functools.cache
def rebuilt(shared: Path, net: str, mode: str, width: float = 1.0) -> onnx.ModelProto:
    """One of the graphs that the material's own script makes: made once, not to be changed."""
    spec = importlib.util.spec_from_file_location("build_onnx", shared / "trt" / "engines" / "build_onnx.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    make = script.resnet18 if net == "resnet18" else script.finish_mobilenet
    with tempfile.TemporaryDirectory() as folder:
        script.save(*make(mode, width, 32), str(Path(folder, "model.onnx")))
        return onnx.load(Path(folder, "model.onnx"))


def graph_of_log(path: Path) -> onnx.ModelProto:
    """The graph that a verbose log of TensorRT's parser tells; weights by shape alone, all zero."""
    nodes: list[onnx.NodeProto] = []
    shapes: dict[str, list[int]] = {}
    made: set[str] = set()
    read: dict[str, None] = {}
    for line in path.read_text(errors="replace").splitlines():
        if found := _PARSED.search(line):
            nodes.append(helper.make_node(found[2], [], [], name=found[1]))
        elif " inputs: [" in line or " outputs: [" in line:
            ports = _PORTS.findall(line)
            shapes |= {name: [int(size) for size in dims.split(",") if size.strip()] for name, dims in ports}
            if " inputs: [" in line:
                nodes[-1].input.extend(name for name, _ in ports)
                read |= {name: None for name, _ in ports}
            else:
                nodes[-1].output.extend(name for name, _ in ports)
                made |= {name for name, _ in ports}
        elif (found := _KERNEL.search(line)) and nodes[-1].op_type == "Conv":
            words = [[int(size) for size in text.split(",")] for text in found.groups()]
            nodes[-1].attribute.extend(
                [
                    helper.make_attribute("kernel_shape", words[0]),
                    helper.make_attribute("strides", words[1]),
                    helper.make_attribute("pads", words[2] + words[3]),
                ]
            )
    used = {name for node in nodes for name in node.input}
    inputs = [name for name in read if name not in made and name == nodes[0].input[0]]
    weights = [name for name in read if name not in made and name not in inputs]
    outputs = [name for node in nodes for name in node.output if name not in used]
    return _model(nodes, inputs, outputs, shapes, {name: np.zeros(shapes[name], np.float32) for name in weights})


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[str],
    outputs: list[str],
    shapes: dict[str, list[int]],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, 1, shapes.get(name)) for name in inputs]
    results = [helper.make_tensor_value_info(name, 1, shapes.get(name)) for name in outputs]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "engine", values, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class _Camera:
    """A ResNet-34 with a pair behind every convolution and activation, named as the export of the camera network."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {
            "scale": np.float32([0.02])[0:1].reshape(()),
            "zero": np.zeros((), np.int8),
        }
        self.count = 17856

    def node(self, op: str, name: str, inputs: list[str], **words: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_output_0"], name=name, **words))
        return f"{name}_output_0"

    def pair(self, tensor: str, name: str = "") -> str:
        name = name or tensor
        quantized = self.node("QuantizeLinear", f"{name}_QuantizeLinear", [tensor, "scale", "zero"])
        return self.node("DequantizeLinear", f"{name}_DequantizeLinear", [quantized, "scale", "zero"])

    def conv(self, name: str, tensor: str, cin: int, cout: int, kernel: int, stride: int) -> str:
        weight = f"onnx::Conv_{self.count}"
        self.count += 3
        self.weights[weight] = np.full((cout, cin, kernel, kernel), 0.01, np.float32)
        pads = [kernel // 2] * 4
        inputs = [tensor, self.pair(weight)]
        return self.node("Conv", name, inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def block(self, name: str, tensor: str, cin: int, cout: int, stride: int, *, last: bool) -> str:
        first = self.conv(f"{name}/conv1/Conv", tensor, cin, cout, 3, stride)
        inner = self.pair(self.node("Relu", f"{name}/relu/Relu", [first]))
        main = self.pair(self.conv(f"{name}/conv2/Conv", inner, cout, cout, 3, 1))
        skip = tensor
        if cin != cout:
            skip = self.pair(self.conv(f"{name}/downsample/downsample.0/Conv", tensor, cin, cout, 1, stride))
        out = self.node("Relu", f"{name}/relu_1/Relu", [self.node("Add", f"{name}/Add", [main, skip])])
        return out if last else self.pair(out)


def camera_resnet34() -> onnx.ModelProto:
    """The backbone of the 10.x engine: a Q/DQ pair between Conv and Add, one on each side of the pool of the stem."""
    net, root = _Camera(), "/img_backbone"
    stem = net.conv(f"{root}/conv1/Conv", net.pair("img"), 3, 64, 7, 2)
    stem = net.pair(net.node("Relu", f"{root}/relu/Relu", [stem]))
    tensor = net.pair(
        net.node("MaxPool", f"{root}/maxpool/MaxPool", [stem], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    cin = 64
    for number, (depth, cout) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for index in range(depth):
            stride = 2 if number > 1 and not index else 1
            last = number == 4 and index == depth - 1
            tensor = net.block(f"{root}/layer{number}/layer{number}.{index}", tensor, cin, cout, stride, last=last)
            cin = cout
    return _model(net.nodes, ["img"], [tensor], {"img": [7, 3, 544, 960]}, net.weights)


def small_digits() -> onnx.ModelProto:
    """The small network of the 10.16 export, plain."""
    text = """
    g (float[1,1,28,28] x) => (float[1,10] y, int64[1] z)
    <float[32,1,5,5] w1, float[32] b1, float[64,32,5,5] w2, float[64] b2, float[1024,3136] w3, float[1024] b3,
     float[10,1024] w4, float[10] b4, int64[2] flat = {1, -1}> {
      [node_conv2d] c1 = Conv<pads=[2,2,2,2]>(x, w1, b1) [node_relu] r1 = Relu(c1)
      [node_max_pool2d] p1 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r1)
      [node_conv2d_1] c2 = Conv<pads=[2,2,2,2]>(p1, w2, b2) [node_relu_1] r2 = Relu(c2)
      [node_max_pool2d_1] p2 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r2)
      [node_view] v = Reshape(p2, flat) [node_linear] l1 = Gemm<transB=1>(v, w3, b3) [node_relu_2] r3 = Relu(l1)
      [node_linear_1] l2 = Gemm<transB=1>(r3, w4, b4) [node_softmax] y = Softmax(l2)
      [node_argmax] z = ArgMax<axis=1, keepdims=0>(y)
    }"""
    from tests.graphs import model_of

    return model_of(text)
