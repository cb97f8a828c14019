# SPDX-License-Identifier: Apache-2.0
"""A typed model, one with FP16 or BF16 tensors, as the same function in FP32. What plans, counts and edits reads it.

`retyped` writes FLOAT wherever the file says FP16 or BF16; a Cast to FP16 becomes one to FP32, which does nothing.
`widen` takes such Casts out; `rounded.py` rounds there, for what judges. Tensors have the names of the FP32 form in
tables, plans and caches.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto

from qdqtool.errors import QdqError
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import WITH_BODIES, Node, attribute, captured_names, node_bodies
from qdqtool.graph.tensors import array_of, is_external, read_as
from qdqtool.precision.scopes import CAST_TYPES, HALF_TYPES, TypeScope, typed_scope

FLOAT = TensorProto.FLOAT
# Attributes of ONNX's operators that hold an element type: of what is made, or of what is computed within.
_TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}
)
_DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})
_TENSORRT = "trt", "TRT_"  # domain and begin of operators that say what they make by `output_dtype`, as ONNX's do
# What says an element type: a tensor, the type of a value, or an attribute of the names above.
_Place: TypeAlias = TensorProto | TypeProto.Tensor | TypeProto.SparseTensor | AttributeProto
_STORED = ("raw_data", "int32_data", "external_data", "data_location")


@dataclass(frozen=True)
class Widened:
    """A typed model in FP32.

    Attributes:
        model: the model in FP32.
        names: tensor of the typed model's main graph -> its name here, for those that are gone or renamed.
        casts: what the Casts that were taken out of the main graph made.
    """

    model: Model
    names: Mapping[str, str] = field(default_factory=dict)
    casts: frozenset[str] = frozenset()


def is_typed(model: Model) -> bool:
    """Whether a model has FP16 or BF16 tensors, in bodies of control flow and local functions too.

    Constants that a Cast to another type alone reads, or nobody, make no typed model: what is computed is not half.
    """
    return model.derived(_is_typed)


def _is_typed(model: Model) -> bool:
    if HALF_TYPES.isdisjoint(mentioned_types(model.proto)):
        return False
    stored = stored_halves(model.proto)
    return not stored or not HALF_TYPES.isdisjoint(mentioned_types(model.proto, stored))


def widen(model: Model) -> Model:
    """The same function in FP32; see `widen_named`."""
    return widen_named(model).model


def as_fp32(model: Model) -> Model:
    """`widen` of a typed model; any other model itself, not copied."""
    return widen(model) if is_typed(model) else model


def open_fp32(source: ModelSource) -> Model:
    """`open_model` for what reads a model and writes none: a typed one comes as the same function in FP32.

    Local functions with products are inlined, so that tensors have the names that they have in a Q/DQ model.
    """
    opened = open_model(source)
    inline_products(opened)
    return as_fp32(opened)


def refuse_typed(opened: Model, why: str) -> None:
    """Refuse a typed model where it would be edited as if it were FP32.

    Raises:
        QdqError: it has FP16 or BF16 tensors.
    """
    if is_typed(opened):
        raise QdqError(opened.name, f"has FP16 or BF16 tensors, and {why}", "give the FP32 model that it was made from")


def widen_named(model: Model) -> Widened:
    """The same function in FP32, with the names that changed.

    FP16 and BF16 weights, constants, inputs, outputs and types become FLOAT, values exact; Casts to or from them that
    do nothing now are taken out, and who read them reads their source. Where a Cast made an output of the graph, the
    producer makes that tensor itself. Every other node and tensor keeps its name and place. Bodies of control flow are
    treated as the main graph is; in local functions such Casts stay, and do nothing. A model without FP16 or BF16 is
    given back as an equal copy.
    """
    made = retyped(model.proto)
    names: dict[str, str] = {}
    casts: set[str] = set()
    if is_typed(model):
        casts = _drop_casts(made.graph, model.graph, typed_scope(model), names)
    return Widened(replace(model, proto=made), {name: _resolved(name, names) for name in names}, frozenset(casts))


def _drop_casts(graph: GraphProto, typed: GraphProto, scope: TypeScope, names: dict[str, str]) -> set[str]:
    """Take the Casts out that do nothing, in a graph and its bodies; what those of the graph itself made."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for proto in graph.node for name in proto.output}
    for name in own & names.keys():  # a name of the graphs around that means another tensor here
        del names[name]
    casts = {
        proto.output[0]: proto.input[0]
        for proto in typed.node
        if proto.op_type in ("Cast", "CastLike") and _only_rounds(proto, scope.types)
    }
    outputs = _renamed_producers(graph, casts)
    kept = {value.name for value in graph.output if value.name in casts} - set(outputs.values())
    names.update({name: source for name, source in casts.items() if name not in kept and name not in outputs.values()})
    names.update(outputs)
    gone = casts.keys() - kept
    _edit_nodes(graph, gone, kept, outputs, names)
    bodies = zip(list(graph.node), [proto for proto in typed.node if not gone.intersection(proto.output)], strict=True)
    for proto, other in bodies:
        twins = dict(node_bodies(Node(other, 0)))
        for label, body in node_bodies(Node(proto, 0)):
            _drop_casts(body, twins[label], scope.body(Node(other, 0), label), dict(names))
    _drop_named(graph.value_info, gone.union(outputs))
    return gone


def _only_rounds(proto: NodeProto, types: Mapping[str, int]) -> bool:
    """Whether a Cast goes between float types of 32 bits or fewer, one of them half."""
    node = Node(proto, 0)
    like = node.op == "CastLike" and len(node.inputs) > 1
    made = types.get(node.inputs[1], 0) if like else int(str(attribute(node, "to", 0)))
    ends = {types.get(node.inputs[0], 0), made}
    return ends <= CAST_TYPES and ends != {TensorProto.FLOAT}


def _renamed_producers(graph: GraphProto, casts: Mapping[str, str]) -> dict[str, str]:
    """What a Cast to an output reads -> that output, where the node that makes it can make the output itself."""
    made = {name for proto in graph.node for name in proto.output if name}
    given = {value.name for value in graph.output}
    found: dict[str, str] = {}
    for value in graph.output:
        source = value.name
        while source in casts and (source == value.name or source not in given):
            source = casts[source]
        if source != value.name and source in made and source not in given and source not in casts:
            found.setdefault(source, value.name)
    return found


def _edit_nodes(
    graph: GraphProto, gone: set[str], kept: set[str], outputs: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Take Casts out and let nodes read and make what `names` and `outputs` say; a Cast that stays is an Identity."""
    for place in range(len(graph.node) - 1, -1, -1):
        proto = graph.node[place]
        if gone.intersection(proto.output):
            del graph.node[place]
            continue
        for index, name in enumerate(proto.input):
            if name in names:
                proto.input[index] = _resolved(name, names)
        for index, name in enumerate(proto.output):
            if name in outputs:
                proto.output[index] = outputs[name]
        if kept.intersection(proto.output):
            proto.op_type = "Identity"
            del proto.attribute[:]
            del proto.input[1:]
    for value in graph.output:
        if value.name in names and value.name not in kept.union(outputs.values()):
            value.name = _resolved(value.name, names)


def _resolved(name: str, names: Mapping[str, str]) -> str:
    while name in names:
        name = names[name]
    return name


def _drop_named(table: MutableSequence[onnx.ValueInfoProto], names: set[str]) -> None:
    for place in range(len(table) - 1, -1, -1):
        if table[place].name in names:
            del table[place]


def retyped(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every FP16 or BF16 is FLOAT: weights, inputs, outputs, value_info, attributes, at any depth.

    Enters bodies of control flow and local functions. What operators of other domains hold in attributes is theirs, and
    stays, but for TensorRT's. External data are not read: they are converted where somebody reads them
    (`graph.tensors.read_as`).
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for place in _typed_places(made):
        if _kind(place) not in HALF_TYPES:
            continue
        if isinstance(place, TensorProto):
            _widen_tensor(place)
        elif isinstance(place, AttributeProto):
            place.i = FLOAT
        else:
            place.elem_type = FLOAT
    return made


def mentioned_types(model: onnx.ModelProto, beside: Container[str] = ()) -> Iterator[int]:
    """The element types that a model names, in graphs and functions at any depth, with repetitions.

    Attributes that `retyped` leaves are left out.
    """
    return map(_kind, _typed_places(model, beside))


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


def _typed_places(model: onnx.ModelProto, beside: Container[str] = ()) -> Iterator[_Place]:
    """Where a model says an element type, in graphs and functions at any depth; not at the constants `beside`."""
    own = frozenset(function.domain for function in model.functions)
    graphs = [model.graph]
    for function in model.functions:
        for value in function.value_info:
            yield from _in_value(value.type)
        for default in function.attribute_proto:
            yield from _in_attribute(default)
        yield from _in_nodes(function.node, own, graphs)
    for graph in graphs:  # grows while it is walked
        out = beside if graph is model.graph else ()
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name not in out:
                yield from _in_value(value.type)
        yield from (tensor for tensor in graph.initializer if tensor.name not in out)
        yield from (sparse.values for sparse in graph.sparse_initializer)
        nodes = (node for node in graph.node if node.op_type != "Constant" or node.output[0] not in out)
        yield from _in_nodes(nodes, own, graphs)


def _kind(place: _Place) -> int:
    if isinstance(place, TensorProto):
        return int(place.data_type)
    return int(place.i if isinstance(place, AttributeProto) else place.elem_type)


def _in_nodes(nodes: Iterable[NodeProto], own: frozenset[str], graphs: list[GraphProto]) -> Iterator[_Place]:
    naming = _operators_that_name_types()
    for proto in nodes:
        domain, op = proto.domain, proto.op_type
        known = domain in _DEFAULT_DOMAINS
        if op in WITH_BODIES or not known:
            graphs += (body for _, body in node_bodies(Node(proto, 0)))
        named = op in naming if known else domain in own or (domain, op[:4]) == _TENSORRT
        if named:  # reading every attribute of every node takes seconds
            for item in proto.attribute:
                yield from _in_attribute(item)


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


def _in_attribute(item: AttributeProto) -> Iterator[_Place]:
    if item.name in _TYPE_ATTRIBUTES and item.type == AttributeProto.INT:
        yield item
    elif item.type == AttributeProto.TENSOR:
        yield item.t
    elif item.type == AttributeProto.SPARSE_TENSOR:
        yield item.sparse_tensor.values
    elif item.type == AttributeProto.TYPE_PROTO:
        yield from _in_value(item.tp)


def _in_value(kind: TypeProto) -> Iterator[_Place]:
    """The element types of a value: a tensor's, or what a sequence, an optional or a map holds."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which)
    elif which in ("sequence_type", "optional_type"):
        yield from _in_value(getattr(kind, which).elem_type)
    elif which == "map_type":
        yield from _in_value(kind.map_type.value_type)


def _widen_tensor(tensor: TensorProto) -> None:
    """The same numbers in FP32, under the same name; FP32 holds every FP16 and BF16 number exactly."""
    if is_external(tensor):
        read_as(tensor, FLOAT)
        return
    data = array_of(tensor, None).astype("<f4").tobytes()
    for name in _STORED:
        tensor.ClearField(name)
    tensor.data_type, tensor.raw_data = FLOAT, data
