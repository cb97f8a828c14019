# SPDX-License-Identifier: Apache-2.0
"""Q/DQ under attack: scales, zero points, axes, types, chains; where a graph has none, a pair is put in first."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz import odd_values

_KINDS = ("QuantizeLinear", "DequantizeLinear")
_INTEGER_TYPES = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT16,
    TensorProto.INT4,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT,
)


def _pair_node(random_: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    """One of the Q or DQ, a new pair on a tensor where there is none."""
    nodes = [node for node in model.graph.node if node.op_type in _KINDS]
    if not nodes or random_.random() < 0.15:
        nodes = _new_pair(random_, model)
    return random_.choice(nodes)


def _new_pair(random_: random.Random, model: onnx.ModelProto) -> list[onnx.NodeProto]:
    graph = model.graph
    reader = random_.choice([node for node in graph.node if node.input])
    slot = random_.randrange(len(reader.input))
    tensor, mark = reader.input[slot], f"fuzz{random_.randrange(10**6)}"
    graph.initializer.append(helper.make_tensor(f"{mark}_s", TensorProto.FLOAT, [], [0.05]))
    graph.initializer.append(helper.make_tensor(f"{mark}_z", TensorProto.INT8, [], [0]))
    pair = [
        helper.make_node("QuantizeLinear", [tensor, f"{mark}_s", f"{mark}_z"], [f"{mark}_q"]),
        helper.make_node("DequantizeLinear", [f"{mark}_q", f"{mark}_s", f"{mark}_z"], [f"{mark}_d"]),
    ]
    reader.input[slot] = f"{mark}_d"
    at = list(graph.node).index(reader)
    graph.node.insert(at, pair[1])
    graph.node.insert(at, pair[0])
    return [graph.node[at], graph.node[at + 1]]


def _replace(model: onnx.ModelProto, node: onnx.NodeProto, slot: int, tensor: TensorProto, mark: str) -> None:
    """Give one input of a node a constant of its own."""
    tensor.name = f"fuzz_{mark}"
    model.graph.initializer.append(tensor)
    while len(node.input) <= slot:
        node.input.append("")
    node.input[slot] = tensor.name


def scale(random_: random.Random, model: onnx.ModelProto) -> str:
    """A scale of odd values, shape or type."""
    node = _pair_node(random_, model)
    shape = random_.choice(((), (1,), (0,), (2,), (4,), (3,), (1, 4), (4, 1, 1, 1), (2, 2), (1000,)))
    values = np.full(shape, 0.02, np.float64)
    values.reshape(-1)[: random_.choice((1, 1, 1000))] = odd_values.real(random_)
    kind = random_.choice((np.float32, np.float32, np.float32, np.float16, np.float64, np.int8, np.int64))
    with np.errstate(all="ignore"):
        tensor = numpy_helper.from_array(values.astype(kind))
    _replace(model, node, 1, tensor, f"s{random_.randrange(10**6)}")
    return f"{shape} {kind.__name__}"


def zero_point(random_: random.Random, model: onnx.ModelProto) -> str:
    """A zero point of odd type, shape or value, or none."""
    node = _pair_node(random_, model)
    if random_.random() < 0.2 and len(node.input) > 2:
        del node.input[2]
        return "none"
    kind, size = random_.choice(_INTEGER_TYPES), random_.choice((0, 1, 1, 1, 4))
    values = [random_.choice((0, 0, 1, 7))] * size
    tensor = helper.make_tensor("z", kind, [] if size == 1 and random_.random() < 0.7 else [size], values)
    _replace(model, node, 2, tensor, f"z{random_.randrange(10**6)}")
    return TensorProto.DataType.Name(kind)


def attributes(random_: random.Random, model: onnx.ModelProto) -> str:
    """An odd axis, block size, output type, or the attribute as another type."""
    node = _pair_node(random_, model)
    name = random_.choice(("axis", "axis", "block_size", "output_dtype", "saturate", "precision"))
    del node.attribute[:]
    value = random_.choice((odd_values.integer(random_), random_.randint(-5, 5), 0.5, "text", [1, 2]))
    node.attribute.append(helper.make_attribute(name, value))
    return f"{name}={value}"[:80]


def chain(random_: random.Random, model: onnx.ModelProto) -> str:
    """A Q of a Q, a DQ of a DQ, a Q without DQ, a DQ of a float tensor or of an input."""
    node = _pair_node(random_, model)
    node.op_type = random_.choice(_KINDS)
    if random_.random() < 0.5:
        others = [one for one in model.graph.node if one.output]
        node.input[0] = random_.choice([random_.choice(others).output[0], node.output[0], model.graph.input[0].name])
    return node.op_type


def as_output(random_: random.Random, model: onnx.ModelProto) -> str:
    """Integers as an output of the graph, or as an input."""
    node = _pair_node(random_, model)
    values = random_.choice((model.graph.output, model.graph.input))
    values.add().CopyFrom(helper.make_tensor_value_info(node.output[0], random_.choice(_INTEGER_TYPES), None))
    return node.output[0][:40]


def fewer_inputs(random_: random.Random, model: onnx.ModelProto) -> str:
    """A Q or DQ with no, one or empty inputs, or with no output."""
    node = _pair_node(random_, model)
    values = random_.choice((node.input, node.input, node.output))
    if random_.random() < 0.5:
        del values[random_.randrange(len(values)) :]
    else:
        values[random_.randrange(len(values))] = ""
    return node.op_type


def stored_integers(random_: random.Random, model: onnx.ModelProto) -> str:
    """Weights as integers of some type and shape before a DQ."""
    graph = model.graph
    node = random_.choice([node for node in graph.node if len(node.input) > 1 and node.op_type not in _KINDS])
    mark, shape = (
        f"fuzz_w{random_.randrange(10**6)}",
        random_.choice(([4, 4, 3, 3], [4], [0, 4], [2, 2], [4, 4, 3, 3, 1])),
    )
    kind = random_.choice(_INTEGER_TYPES)
    size = int(np.prod(shape))
    graph.initializer.append(helper.make_tensor(mark, kind, shape, [index % 7 for index in range(size)]))
    graph.initializer.append(helper.make_tensor(f"{mark}_s", TensorProto.FLOAT, [shape[0]], [0.1] * shape[0]))
    dq = helper.make_node("DequantizeLinear", [mark, f"{mark}_s"], [f"{mark}_d"], axis=random_.randint(-4, 4))
    graph.node.insert(0, dq)
    node.input[1] = f"{mark}_d"
    return f"{TensorProto.DataType.Name(kind)} {shape}"


QDQ_MUTATORS = (scale, zero_point, attributes, chain, as_output, fewer_inputs, stored_integers)
