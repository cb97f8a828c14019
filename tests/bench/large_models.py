# SPDX-License-Identifier: Apache-2.0
"""The models of large_graphs.py: a chain of any length, and gigabytes of weights in and beside a model; with scales."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

SIDE = 8
ACTIVATION_SCALE = 0.05
SEED = 7
BIG_SIDE, BIG_WEIGHTS = 2048, 155  # 155 float32 matrices of 2048 x 2048: 2.6 GB
INSIDE_WEIGHTS = 110  # of these as many as one file of ONNX takes: 1.8 GB


def make_graph(path: Path, nodes: int, channels: int) -> None:
    """Write a chain of `nodes` nodes at opset 13: blocks of three 1x1 Conv with Relu and one residual Add."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(SEED)
    made: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *inputs: str) -> str:
        index = len(made)
        made.append(helper.make_node(op, inputs, [f"t{index}"], name=f"{op}_{index}"))
        return f"t{index}"

    def conv(tensor: str) -> str:
        name = f"w{len(weights)}"
        values = random.standard_normal((channels, channels, 1, 1)).astype(np.float32) / channels
        weights.append(numpy_helper.from_array(values, name))
        return add("Conv", tensor, name)

    tensor = "input"
    while nodes - len(made) >= 7:
        inner = add("Relu", conv(add("Relu", conv(tensor))))
        tensor = add("Relu", add("Add", conv(inner), tensor))
    while len(made) < nodes:
        tensor = add("Relu", tensor) if made[-1].op_type == "Conv" else conv(tensor)
    shape = [1, channels, SIDE, SIDE]
    first, last = (helper.make_tensor_value_info(name, 1, shape) for name in ("input", tensor))
    _write(path, helper.make_graph(made, "chain", [first], [last], weights))


def make_resnet50(path: Path) -> None:
    """Write a ResNet-50 with random weights, BatchNormalization folded, 224 x 224, opset 13."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(SEED)
    made: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        made.append(helper.make_node(op, inputs, [f"t{len(made)}"], name=f"{op}_{len(made)}", **attributes))
        return str(made[-1].output[0])

    def stored(*shape: int) -> str:
        deviation = (2 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.1
        values = (random.standard_normal(shape) * deviation).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return str(weights[-1].name)

    def conv(tensor: str, given: int, wide: int, side: int, stride: int = 1) -> str:
        pads = [side // 2] * 4
        return add("Conv", tensor, stored(wide, given, side, side), stored(wide), strides=[stride] * 2, pads=pads)

    tensor = add("Relu", conv("input", 3, 64, 7, 2))
    tensor, given = add("MaxPool", tensor, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for wide, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and wide > 64 else 1
            inner = add("Relu", conv(add("Relu", conv(tensor, given, wide, 1)), wide, wide, 3, stride))
            skip = conv(tensor, given, 4 * wide, 1, stride) if block == 0 else tensor
            tensor, given = add("Relu", add("Add", conv(inner, wide, 4 * wide, 1), skip)), 4 * wide
    tensor = add("Gemm", add("Flatten", add("GlobalAveragePool", tensor)), stored(given, 1000), stored(1000))
    ends = [("input", [1, 3, 224, 224]), (tensor, [1, 1000])]
    first, last = (helper.make_tensor_value_info(name, 1, shape) for name, shape in ends)
    _write(path, helper.make_graph(made, "resnet50", [first], [last], weights))


def make_external(path: Path, *, inside: bool = False) -> None:
    """Write a 2.6 GB model beside its data file, or 1.8 GB in one file: a branch of MatMul, one of 1x1 Conv."""
    import numpy as np
    import onnx
    from onnx import helper

    random = np.random.default_rng(SEED)
    size = BIG_SIDE * BIG_SIDE * 4
    weights, made = [], []
    last = {"MatMul": "rows", "Conv": "image"}
    with path.with_suffix(".bin").open("wb") as data:
        for index in range(INSIDE_WEIGHTS if inside else BIG_WEIGHTS):
            op = "Conv" if index % 3 == 2 else "MatMul"
            dims = [BIG_SIDE, BIG_SIDE] + [1, 1] * (op == "Conv")
            values = (random.random(BIG_SIDE * BIG_SIDE, np.float32) - 0.5) / BIG_SIDE
            weight = onnx.TensorProto(name=f"w{index}", data_type=1, dims=dims)
            if inside:
                weight.raw_data = values.tobytes()
            else:
                weight.data_location = onnx.TensorProto.EXTERNAL
                facts = {"location": path.with_suffix(".bin").name, "offset": str(data.tell()), "length": str(size)}
                weight.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in facts.items())
                data.write(values.data)
            weights.append(weight)
            made.append(helper.make_node(op, [last[op], f"w{index}"], [f"a{index}"], name=f"{op}_{index}"))
            made.append(helper.make_node("Relu", [f"a{index}"], [f"t{index}"], name=f"Relu_{index}"))
            last[op] = f"t{index}"
    shapes = {"rows": [1, 16, BIG_SIDE], "image": [1, BIG_SIDE, 4, 4]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    ends = zip(last.values(), shapes.values(), strict=True)
    outputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in ends]
    _write(path, helper.make_graph(made, "external", inputs, outputs, weights))


def _write(path: Path, graph: Any) -> None:
    """The model file and, beside it, the scale table with one scale for each of its activations."""
    import onnx

    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString(deterministic=True))
    bits = struct.pack(">f", ACTIVATION_SCALE).hex()
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    tensors = {name: {"scale": bits, "value": ACTIVATION_SCALE, "origin": "ptq"} for name in names}
    path.with_suffix(".scales.json").write_text(json.dumps({"schema": 1, "tensors": tensors}, indent=1))
