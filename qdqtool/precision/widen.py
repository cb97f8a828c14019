# SPDX-License-Identifier: Apache-2.0
"""A typed model, one with FP16 or BF16 tensors, as the same function in FP32. What plans, counts and edits reads it.

Roundings to half are left out: `rounded.py` keeps them, for what judges. Tensors have the names of the FP32 form in
tables, plans and caches.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import Node, attribute, node_bodies
from qdqtool.precision.retype import mentioned_types, retyped, stored_halves
from qdqtool.precision.scopes import CAST_TYPES, HALF_TYPES, TypeScope, typed_scope


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
