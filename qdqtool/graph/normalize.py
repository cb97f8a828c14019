# SPDX-License-Identifier: Apache-2.0
"""Which parts of a model must change so that Q/DQ can stand in it, and nothing beside them.

These are operators of an opset below the one that the pairs need (13 for INT8), and local functions that hold products.
Nothing else is touched: Constant nodes, Identity, unnamed nodes, weights listed as inputs are understood where they are
met, not rewritten. How one operator is lifted is in opset_convert.py.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, helper

from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.model import Model
from qdqtool.graph.opset_convert import TARGET, Conversion, ConversionSite, lift, refuse_removed, type_attributes
from qdqtool.graph.order import topological_protos
from qdqtool.graph.tensors import array_of
from qdqtool.graph.types import infer_types, opset_of
from qdqtool.graph.validate import subgraphs_of


@dataclass(frozen=True)
class Normalized:
    """What was done to a model so that Q/DQ can stand in it."""

    lifted_from: int | None
    """The opset before, None where the model was not lifted."""
    notes: tuple[str, ...]
    """What was done, one sentence each, for the user."""


@dataclass(frozen=True)
class _TypedScope:
    """A graph or function body and the types of the tensors seen in it."""

    owner: GraphProto | FunctionProto
    types: Mapping[str, TypeProto]
    constants: MutableMapping[str, TensorProto]
    opset: int
    where: str
    sites: list[int] = field(default_factory=list)


def normalize(model: Model, target: int = TARGET) -> Normalized:
    """Lift a model below opset `target` to it, and inline its local functions that hold products; in place.

    Every other model stays as it is. Enters subgraphs and local functions. Only operators whose form changed are
    rewritten; all names of tensors and nodes, weights and their order, metadata, value_info and other domains stay as
    they are. Operators without a schema (plugins in the default domain) pass through. The IR version becomes 7 where it
    is lower. Tensors inside a function that is inlined get new names (`inline_functions.py`).

    Raises:
        QdqError: an operator cannot be lifted with its meaning kept. The model is unchanged then.
    """
    proto, opset = model.proto, opset_of(model.proto)
    if opset is None and not proto.opset_import and proto.ir_version < 3:
        opset = 1  # before IR 3 there was but one
    if opset is None or opset >= target:
        return Normalized(None, _inlined(model))
    regions = _regions(proto, opset)
    plans = _planned(regions, model.folder, target)
    changed = sum(len(plan) for plan in plans)
    added = sum(len(nodes) - 1 for plan in plans for nodes in plan.values())
    for region, plan in reversed(list(zip(regions, plans, strict=True))):  # inner ones first: outer ones copy them
        _carry_out(region, plan, target)
    notes = [f"converted from opset {opset} to {target}: {changed} operators rewritten, {added} nodes added"]
    _set_opset(proto, target)
    if proto.ir_version < (least := ir_of(target)):
        notes.append(f"IR version raised from {proto.ir_version} to {least}")
        proto.ir_version = least
    model.changed()
    return Normalized(opset, (*notes, *_inlined(model)))


def _inlined(model: Model) -> tuple[str, ...]:
    """Put local functions that hold products in place of their calls; a sentence on it."""
    names = inline_products(model)
    return (f"inlined {counted(len(names), 'local function')} with products: {', '.join(names)}",) if names else ()


def ir_of(opset: int) -> int:
    """The IR version that came with an opset: what models of it have at least."""
    return int(helper.find_min_ir_version_for([helper.make_opsetid("", opset)]))


def _set_opset(proto: onnx.ModelProto | FunctionProto, target: int) -> None:
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = target
            return
    proto.opset_import.add(domain="", version=target)


def _planned(regions: list[_TypedScope], folder: Path | None, target: int) -> list[dict[int, list[NodeProto]]]:
    """For each region the nodes that take the place of others, by index; nothing is changed yet."""
    taken = FreshNames(_tensor_names(regions))
    plans: list[dict[int, list[NodeProto]]] = []
    for region in regions:
        how = Conversion(region.opset, target, region.where)
        for node in region.owner.node:
            refuse_removed(node, how)
        positions = [i for i, node in enumerate(region.owner.node) if _differs(node, region, target)]
        sites = [_site(region.owner.node[i], region, folder) for i in positions]
        found = lift(sites, how, taken)
        plans.append({i: nodes for i, nodes in zip(positions, found, strict=True) if nodes is not None})
    return plans


def _differs(node: NodeProto, region: _TypedScope, target: int) -> bool:
    """Whether the operator has another schema at the target's opset; without a schema there is none."""
    if node.domain not in ("", "ai.onnx") or node.op_type == "Constant" or region.opset >= target:
        return False
    try:
        before = onnx.defs.get_schema(node.op_type, region.opset, "").since_version
    except onnx.defs.SchemaError:
        return False
    if not subgraphs_of(node):
        return bool(before != onnx.defs.get_schema(node.op_type, target, "").since_version)
    if node.op_type == "Scan" and region.opset < 9:
        why = f"cannot be converted from opset {region.opset}: its batch axis was removed in opset 9"
        raise QdqError(
            region.where, f"Scan {node.name or node.output[0]} {why}", f"export with opset {target} or later"
        )
    return False  # the bodies of If, Loop and Scan are regions of their own; the operators themselves did not change


def _site(node: NodeProto, region: _TypedScope, folder: Path | None) -> ConversionSite:
    scales = None
    if node.op_type in ("Upsample", "Resize"):
        listed = next((a.floats for a in node.attribute if a.name == "scales"), None)
        if listed is not None:
            scales = np.asarray(listed, np.float32)
        elif len(node.input) > 1 and node.input[1] in region.constants:
            scales = array_of(region.constants[node.input[1]], folder)
    return ConversionSite(node, region.types, scales)


def _carry_out(region: _TypedScope, plan: dict[int, list[NodeProto]], target: int) -> None:
    owner = region.owner
    if plan:
        nodes = list(owner.node)
        owner.ClearField("node")
        for position, node in enumerate(nodes):
            owner.node.extend(plan.get(position, (node,)))
    for node in owner.node:
        type_attributes(node)
    if isinstance(owner, FunctionProto) and region.opset < target:
        _set_opset(owner, target)


def _tensor_names(regions: list[_TypedScope]) -> set[str]:
    names: set[str] = set()
    for region in regions:
        owner = region.owner
        if isinstance(owner, GraphProto):
            names.update(value.name for value in (*owner.input, *owner.output))
            names.update(tensor.name for tensor in owner.initializer)
            names.update(sparse.values.name for sparse in owner.sparse_initializer)
        else:
            names.update(owner.input, owner.output)
        for node in owner.node:
            names.update(node.input, node.output)
    return names


def _regions(proto: onnx.ModelProto, opset: int) -> list[_TypedScope]:
    """Every graph and function body, outer ones first, with the types that shape inference finds."""
    where = proto.graph.name or "the model"
    inferred = infer_types(proto, opset, in_order=True)
    found: list[_TypedScope] = []
    waiting: list[tuple[GraphProto, GraphProto, list[dict[str, TypeProto]], list[dict[str, TensorProto]]]]
    waiting = [(proto.graph, inferred, [], [])]
    for graph, twin, types, constants in waiting:  # grows while it is walked
        types = [_types_in(twin), *types]
        constants = [_constants_in(graph), *constants]
        found.append(_TypedScope(graph, ChainMap(*types), ChainMap(*constants), opset, where))
        nodes = topological_protos(graph.node) if graph is proto.graph else graph.node
        for node, other in zip(nodes, twin.node, strict=True):
            for body, body_twin in zip(subgraphs_of(node), subgraphs_of(other), strict=False):
                waiting.append((body, body_twin, types, constants))
    for function in proto.functions:
        own = opset_of(function)
        place = f"{where}, local function {function.name}"
        found += _function_regions(function, TARGET if own is None else own, place)
    return found


def _function_regions(function: FunctionProto, opset: int, where: str) -> list[_TypedScope]:
    """A function's body and the graphs within; their types are the caller's and not known here."""
    found = [_TypedScope(function, {}, _constants_in(function), opset, where)]
    for region in found:  # grows while it is walked
        for node in region.owner.node:
            found += [_TypedScope(graph, {}, _constants_in(graph), opset, where) for graph in subgraphs_of(node)]
    return found


def _types_in(graph: GraphProto) -> dict[str, TypeProto]:
    known = {tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer}
    known.update((value.name, value.type) for value in (*graph.value_info, *graph.output, *graph.input))
    return {name: kind for name, kind in known.items() if kind.WhichOneof("value")}


def _constants_in(owner: GraphProto | FunctionProto) -> dict[str, TensorProto]:
    found = {tensor.name: tensor for tensor in owner.initializer} if isinstance(owner, GraphProto) else {}
    for node in owner.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            found[node.output[0]] = node.attribute[0].t
    return found
