# SPDX-License-Identifier: Apache-2.0
"""How one operator of an old opset becomes its opset-13 form: the onnx version converter, given each node alone.

Alone, because a whole graph comes back from it with other names, more value_info and fewer functions; and because it
needs a node's types only, weights never pass through it. What it gets wrong is put right here. Not which nodes: that
is normalise.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TypeProto, helper, numpy_helper, version_converter

from qdqtool.errors import QdqError
from qdqtool.graph.guard import label

TARGET = 13
_BATCH = 512
_TODO = f"export the model with opset {TARGET} or later"
_BROADCASTING = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "PRelu"))
_VALUE_FIELDS = (("f", "FLOAT"), ("i", "INT"), ("s", "STRING"), ("t", "TENSOR"), ("g", "GRAPH"))
_LIST_FIELDS = (("floats", "FLOATS"), ("ints", "INTS"), ("strings", "STRINGS"), ("tensors", "TENSORS"))


@dataclass(frozen=True)
class Site:
    """A node to lift and what is known around it."""

    node: NodeProto
    types: Mapping[str, TypeProto]
    scales: np.ndarray | None
    """The constant scales of an Upsample or Resize, None where they are not known."""


def lift(sites: Sequence[Site], opset: int, taken: set[str], where: object) -> list[list[NodeProto] | None]:
    """The opset-13 form of each node.

    Tensors that the node read and made keep their names; new ones are called after its first output and made unique.

    Args:
        sites: the nodes, each of the default domain with a schema at `opset`.
        opset: the opset they are written in.
        taken: every tensor name of the model; the new ones are added.
        where: what an error names as its place.

    Returns:
        For each site the nodes that replace it, in order, or None where it already is what opset 13 says.

    Raises:
        QdqError: an operator cannot be lifted with its meaning kept; it is named.
    """
    islands = [_prepared(site, opset, where) for site in sites]
    found: list[list[NodeProto] | None] = []
    for begin in range(0, len(sites), _BATCH):
        batch = range(begin, min(begin + _BATCH, len(sites)))
        converted = _convert([islands[i] for i in batch], [sites[i] for i in batch], opset, where)
        for index, nodes in zip(batch, converted, strict=True):
            _put_right(nodes, sites[index], opset, where)
            fresh = _named(nodes, sites[index].node, taken)
            _refuse_invalid(fresh, sites[index].node, opset, where)
            found.append(None if _unchanged(fresh, sites[index].node) else fresh)
    return found


def type_attributes(node: NodeProto) -> None:
    """Give attributes of IR version 1, which have no type, the type of the field that they fill."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.UNDEFINED and not attribute.ref_attr_name:
            kinds = [kind for field, kind in _VALUE_FIELDS if attribute.HasField(field)]
            kinds += [kind for field, kind in _LIST_FIELDS if len(getattr(attribute, field))]
            attribute.type = AttributeProto.AttributeType.Value(kinds[0] if kinds else "INTS")


def rank_of(types: Mapping[str, TypeProto], name: str) -> int | None:
    """The number of axes of a tensor, None where it is not known."""
    found = types.get(name)
    if found is None or not found.HasField("tensor_type") or not found.tensor_type.HasField("shape"):
        return None
    return len(found.tensor_type.shape.dim)


def _refusal(node: NodeProto, opset: int, where: object, why: str) -> QdqError:
    return QdqError(where, f"{label(node)} cannot be lifted from opset {opset} to {TARGET} ({why})", _TODO)


def _prepared(site: Site, opset: int, where: object) -> list[NodeProto]:
    """The node with what the converter misreads already written out, still in its own opset."""
    node = NodeProto()
    node.CopyFrom(site.node)
    type_attributes(node)
    if any(attribute.ref_attr_name for attribute in node.attribute):
        raise _refusal(node, opset, where, "its attributes come from a function's caller")
    if opset < 7 and node.op_type in _BROADCASTING and len(node.input) > 1:
        return _aligned(node, site.types, opset, where)
    return [node]


def _aligned(node: NodeProto, types: Mapping[str, TypeProto], opset: int, where: object) -> list[NodeProto]:
    """Old broadcasting, where `axis` says at which axis of A those of B begin, as Unsqueeze and numpy's rule.

    The converter puts the new axes of B in the wrong place. A PRelu's slope was per channel without saying so.
    """
    axis = _int(node, "axis")
    if node.op_type != "PRelu" and (axis is None or not _int(node, "broadcast")):
        return [node]
    ranks = [rank_of(types, name) for name in node.input[:2]]
    if ranks[0] is None or ranks[1] is None:
        raise _refusal(node, opset, where, "the ranks of its inputs are not known")
    start = (1 if ranks[1] == 1 else 0) if node.op_type == "PRelu" else axis or 0
    start += ranks[0] if start < 0 else 0
    _drop(node, "axis")
    missing = ranks[0] - start - ranks[1]
    if missing <= 0:
        return [node]
    axes = list(range(ranks[1], ranks[1] + missing))
    unsqueeze = helper.make_node("Unsqueeze", [node.input[1]], [f"{node.input[1]}\0"], axes=axes)
    node.input[1] = unsqueeze.output[0]
    return [unsqueeze, node]


def _convert(islands: list[list[NodeProto]], sites: list[Site], opset: int, where: object) -> list[list[NodeProto]]:
    """Run the converter over many nodes at once; where it stops, halve the batch until the culprit stands alone."""
    model = _archipelago(islands, sites, opset)
    try:
        lifted = version_converter.convert_version(model, TARGET)
    except Exception as error:
        if len(sites) == 1:
            why = " ".join(str(error).split("failed:")[-1].split()) or type(error).__name__
            raise _refusal(sites[0].node, opset, where, f"the version converter says: {why}") from None
        half = len(sites) // 2
        return _convert(islands[:half], sites[:half], opset, where) + _convert(islands[half:], sites[half:], opset, where)
    return _sorted_out(lifted.graph, sites)


def _archipelago(islands: list[list[NodeProto]], sites: list[Site], opset: int) -> onnx.ModelProto:
    """A model in which no node knows another: each tensor is called v<site>.<number>, each input has its known type."""
    model = onnx.ModelProto(ir_version=7)
    model.opset_import.add(domain="", version=opset)
    model.graph.name = "islands"
    for index, (island, site) in enumerate(zip(islands, sites, strict=True)):
        outer, inner = _numbering(site.node), {}
        for node in island:
            copy = model.graph.node.add()
            copy.CopyFrom(node)
            del copy.input[:], copy.output[:]
            for name in (*node.input, *node.output):
                if name and name not in outer:
                    inner.setdefault(name, len(outer) + len(inner))
            number = {**outer, **inner}
            copy.input.extend(f"v{index}.{number[name]}" if name else "" for name in node.input)
            made = [outer_output(site.node, node, j) for j in range(len(node.output))]
            copy.output.extend(
                f"v{index}.{number[name] if at is None else at}" for name, at in zip(node.output, made, strict=True)
            )
        for name in dict.fromkeys(filter(None, site.node.input)):
            value = model.graph.input.add(name=f"v{index}.{outer[name]}")
            if name in site.types:
                value.type.CopyFrom(site.types[name])
            else:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        for j in range(len(site.node.output)):
            model.graph.output.add(name=f"v{index}.{len(site.node.input) + j}")
    return model
