# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A detector of 24x24 pixels with one of everything that detectors are made of, Q/DQ pairs around it. No tests."""

from __future__ import annotations

import numpy as np
import onnx

from tests.autodiff.running import with_loss, with_pairs
from tests.graphs import model_of


class _Text:
    """The graph's text while it is written."""

    def __init__(self, learned: bool) -> None:
        self.kind = "Learned" if learned else ""
        self.nodes: list[str] = []
        self.weights: list[str] = []
        self.parameters: list[str] = []

    def pair(self, x: str, scale: float) -> str:
        if f"float s_{x} = {{{scale}}}" in self.weights:
            return f"q_{x}"
        self.weights += [f"float s_{x} = {{{scale}}}", f"int8 z_{x} = {{0}}"]
        self.parameters += [f"s_{x}"] if self.kind else []
        self.nodes.append(f"q_{x} = qdqtool.pairs.Pair{self.kind}({x}, s_{x}, z_{x})")
        return f"q_{x}"

    def weight(self, name: str, shape: str, axis: int) -> str:
        size = int(shape.split(",")[axis])
        scales = ", ".join(f"{0.006 + 0.0003 * at:.4f}" for at in range(size))
        zeros = ", ".join("0" for _ in range(size))
        self.weights += [
            f"float[{shape}] {name}",
            f"float[{size}] s_{name} = {{{scales}}}",
            f"int8[{size}] z_{name} = {{{zeros}}}",
        ]
        self.parameters += [name, *([f"s_{name}"] if self.kind else [])]
        self.nodes.append(f"q_{name} = qdqtool.pairs.PairAxis{axis}{self.kind}({name}, s_{name}, z_{name})")
        return f"q_{name}"

    def conv(self, y: str, x: str, shape: str, how: str = "", op: str = "Conv") -> str:
        """A convolution of a quantized input with a quantized weight, and a float bias."""
        x, w = self.pair(x, 0.02), self.weight(f"w_{y}", shape, 0 if op == "Conv" else 1)
        self.weights.append(f"float[{shape.split(',')[0 if op == 'Conv' else 1]}] b_{y}")
        self.parameters.append(f"b_{y}")
        self.nodes.append(f"{y} = {op}{how}({x}, {w}, b_{y})")
        return y

    def norm(self, y: str, x: str, size: int) -> str:
        numbers = [
            ", ".join(f"{start + step * at:.2f}" for at in range(size)) for start, step in ((-0.2, 0.1), (0.5, 0.2))
        ]
        self.weights += [f"float[{size}] g_{y}", f"float[{size}] b_{y}", f"float[{size}] m_{y} = {{{numbers[0]}}}"]
        self.weights.append(f"float[{size}] v_{y} = {{{numbers[1]}}}")
        self.parameters += [f"g_{y}", f"b_{y}"]
        self.nodes.append(f"{y} = BatchNormalization({x}, g_{y}, b_{y}, m_{y}, v_{y})")
        return y

    def line(self, text: str) -> str:
        """A node as it stands; its output."""
        self.nodes.append(text)
        return text.split(" = ")[0]

    def head(self, y: str, x: str, shape: str) -> str:
        """Channels last, boxes in rows."""
        self.conv(f"h_{y}", x, shape)
        self.line(f"t_{y} = Transpose<perm=[0,2,3,1]>(h_{y})")
        return self.line(f"{y} = Reshape(t_{y}, rows{shape.split(',')[0]})")


def detector(learned: bool) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with a loss, and its parameters; with learned scales all of those are parameters, too."""
    net = _Text(learned)
    same = "<pads=[1,1,1,1]>"
    net.norm("n1", net.conv("c1", "images", "8,3,3,3", "<pads=[1,1,1,1],strides=[2,2]>"), 8)
    net.line("e1 = Sigmoid(n1)")
    net.line("silu = Mul(n1, e1)")
    net.line("hard = HardSwish(" + net.conv("c2", "silu", "8,1,3,3", "<pads=[1,1,1,1],group=8>") + ")")
    net.line("pooled = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(hard)")
    net.line("g = GlobalAveragePool(pooled)")
    net.line("gr = Relu(" + net.conv("se1", "g", "4,8,1,1") + ")")
    net.line("gate = HardSigmoid<alpha=0.1666667>(" + net.conv("se2", "gr", "8,4,1,1") + ")")
    net.line("se = Mul(pooled, gate)")
    net.line("six = Clip(" + net.conv("c3", "se", "8,8,3,3", same) + ", low, high)")
    net.line("res = Add(six, se)")
    net.line("down = LeakyRelu<alpha=0.1>(" + net.conv("c4", "res", "12,8,3,3", "<pads=[1,1,1,1],strides=[2,2]>") + ")")
    net.line(
        'up = Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(down, , twos)'
    )
    net.line('wide = Resize<mode="linear",coordinate_transformation_mode="half_pixel">(se, , halves)')
    net.conv("back", "down", "12,8,4,4", "<pads=[1,1,1,1],strides=[2,2]>", "ConvTranspose")
    net.line('again = Resize<mode="linear",coordinate_transformation_mode="half_pixel">(wide, , twos)')
    net.line("both = Concat<axis=1>(up, back, res, again)")
    net.line("x = " + "Identity(" + net.conv("c5", "both", "8,36,1,1") + ")")
    net.line("xs = Div(x, root)")
    net.line("erf = Erf(xs)")
    net.line("half_way = Add(erf, one)")
    net.line("xh = Mul(x, half_way)")
    net.line("gelu = Mul(xh, half)")
    net.head("cls", "gelu", "6,8,3,3".replace("3,3", "1,1"))
    net.head("box", "gelu", "4,8,1,1")
    net.line("scores = Softmax<axis=-1>(cls)")
    net.line("boxes = Exp(box)")
    constants = "float low = {0.0}, float high = {6.0}, float[4] twos = {1.0,1.0,2.0,2.0}, float[4] halves = {1.0,1.0,0.5,0.5}, "
    constants += "float root = {1.4142135}, float one = {1.0}, float half = {0.5}, int64[3] rows6 = {1,-1,6}, int64[3] rows4 = {1,-1,4}"
    text = f"net (float[1,3,24,24] images) => (float[1,36,6] scores, float[1,36,4] boxes) <{', '.join(net.weights)}, {constants}> {{ {' '.join(net.nodes)} }}"
    model = with_pairs(model_of(text))
    for one in model.graph.initializer:  # weights of a trained network's size
        if one.name.startswith("w_"):
            values = onnx.numpy_helper.to_array(one) / np.float32(np.sqrt(np.prod(one.dims[1:])))
            one.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), one.name))
    return with_loss(model), tuple(net.parameters)
