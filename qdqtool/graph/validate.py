# SPDX-License-Identifier: Apache-2.0
"""Whether a parsed model hangs together: versions, names, weights, edges. The form of one node is `operators.py`.

Every walk is iterative and linear, so that a hostile file costs no more than an honest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.operators import PLAIN, OperatorForms
from qdqtool.graph.order import key_on_cycle
from qdqtool.graph.stored_tensors import check_tensor
from qdqtool.graph.tensors import BITS

MAX_DEPTH = 64  # graphs within graphs; protobuf itself stops near 32
# Nodes when every call of a local function is written out: what onnx's shape inference goes through, deaf to signals.
MAX_WRITTEN_OUT = 100_000
_AGAIN = "export the model again"
_LAST_OPSET = (1 << 31) - 1  # what ONNX can be asked for


# Of one region: the index of a node that holds graphs -> the names they read from around them, each with a consumer.
_Bodies = dict[int, dict[str, str]]


@dataclass(frozen=True)
class _NameScope:
    """A list of nodes with the names around it: a graph, or the body of a local function."""

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    weights: Sequence[str]
    outputs: Sequence[str]
    opsets: Mapping[str, int]  # domain -> version
    outer: int  # the region whose node holds this one, -1 at the top
    holder: int  # the index of that node
    depth: int
    inside: bool = False  # whether this is the body of a local function, or within one
    tensors: Mapping[str, TensorProto] = field(default_factory=dict)  # name -> its weight
    channels: Mapping[str, int] = field(default_factory=dict)  # input -> the length of its axis 1, where it has one


def check_structure(proto: onnx.ModelProto, where: object, folder: Path | None) -> None:
    """Refuse a model that no runtime could understand, with one line that names the tensor or node at fault.

    Enters subgraphs and local functions. Legal and let through: duplicate or missing node names, unsorted nodes,
    operators without a schema, weights that are not finite, models of IR below 3 without an opset.

    Raises:
        QdqError: the first fault found.
    """
    _check_versions(proto, where)
    _check_values(proto, where)
    _check_functions(proto, where)
    regions = _regions_of(proto, where, folder)
    read_inside: list[_Bodies] = [{} for _ in regions]
    for index in range(len(regions) - 1, -1, -1):  # inner ones first
        region = regions[index]
        free = _free_names(region, read_inside[index], where)
        if region.outer >= 0:
            read_inside[region.outer].setdefault(region.holder, {}).update(free)
            continue
        for name, consumer in free.items():
            raise QdqError(where, f"{consumer} reads {name}, which nothing computes", _AGAIN)


def subgraphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node holds in its attributes, in their order."""
    return [graph for attribute in node.attribute for graph in _graphs_in(attribute)]


def tensors_of(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor that the model holds: initializers and attributes, in subgraphs and local functions too."""
    graphs = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or nodes:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type not in PLAIN:
                    yield from _tensors_in(attribute)
                    graphs.extend(_graphs_in(attribute))
        nodes = []
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            yield from (part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices))
            nodes = list(graph.node)


def label(node: NodeProto) -> str:
    """What a message calls a node: its operator and its name, or its first output where it has none."""
    return f"{node.op_type} {node.name or next((name for name in node.output if name), '')}".rstrip()


def _check_versions(proto: onnx.ModelProto, where: object) -> None:
    if not proto.HasField("graph"):
        raise QdqError(where, "holds no graph, so it is not an ONNX model", "export the model to ONNX")
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        reason = f"has IR version {proto.ir_version}, the installed onnx knows 1 to {onnx.IR_VERSION}"
        raise QdqError(where, reason, "upgrade onnx, or export for an older version")
    if not proto.opset_import and proto.ir_version >= 3:
        raise QdqError(where, "imports no operator set", _AGAIN)
    newest = onnx.defs.onnx_opset_version()
    seen: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if seen.setdefault(domain, entry.version) != entry.version:
            raise QdqError(where, f"imports two versions of the operators of {domain or 'ai.onnx'}", _AGAIN)
        if domain == "" and not 1 <= entry.version <= newest:
            reason = f"uses opset {entry.version}, the installed onnx knows 1 to {newest}"
            raise QdqError(where, reason, "upgrade onnx, or export with an older opset")
    if seen and "" not in seen and any(node.domain in ("", "ai.onnx") for node in proto.graph.node):
        raise QdqError(where, "imports no version of ONNX's own operators, which it has", _AGAIN)


def _check_values(proto: onnx.ModelProto, where: object) -> None:
    """Refuse text that is no UTF-8 where later code reads it (protobuf hands it out as bytes), and unknown types."""
    graph = proto.graph
    texts: list[object] = [graph.name, *(entry.domain for entry in proto.opset_import)]
    for entry in proto.metadata_props:
        texts += (entry.key, entry.value)
    for value in (*graph.input, *graph.output):
        texts += (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    texts += (value.name for value in graph.value_info)
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type.elem_type
        if kind and kind not in BITS and kind != TensorProto.STRING:
            raise QdqError(where, f"the tensor {value.name} has the unknown element type {kind}", "upgrade onnx")
    for function in proto.functions:
        texts += (function.domain, function.name, function.overload, *function.input, *function.output)
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise QdqError(where, f"the text {wrong!r} is not UTF-8", _AGAIN)


def _check_functions(proto: onnx.ModelProto, where: object) -> None:
    """Refuse local functions that are there twice, that call themselves, or that are too large when written out."""
    calls: dict[tuple[str, str], list[tuple[str, str]]] = {}
    seen: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        key = (function.domain, function.name)
        full = (*key, function.overload)
        if full in seen:
            raise QdqError(where, f"defines the local function {function.name} twice", _AGAIN)
        seen.add(full)
        calls.setdefault(key, []).extend((node.domain, node.op_type) for node in nodes_within(function.node))
    if not calls:
        return
    edges = {key: [callee for callee in dict.fromkeys(callees) if callee in calls] for key, callees in calls.items()}
    cycle = key_on_cycle(edges)
    if cycle is not None:
        raise QdqError(where, f"the local function {cycle[1]} calls itself, which ONNX forbids", _AGAIN)
    _check_written_out(proto, calls, where)


def _check_written_out(
    proto: onnx.ModelProto, calls: Mapping[tuple[str, str], Sequence[tuple[str, str]]], where: object
) -> None:
    """Refuse functions that call one another so often that writing them out never ends."""
    nodes: dict[tuple[str, str], int] = {}
    waiting = list(calls)
    while waiting:
        key = waiting[-1]
        missing = [callee for callee in dict.fromkeys(calls[key]) if callee in calls and callee not in nodes]
        waiting.extend(missing)
        if not missing:
            nodes[waiting.pop()] = sum(1 + nodes.get(callee, 0) for callee in calls[key])
    there = [(node.domain, node.op_type) for node in nodes_within(proto.graph.node)]
    total, stored = sum(1 + nodes.get(key, 0) for key in there), len(there) + sum(map(len, calls.values()))
    if total > MAX_WRITTEN_OUT + 10 * stored:
        shown = str(total) if total < 10**12 else "more than 10^12"
        reason = f"its local functions expand to {shown} nodes"
        raise QdqError(where, f"{reason}, where it stores {stored}", "export the model without functions")


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of their subgraphs; deeper than MAX_DEPTH is left to the walk that refuses it."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        if len(stack) <= MAX_DEPTH:
            stack.extend(iter(graph.node) for graph in subgraphs_of(node))


def _regions_of(proto: onnx.ModelProto, where: object, folder: Path | None) -> list[_NameScope]:
    """Every graph and function body, outer ones first; each weight met on the way is checked."""
    _check_face(proto.graph, where)
    opsets = _opsets_of(proto, where)
    forms = OperatorForms(proto)
    top = _region_of(proto.graph, opsets, where, folder)
    fed = [value for value in proto.graph.input if value.name not in top.tensors]
    sizes = {value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in fed}
    channels = {name: axes[1] for name, axes in sizes.items() if len(axes) > 2 and axes[1] > 0}
    regions = [replace(top, channels=channels)]
    regions += [
        _NameScope(f.node, f.input, (), f.output, {**opsets, **_opsets_of(f, where)}, -1, -1, 0, inside=True)
        for f in proto.functions
    ]
    for index, region in enumerate(regions):  # grows while it is walked
        held: list[tuple[int, AttributeProto]] = []
        wrong = forms.first_fault(
            region.nodes, region.opsets, region.tensors, region.channels, inside=region.inside, holding=held
        )
        for position, attribute in held:  # first of all, since a message about a form is no help where these are wrong
            for tensor in _tensors_in(attribute):
                check_tensor(tensor, where, folder)
            for graph in _graphs_in(attribute):
                if region.depth >= MAX_DEPTH:
                    reason = f"{label(region.nodes[position])} is nested {MAX_DEPTH} graphs deep and contains one more"
                    raise QdqError(where, reason, "simplify the model")
                body = _region_of(graph, region.opsets, where, folder)
                depth = region.depth + 1
                regions.append(replace(body, outer=index, holder=position, depth=depth, inside=region.inside))
        if wrong is not None:
            raise QdqError(where, f"{label(wrong[0])} {wrong[1]}", _AGAIN)
    return regions


def _opsets_of(proto: onnx.ModelProto | onnx.FunctionProto, where: object) -> dict[str, int]:
    """Domain -> version; before IR 3 there was one version of ONNX's own operators."""
    for entry in proto.opset_import:
        if not 0 <= entry.version <= _LAST_OPSET:
            reason = f"imports version {entry.version} of {entry.domain or 'ONNX'}, where versions are small numbers"
            raise QdqError(where, reason, _AGAIN)
    versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in proto.opset_import}
    if not versions and isinstance(proto, onnx.ModelProto):
        versions[""] = 1
    return versions


def _check_face(graph: GraphProto, where: object) -> None:
    """What only the outermost graph must have: nodes, outputs and inputs with a type."""
    for what, there in (("nodes", graph.node), ("outputs", graph.output)):
        if not there:
            raise QdqError(where, f"the graph has no {what}", _AGAIN)
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        if kind is None or (kind == "tensor_type" and value.type.tensor_type.elem_type == 0):
            raise QdqError(where, f"the graph input {value.name} has no type", _AGAIN)


def _region_of(graph: GraphProto, opsets: Mapping[str, int], where: object, folder: Path | None) -> _NameScope:
    tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    weights: dict[str, None] = {}
    for tensor in tensors:
        if tensor.name in weights or not tensor.name:
            fault = f"the initializer {tensor.name} twice" if tensor.name else "an initializer without a name"
            raise QdqError(where, f"holds {fault}", _AGAIN)
        weights[tensor.name] = None
        check_tensor(tensor, where, folder)
    for sparse in graph.sparse_initializer:
        check_tensor(sparse.indices, where, folder)
    inputs, outputs = [value.name for value in graph.input], [value.name for value in graph.output]
    if len(set(inputs)) < len(inputs):
        twice = next(name for name in inputs if inputs.count(name) > 1)
        raise QdqError(where, f"lists the graph input {twice} twice", _AGAIN)
    held = {tensor.name: tensor for tensor in graph.initializer}
    return _NameScope(graph.node, inputs, list(weights), outputs, opsets, -1, -1, 0, tensors=held)


def _graphs_in(attribute: AttributeProto) -> list[GraphProto]:
    if attribute.type in PLAIN:
        return []
    return [*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs]


def _tensors_in(attribute: AttributeProto) -> list[TensorProto]:
    found = [*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors]
    sparse = [*((attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ()), *attribute.sparse_tensors]
    return found + [part for each in sparse for part in (each.values, each.indices)]


def _free_names(region: _NameScope, bodies: _Bodies, where: object) -> dict[str, str]:
    """The names that a region reads and does not make, each with a consumer; checks single assignment and cycles."""
    made: dict[str, int] = dict.fromkeys(region.inputs, -1)
    made.update(dict.fromkeys(region.weights, -1))
    early: dict[str, str | int] = {}  # read before anything made it: by this node, or by that one in a body
    for position, node in enumerate(region.nodes):
        for name in node.input:
            if name not in made and name:
                early.setdefault(name, position)
        if position in bodies:
            for name, consumer in bodies[position].items():
                if name not in made:
                    early.setdefault(name, consumer)
        named = False
        for name in node.output:
            if name:
                if name in made:
                    raise QdqError(where, f"{label(node)} makes {name}, which is made elsewhere too", _AGAIN)
                made[name] = position
                named = True
        if not named:
            raise QdqError(where, f"{label(node)} (node {position}) has no output with a name", _AGAIN)
    _check_names(region, made, where)
    if any(name in made for name in early):
        _refuse_cycle(region, bodies, made, where)
    for name in region.outputs:
        if name not in made:
            early.setdefault(name, "the graph's list of outputs")
    free = {name: consumer for name, consumer in early.items() if name not in made}
    return {name: label(region.nodes[r]) if isinstance(r, int) else r for name, r in free.items()}


def _check_names(region: _NameScope, made: dict[str, int], where: object) -> None:
    """Refuse names that are no UTF-8 (protobuf hands them out as bytes) and empty names of inputs and outputs."""
    for names in (made, region.outputs, [node.name for node in region.nodes]):
        try:
            "".join(names)
        except TypeError:
            wrong = next(name for name in names if not isinstance(name, str))
            raise QdqError(where, f"the name {wrong!r} is not UTF-8", _AGAIN) from None
    if "" in made or "" in region.outputs:
        raise QdqError(where, f"the graph has an {'input' if '' in made else 'output'} without a name", _AGAIN)


def _refuse_cycle(region: _NameScope, bodies: _Bodies, made: dict[str, int], where: object) -> None:
    needs: dict[int, list[int]] = {}
    for position, node in enumerate(region.nodes):
        read = (*node.input, *bodies.get(position, ()))
        needs[position] = [producer for producer in (made.get(name, -1) for name in read) if producer >= 0]
    cycle = key_on_cycle(needs)
    if cycle is not None:
        raise QdqError(where, f"the graph has a cycle through {label(region.nodes[cycle])}", _AGAIN)
