# SPDX-License-Identifier: Apache-2.0
"""The element type of every tensor as a typed file says it, graph by graph: control flow has graphs of its own.

What TensorRT makes of the types is not asked here; a DequantizeLinear alone is taken as TensorRT does, in any opset.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

import onnx
from onnx import GraphProto, TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DEQUANTIZE, Node, attribute, node_bodies
from qdqtool.graph.types import infer_types, lean_constant, lean_tensor, opset_of

HALF_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
CAST_TYPES = HALF_TYPES | {TensorProto.FLOAT}
"""Types between which a Cast rounds at most: what it casts is the same function in FP32."""


@dataclass(frozen=True)
class TypeScope:
    """The types of one graph.

    Attributes:
        types: tensor -> element type, as in onnx.TensorProto; tensors around the graph are in it.
        bodies: (key of a node, label of the attribute) -> the types within.
    """

    types: Mapping[str, int]
    bodies: dict[tuple[str, str], TypeScope] = field(default_factory=dict)

    def body(self, node: Node, label: str) -> TypeScope:
        """The types of a body; only those around it where inference did not enter it."""
        return self.bodies.get((node.key, label), TypeScope(self.types))


def typed_scope(model: Model) -> TypeScope:
    """The types of a model's main graph and of the bodies in it; those of local functions are left out."""
    return model.derived(_typed_scope)


def _typed_scope(model: Model) -> TypeScope:
    proto = model.proto
    thin = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    thin.graph.name = model.graph.name
    for name in ("output", "value_info", "sparse_initializer"):
        getattr(thin.graph, name).extend(getattr(model.graph, name))
    held = {tensor.name for tensor in model.graph.initializer}  # listed as inputs, too, some tools leave FP32 there
    thin.graph.input.extend(value for value in model.graph.input if value.name not in held)
    thin.graph.initializer.extend(map(lean_tensor, model.graph.initializer))
    thin.graph.node.extend(map(lean_constant, model.graph.node))
    _cast_dequantized(thin.graph)
    return _scope(infer_types(thin, opset_of(thin) or 1, in_order=True), {})


def _cast_dequantized(graph: GraphProto) -> None:
    """Make each DequantizeLinear a Cast to what TensorRT lets it make: its output_dtype, else its scale's type.

    ONNX says so from opset 19 on; files of older opsets with half scales are common, and TensorRT takes them.
    """
    stored = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    for proto in graph.node:
        if proto.op_type == "Constant":
            stored.update((proto.output[0], int(item.t.data_type)) for item in proto.attribute if item.HasField("t"))
    for proto in graph.node:
        node = Node(proto, 0)
        for _, body in node_bodies(node):
            _cast_dequantized(body)
        if node.op != DEQUANTIZE or len(node.inputs) < 2:
            continue
        made = int(str(attribute(node, "output_dtype", 0))) or stored.get(node.inputs[1], 0)
        if made in HALF_TYPES:
            proto.CopyFrom(onnx.helper.make_node("Cast", node.inputs[:1], node.outputs[:1], to=made))


def _scope(graph: GraphProto, around: Mapping[str, int]) -> TypeScope:
    own: MutableMapping[str, int] = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.tensor_type.elem_type:
            own[value.name] = value.type.tensor_type.elem_type
    types = ChainMap(own, dict(around))
    bodies = {
        (node.key, label): _scope(body, types)
        for node in (Node(proto, 0) for proto in graph.node)
        for label, body in node_bodies(node)
    }
    return TypeScope(types, bodies)
