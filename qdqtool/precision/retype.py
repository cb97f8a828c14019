# SPDX-License-Identifier: Apache-2.0
"""Writes FLOAT in a copy of a model wherever it says FP16 or BF16; values of constants stay exact, nodes stay.

A Cast to FP16 becomes a Cast to FP32, which does nothing: `widen` takes such Casts out, `rounded` rounds there.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto

from qdqtool.graph.nodes import WITH_BODIES, Node, captured_names, node_bodies
from qdqtool.graph.tensors import array_of, is_external, read_as
from qdqtool.graph.validate import subgraphs_of
from qdqtool.precision.scopes import HALF_TYPES

FLOAT = TensorProto.FLOAT
# Attributes of ONNX's operators that hold an element type: of what is made, or of what is computed within.
_TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}
)
_DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})
_STORED = ("raw_data", "int32_data", "external_data", "data_location")


def retyped(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every FP16 or BF16 is FLOAT: weights, inputs, outputs, value_info, attributes, at any depth.

    Enters bodies of control flow and local functions. What operators of other domains hold in attributes is theirs, and
    stays. External data are not read: they are converted where somebody reads them (`graph.tensors.read_as`).
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    own = frozenset(function.domain for function in made.functions)
    graphs = [made.graph]
    for function in made.functions:
        for value in function.value_info:
            _widen_type(value.type)
        for default in function.attribute_proto:
            _widen_attribute(default)
        graphs += _widen_nodes(function.node, own)
    for graph in graphs:  # grows while it is walked
        _widen_values(graph)
        graphs += _widen_nodes(graph.node, own)
    return made


def mentioned_types(model: onnx.ModelProto, beside: Container[str] = ()) -> Iterator[int]:
    """The element types that a model names, in graphs and functions at any depth, with repetitions.

    Attributes of operators of other domains are left out, as `retyped` leaves them.
    """
    own = frozenset(function.domain for function in model.functions)
    graphs = [model.graph]
    for function in model.functions:
        for value in function.value_info:
            yield from _types_within(value.type)
        yield from (code for item in function.attribute_proto for code in _attribute_types(item))
        yield from _node_types(function.node, own, graphs)
    for graph in graphs:  # grows while it is walked
        out = beside if graph is model.graph else ()
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name not in out:
                yield from _types_within(value.type)
        yield from (tensor.data_type for tensor in graph.initializer if tensor.name not in out)
        yield from (sparse.values.data_type for sparse in graph.sparse_initializer)
        nodes = (node for node in graph.node if node.op_type != "Constant" or node.output[0] not in out)
        yield from _node_types(nodes, own, graphs)


def stored_halves(model: onnx.ModelProto) -> frozenset[str]:
    """FP16 and BF16 constants of the main graph that are stored so alone: a Cast to another type reads them, or nobody.

    Nothing is computed in half because of them.
    """
    held = {tensor.name for tensor in model.graph.initializer if tensor.data_type in HALF_TYPES}
    for proto in model.graph.node:
        if proto.op_type == "Constant" and any(item.t.data_type in HALF_TYPES for item in proto.attribute):
            held.add(proto.output[0])
    for value in model.graph.output if held else ():
        held.discard(value.name)
    for proto in model.graph.node if held else ():
        node = Node(proto, 0)
        to = next((item.i for item in proto.attribute if item.name == "to"), 0) if node.op == "Cast" else 0
        if not to or to in HALF_TYPES:
            held.difference_update(proto.input, captured_names(node))
    return frozenset(held)


def _node_types(nodes: Iterable[NodeProto], own: frozenset[str], graphs: list[GraphProto]) -> Iterator[int]:
    naming = _operators_that_name_types()
    for proto in nodes:
        domain, op = proto.domain, proto.op_type
        known = domain in _DEFAULT_DOMAINS
        if op in WITH_BODIES or not known:
            graphs += (body for _, body in node_bodies(Node(proto, 0)))
        if op in naming if known else domain in own:  # reading every attribute of every node takes seconds
            yield from (code for item in proto.attribute for code in _attribute_types(item))


@functools.cache
def _operators_that_name_types() -> frozenset[str]:
    """ONNX's operators with an attribute that is an element type, a type or a tensor, in any opset."""
    kinds = onnx.defs.OpSchema.AttrType
    holding = (kinds.TENSOR, kinds.SPARSE_TENSOR, kinds.TYPE_PROTO)
    return frozenset(
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain in _DEFAULT_DOMAINS
        for name, one in schema.attributes.items()
        if name in _TYPE_ATTRIBUTES or one.type in holding
    )


def _attribute_types(item: AttributeProto) -> Iterator[int]:
    if item.name in _TYPE_ATTRIBUTES and item.type == AttributeProto.INT:
        yield item.i
    elif item.type == AttributeProto.TENSOR:
        yield item.t.data_type
    elif item.type == AttributeProto.SPARSE_TENSOR:
        yield item.sparse_tensor.values.data_type
    elif item.type == AttributeProto.TYPE_PROTO:
        yield from _types_within(item.tp)


def _types_within(kind: TypeProto) -> Iterator[int]:
    """The element types of a value: a tensor's, or what a sequence, an optional or a map holds."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which).elem_type
    elif which in ("sequence_type", "optional_type"):
        yield from _types_within(getattr(kind, which).elem_type)
    elif which == "map_type":
        yield from _types_within(kind.map_type.value_type)


def _widen_nodes(nodes: Iterable[NodeProto], own: frozenset[str]) -> list[GraphProto]:
    """Edit the attributes of nodes; the graphs that they hold."""
    held: list[GraphProto] = []
    for proto in nodes:
        held += subgraphs_of(proto)
        if proto.domain in _DEFAULT_DOMAINS or proto.domain in own:
            for item in proto.attribute:
                _widen_attribute(item)
    return held


def _widen_attribute(item: AttributeProto) -> None:
    if item.name in _TYPE_ATTRIBUTES and item.type == AttributeProto.INT and item.i in HALF_TYPES:
        item.i = FLOAT
    elif item.type == AttributeProto.TENSOR:
        _widen_tensor(item.t)
    elif item.type == AttributeProto.SPARSE_TENSOR:
        _widen_tensor(item.sparse_tensor.values)
    elif item.type == AttributeProto.TYPE_PROTO:
        _widen_type(item.tp)


def _widen_values(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(value.type)
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _widen_tensor(sparse.values)


def _widen_type(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        held = getattr(kind, which)
        if held.elem_type in HALF_TYPES:
            held.elem_type = FLOAT
    elif which in ("sequence_type", "optional_type"):
        _widen_type(getattr(kind, which).elem_type)
    elif which == "map_type":
        _widen_type(kind.map_type.value_type)


def _widen_tensor(tensor: TensorProto) -> None:
    """The same numbers in FP32, under the same name; FP32 holds every FP16 and BF16 number exactly."""
    if tensor.data_type not in HALF_TYPES:
        return
    if is_external(tensor):
        read_as(tensor, FLOAT)
        return
    data = array_of(tensor, None).astype("<f4").tobytes()
    for name in _STORED:
        tensor.ClearField(name)
    tensor.data_type, tensor.raw_data = FLOAT, data
