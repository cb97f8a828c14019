# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX defines by a function body, as the nodes of that body. Which ones are decomposed, others say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference
from onnx import helper

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Body:
    """The nodes of a function body."""

    nodes: Sequence[onnx.NodeProto]
    shapes: Mapping[str, Shape]
    types: Mapping[str, int]


def body_of(
    node: onnx.NodeProto,
    opset: int,
    shapes: Mapping[str, Shape],
    types: Mapping[str, int],
    fresh: Callable[[str], str],
) -> Body | None:
    """The function body that ONNX defines an operator by; None without a body, or with one whose shapes vary."""
    read = [name for name in dict.fromkeys(node.input) if name]
    inputs = [helper.make_tensor_value_info(name, types[name], shapes[name]) for name in read]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([_with_defaults(node, opset)], "body", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    flat = onnx.inliner.inline_selected_functions(model, [("", node.op_type)], inline_schema_functions=True)
    if any(one.op_type == node.op_type for one in flat.graph.node):
        return None
    inferred = onnx.shape_inference.infer_shapes(flat, data_prop=True).graph
    known = {value.name: value.type.tensor_type for value in inferred.value_info}
    inner = [name for one in flat.graph.node for name in one.output if name and name not in node.output]
    if any(name not in known or not all(dim.HasField("dim_value") for dim in known[name].shape.dim) for name in inner):
        return None
    names = {name: fresh(f"{node.output[0]}/{name}") for name in inner}
    for one in flat.graph.node:
        one.name = fresh(f"{node.name}/{one.op_type}") if node.name else ""
        one.input[:] = [names.get(name, name) for name in one.input]
        one.output[:] = [names.get(name, name) for name in one.output]
    return Body(
        list(flat.graph.node),
        {names[name]: tuple(dim.dim_value for dim in known[name].shape.dim) for name in inner},
        {names[name]: known[name].elem_type for name in inner},
    )


def _with_defaults(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """The node with every attribute that has a default: bodies refer to them, and inlining drops what is not set."""
    made, given = onnx.NodeProto(), {item.name for item in node.attribute}
    made.CopyFrom(node)
    for name, item in sorted(onnx.defs.get_schema(node.op_type, opset, "").attributes.items()):
        if name not in given and item.default_value.type:
            made.attribute.append(item.default_value)
    return made
