# SPDX-License-Identifier: Apache-2.0
"""Random networks for the laws: what exporters write, from opset 9 on, with every legal oddity. No laws here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

OPSETS = (9, 10, 11, 12, 13, 17)
ACTS = ("Relu", "LeakyRelu", "Clip", "PRelu", "Sigmoid", "SiLU", "HardSwish", "HardSigmoid", "Tanh")


@dataclass(frozen=True)
class Style:
    """How a file is written, beside what it computes.

    Attributes:
        opset: of the default domain.
        names: of the nodes: "all", "none", or "same" for one name on all of them.
        listed: initializers stand among the graph's inputs, as before IR 4.
        constants: weights are Constant nodes.
        mixed: the node list is in no order.
        seed: of the weights and the order.
    """

    opset: int
    names: str
    listed: bool
    constants: bool
    mixed: bool
    seed: int


@dataclass
class RandomNet:
    """A graph under construction: the current tensor is [1, channels, size, size]."""

    style: Style
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    current: str = "x"
    channels: int = 4
    size: int = 16
    shared: dict[int, str] = field(default_factory=dict)
    functions: list[onnx.FunctionProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = np.random.default_rng(self.style.seed)

    def op(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """Add a node and give its first output."""
        made = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        name = {"all": f"{op}_{len(self.nodes)}", "same": "node"}.get(self.style.names, "")
        self.nodes.append(helper.make_node(op, inputs, made, name=name or None, **attributes))
        return made[0]

    def store(self, value: Any, kind: Any = np.float32) -> str:
        """A constant, in the way of the style."""
        tensor = onnx.numpy_helper.from_array(np.asarray(value, kind), f"w{len(self.weights)}")
        self.weights.append(tensor)
        return tensor.name

    def give_out(self, name: str, rank: int = 4) -> None:
        """Make a tensor an output of the graph."""
        if name != "x":
            self.outputs[name] = rank

    def normal(self, *shape: int) -> str:
        return self.store(self.values.normal(size=shape) * 0.3)

    def ints(self, *values: int) -> str:
        return self.store(values, np.int64)


# ---------------------------------------------------------------------- operators, as their opset has them


def conv(net: RandomNet, x: str, out: int, kernel: int = 3, *, into: int = 0, groups: int = 1, weight: str = "") -> str:
    into = into or net.channels
    inputs = [x, weight or net.normal(out, into // groups, kernel, kernel)]
    if net.values.random() < 0.5:
        inputs.append(net.normal(out))
    return net.op("Conv", inputs, pads=[kernel // 2] * 4, group=groups, kernel_shape=[kernel, kernel])


def norm(net: RandomNet, x: str, channels: int) -> str:
    spread = net.store(net.values.uniform(0.5, 2, channels))
    return net.op("BatchNormalization", [x, spread, net.normal(channels), net.normal(channels), spread], epsilon=1e-3)


def act(net: RandomNet, x: str, kind: str, channels: int) -> str:
    if kind == "SiLU":
        return net.op("Mul", [x, net.op("Sigmoid", [x])])
    if kind == "HardSwish":
        gate = net.op("HardSigmoid", [x], alpha=1 / 6)
        return net.op("Mul", [x, gate]) if net.style.opset < 14 else net.op("HardSwish", [x])
    if kind == "PRelu":
        return net.op("PRelu", [x, net.normal(channels, 1, 1)])
    if kind == "Clip":
        if net.style.opset < 11:
            return net.op("Clip", [x], min=0.0, max=6.0)
        return net.op("Clip", [x, net.store(0.0), net.store(6.0)])
    return net.op(kind, [x])


def split(net: RandomNet, x: str, sizes: tuple[int, int]) -> list[str]:
    if net.style.opset < 13:
        net.op("Split", [x], 2, axis=1, split=list(sizes))
    else:
        net.op("Split", [x, net.ints(*sizes)], 2, axis=1)
    return list(net.nodes[-1].output)


def doubled(net: RandomNet, x: str, mode: str) -> str:
    scales, opset = net.store([1, 1, 2, 2]), net.style.opset
    if opset < 10:
        return net.op("Upsample", [x, scales], mode=mode)
    if opset < 11:
        return net.op("Resize", [x, scales], mode=mode)
    how = {"coordinate_transformation_mode": "asymmetric"} | ({"nearest_mode": "floor"} if mode == "nearest" else {})
    return net.op("Resize", [x, net.store(np.zeros(0)), scales], mode=mode, **how)


def padded(net: RandomNet, x: str, mode: str) -> str:
    if net.style.opset < 11:
        return net.op("Pad", [x], mode=mode, pads=[0, 0, 1, 1, 0, 0, 1, 1])
    return net.op("Pad", [x, net.ints(0, 0, 1, 1, 0, 0, 1, 1)], mode=mode)


def unsqueezed(net: RandomNet, x: str) -> str:
    return net.op("Unsqueeze", [x], axes=[0]) if net.style.opset < 13 else net.op("Unsqueeze", [x, net.ints(0)])


# ---------------------------------------------------------------------- blocks: [1, c, s, s] -> [1, c', s', s']


def plain_block(net: RandomNet, kind: str) -> None:
    net.current = act(net, conv(net, net.current, 8), kind, 8)
    net.channels = 8


def norm_block(net: RandomNet, kind: str) -> None:
    net.current = act(net, norm(net, conv(net, net.current, 8, 1), 8), kind, 8)
    net.channels = 8


def depthwise(net: RandomNet, kind: str) -> None:
    c = net.channels
    net.current = act(net, norm(net, conv(net, net.current, c, groups=c), c), kind, c)


def residual(net: RandomNet, kind: str) -> None:
    c = net.channels
    first = act(net, norm(net, conv(net, net.current, c), c), kind, c)
    pair = [norm(net, conv(net, first, c), c), net.current]
    if net.values.random() < 0.5:
        pair.reverse()
    net.current = act(net, net.op("Add", pair), kind, c)


def projected(net: RandomNet, kind: str) -> None:
    one, other = conv(net, act(net, conv(net, net.current, 8), kind, 8), 8, into=8), conv(net, net.current, 8, 1)
    net.current, net.channels = net.op("Relu", [net.op("Add", [one, other])]), 8


def fire(net: RandomNet, kind: str) -> None:
    one, other = (act(net, conv(net, net.current, 4, k), kind, 4) for k in (1, 3))
    net.current, net.channels = net.op("Concat", [one, other], axis=1), 8


def dense(net: RandomNet, kind: str) -> None:
    new = act(net, conv(net, net.current, 4), kind, 4)
    net.current, net.channels = net.op("Concat", [net.current, new], axis=1), net.channels + 4


def pooled(net: RandomNet, kind: str) -> None:
    op = "AveragePool" if kind in ("SiLU", "Tanh") else "MaxPool"
    net.current = net.op(op, [net.current], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])


def shrunk(net: RandomNet, kind: str) -> None:
    if net.size >= 4:
        net.current, net.size = net.op("MaxPool", [net.current], kernel_shape=[2, 2], strides=[2, 2]), net.size // 2


def resized(net: RandomNet, kind: str) -> None:
    if net.size <= 16:
        net.current, net.size = doubled(net, net.current, "linear" if kind == "Tanh" else "nearest"), net.size * 2


def turned_up(net: RandomNet, kind: str) -> None:
    if net.size <= 16:
        weight = net.normal(net.channels, 4, 2, 2)
        net.current = net.op("ConvTranspose", [net.current, weight], strides=[2, 2], kernel_shape=[2, 2])
        net.channels, net.size = 4, net.size * 2


def padded_conv(net: RandomNet, kind: str) -> None:
    x = padded(net, net.current, "reflect" if kind == "Sigmoid" else "constant")
    net.current = net.op("Conv", [x, net.normal(4, net.channels, 3, 3)], kernel_shape=[3, 3])
    net.channels = 4


def excited(net: RandomNet, kind: str) -> None:
    c = net.channels
    squeezed = net.op("GlobalAveragePool", [net.current])
    inner = net.op("Relu", [conv(net, squeezed, 4, 1)])
    gate = act(net, conv(net, inner, c, 1, into=4), kind if kind == "HardSigmoid" else "Sigmoid", c)
    net.current = net.op("Mul", [net.current, gate])


def shuffled(net: RandomNet, kind: str) -> None:
    c, s = net.channels, net.size
    wide = net.op("Reshape", [net.current, net.ints(1, 2, c // 2, s, s)])
    net.current = net.op("Reshape", [net.op("Transpose", [wide], perm=[0, 2, 1, 3, 4]), net.ints(1, c, s, s)])


def cut(net: RandomNet, kind: str) -> None:
    half = net.channels // 2
    one, other = split(net, net.current, (half, half))
    net.current = net.op("Concat", [conv(net, one, half, into=half), other], axis=1)


def measured(net: RandomNet, kind: str) -> None:
    """Reshape to a shape that is computed from the tensor's own."""
    sizes = net.op("Shape", [net.current])
    first = unsqueezed(net, net.op("Gather", [sizes, net.store(0, np.int64)], axis=0))
    shape = net.op("Concat", [first, net.ints(net.channels, -1, net.size)], axis=0)
    net.current = net.op("Reshape", [net.current, shape])


def repeated(net: RandomNet, kind: str) -> None:
    """The same weight in two convolutions, here and wherever this block comes again."""
    weight = net.shared.setdefault(net.channels, net.normal(net.channels, net.channels, 3, 3))
    first = act(net, conv(net, net.current, net.channels, weight=weight), kind, net.channels)
    net.current = conv(net, first, net.channels, weight=weight)


def passed_on(net: RandomNet, kind: str) -> None:
    net.current = net.op("Dropout" if kind == "Relu" else "Identity", [net.current])


def mixed_in(net: RandomNet, kind: str) -> None:
    net.current = net.op("Mul" if kind == "Tanh" else "Add", [net.current, net.normal(1, net.channels, 1, 1)])


def given_out(net: RandomNet, kind: str) -> None:
    net.give_out(net.current)


def left_over(net: RandomNet, kind: str) -> None:
    """A branch that ends in an output of its own."""
    net.give_out(act(net, conv(net, net.current, 4), kind, 4))


def branched(net: RandomNet, kind: str) -> None:
    """If on a constant, whose bodies read the tensor from outside of them; a convolution stands in one."""
    x, c = net.current, net.channels
    weight, none = net.normal(c, c, 1, 1), helper.make_tensor_value_info
    then = helper.make_node("Conv", [x, weight], ["inside"], kernel_shape=[1, 1])
    other = helper.make_node("Relu" if kind == "Relu" else "Tanh", [x], ["inside"])
    shape = [1, c, net.size, net.size]
    bodies = [
        helper.make_graph([node], name, [], [none("inside", TensorProto.FLOAT, shape)])
        for node, name in ((then, "then"), (other, "else"))
    ]
    condition = net.store(kind == "Relu", np.bool_)
    net.current = net.op("If", [condition], then_branch=bodies[0], else_branch=bodies[1])


def looped(net: RandomNet, kind: str) -> None:
    """Loop over a tensor that is carried, twice, adding one from outside of the body."""
    outer = net.current
    start = net.op("Relu", [outer])
    shape = [1, net.channels, net.size, net.size]
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", ["go"], ["goes_on"]),
        helper.make_node("Add", ["carried", outer], ["next"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("carried", 1, shape)],
        [value("goes_on", TensorProto.BOOL, []), value("next", 1, shape)],
    )
    net.current = net.op("Loop", [net.store(2, np.int64), net.store(True, np.bool_), start], body=body)


def called(net: RandomNet, kind: str) -> None:
    """A local function: an activation after a convolution whose weight is an argument."""
    name = f"block{len(net.functions)}"
    nodes = [
        helper.make_node("Conv", ["fx", "fw"], ["fc"], kernel_shape=[1, 1]),
        helper.make_node("Sigmoid" if kind == "Sigmoid" else "Relu", ["fc"], ["fr"]),
    ]
    own = [helper.make_opsetid("", net.style.opset)]
    net.functions.append(helper.make_function("laws", name, ["fx", "fw"], ["fr"], nodes, own))
    weight = net.normal(4, net.channels, 1, 1)
    net.current, net.channels = net.op(name, [net.current, weight], domain="laws"), 4


def box_head(net: RandomNet) -> None:
    scores = net.op("Sigmoid", [conv(net, net.current, 2)])
    boxes = net.op("Mul", [net.op("Exp", [conv(net, net.current, 4)]), net.store(0.1)])
    flat = [
        net.op("Reshape", [net.op("Transpose", [x], perm=[0, 2, 3, 1]), net.ints(1, -1, n)])
        for x, n in ((boxes, 4), (scores, 2))
    ]
    net.give_out(net.op("Concat", flat, axis=2), 3)


def class_head(net: RandomNet) -> None:
    flat = net.op("Flatten", [net.op("GlobalAveragePool", [net.current])], axis=1)
    weight, bias = net.normal(5, net.channels), net.normal(5)
    net.give_out(net.op("Softmax", [net.op("Gemm", [flat, weight, bias], transB=1)], axis=1), 2)


def map_head(net: RandomNet) -> None:
    net.give_out(conv(net, net.current, 3, 1))


BLOCKS = (
    plain_block, norm_block, depthwise, residual, projected, fire, dense, pooled, shrunk, resized, turned_up,
    padded_conv, excited, shuffled, cut, measured, repeated, passed_on, mixed_in, given_out, left_over,
)  # fmt: skip
ENTERED = (branched, looped, called)  # bodies of control flow and local functions
HEADS = (box_head, class_head, map_head)

styles = st.builds(
    Style,
    opset=st.sampled_from(OPSETS),
    names=st.sampled_from(("all", "none", "same")),
    listed=st.booleans(),
    constants=st.booleans(),
    mixed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)


@st.composite
def networks(draw: st.DrawFn, *, tidy: bool = False, entered: bool = False) -> onnx.ModelProto:
    """A network of up to eight blocks and one or two heads, in some style; with bodies and functions where `entered`.

    Tidy ones have sorted nodes without equal names: what onnx.checker and onnxruntime take without a complaint.
    """
    style = draw(styles)
    if tidy:
        style = replace(style, mixed=False, names="all" if style.names == "same" else style.names)
    if entered:
        style = replace(style, opset=max(style.opset, 13), constants=False)
    kinds = st.tuples(st.sampled_from((*BLOCKS, *ENTERED * 3) if entered else BLOCKS), st.sampled_from(ACTS))
    blocks = draw(st.lists(kinds, min_size=1, max_size=8))
    heads = draw(st.lists(st.sampled_from(HEADS), min_size=1, max_size=2))
    return build(style, blocks, heads)


def build(style: Style, blocks: Sequence[tuple[Any, str]], heads: Sequence[Any]) -> onnx.ModelProto:
    """The model that blocks and heads make."""
    net = RandomNet(style)
    for block, kind in blocks:
        block(net, kind)
    for head in heads:
        head(net)
    return _written(net)


def _written(net: RandomNet) -> onnx.ModelProto:
    style, nodes, weights = net.style, list(net.nodes), list(net.weights)
    if style.constants:
        held = [w for w in weights if len(w.dims) == 4 or w.data_type == TensorProto.INT64]
        nodes[:0] = [helper.make_node("Constant", [], [w.name], value=w) for w in held]
        weights = [w for w in weights if all(w is not other for other in held)]
    if style.mixed:
        random.Random(style.seed).shuffle(nodes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16, 16])]
    if style.listed:
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in weights]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n, rank in net.outputs.items()]
    graph = helper.make_graph(nodes, "random", inputs, outputs, weights)
    imports = [helper.make_opsetid("", style.opset)]
    if net.functions:
        imports.append(helper.make_opsetid("laws", 1))
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=net.functions)
    ir = 3 if style.listed and style.opset < 13 else 7
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)
