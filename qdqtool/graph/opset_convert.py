# SPDX-License-Identifier: Apache-2.0
"""How one operator of an old opset becomes its form of a later one: the onnx version converter, given each node alone.

Alone, because a whole graph comes back from it with other names, more value_info and fewer functions; and because it
needs a node's types only, weights never pass through it. What it gets wrong is put right here. Not which nodes: that
is normalize.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TypeProto, helper, numpy_helper, version_converter

from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.tensors import BITS
from qdqtool.graph.validate import label
from qdqtool.parser_rules import load_parser_rules

TARGET = 13  # the opset that is lifted to where none is named
_BATCH = 512
_BROADCASTING = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "PRelu"))
_VALUE_FIELDS = (("f", "FLOAT"), ("i", "INT"), ("s", "STRING"), ("t", "TENSOR"), ("g", "GRAPH"))
_LIST_FIELDS = (("floats", "FLOATS"), ("ints", "INTS"), ("strings", "STRINGS"), ("tensors", "TENSORS"))


@dataclass(frozen=True)
class Conversion:
    """From which opset to which, and what messages call the model."""

    opset: int
    target: int
    where: object

    @property
    def todo(self) -> str:
        """What to do where an operator cannot be lifted."""
        return f"export the model with opset {self.target} or later"

    def refusal(self, node: NodeProto, why: str) -> QdqError:
        """Why an operator cannot be lifted."""
        reason = f"{label(node)} cannot be converted from opset {self.opset} to {self.target} ({why})"
        return QdqError(self.where, reason, self.todo)


@dataclass(frozen=True)
class ConversionSite:
    """A node to lift and what is known around it."""

    node: NodeProto
    types: Mapping[str, TypeProto]
    scales: np.ndarray | None
    """The constant scales of an Upsample or Resize, None where they are not known."""


def lift(sites: Sequence[ConversionSite], how: Conversion, taken: FreshNames) -> list[list[NodeProto] | None]:
    """The form of each node in the target's opset.

    Tensors that the node read and made keep their names; new ones are called after its first output and made unique.

    Raises:
        QdqError: an operator cannot be lifted with its meaning kept; it is named.
    """
    islands = [_prepared(site, how) for site in sites]
    called = FreshNames(site.node.name for site in sites)
    found: list[list[NodeProto] | None] = []
    for begin in range(0, len(sites), _BATCH):
        batch = range(begin, min(begin + _BATCH, len(sites)))
        converted = _convert([islands[i] for i in batch], [sites[i] for i in batch], how)
        for index, nodes in zip(batch, converted, strict=True):
            _put_right(nodes, sites[index], how)
            fresh = _named(nodes, sites[index].node, taken, called, how.target)
            _refuse_invalid(fresh, sites[index].node, how)
            found.append(None if _unchanged(fresh, sites[index].node) else fresh)
    return found


def refuse_removed(node: NodeProto, how: Conversion) -> None:
    """Refuse an operator that ONNX took out with opset 10 (ImageScaler, Affine, Crop): no later opset means it.

    Raises:
        QdqError: it is one; it is named.
    """
    if node.domain in ("", "ai.onnx") and how.opset < TARGET and node.op_type in load_parser_rules().removed:
        refused = how.refusal(node, "opset 10 removed it from ONNX")
        raise QdqError(how.where, refused.reason, f"{how.todo}; qdqtool ptq and calibrate need no conversion")


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


def _prepared(site: ConversionSite, how: Conversion) -> list[NodeProto]:
    """The node with what the converter misreads already written out, still in its own opset."""
    node = NodeProto()
    node.CopyFrom(site.node)
    type_attributes(node)
    if any(attribute.ref_attr_name for attribute in node.attribute):
        raise how.refusal(node, "its attributes come from a function's caller")
    if how.opset < 7 and node.op_type in _BROADCASTING and len(node.input) > 1:
        return _aligned(node, site.types, how)
    return [node]


def _aligned(node: NodeProto, types: Mapping[str, TypeProto], how: Conversion) -> list[NodeProto]:
    """Old broadcasting, where `axis` says at which axis of A those of B begin, as Unsqueeze and numpy's rule.

    The converter puts the new axes of B in the wrong place. A PRelu's slope was per channel without saying so.
    """
    axis = _int(node, "axis")
    if node.op_type != "PRelu" and (axis is None or not _int(node, "broadcast")):
        return [node]
    ranks = [rank_of(types, name) for name in node.input[:2]]
    if ranks[0] is None or ranks[1] is None:
        raise how.refusal(node, "the ranks of its inputs are not known")
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


def _convert(islands: list[list[NodeProto]], sites: list[ConversionSite], how: Conversion) -> list[list[NodeProto]]:
    """Run the converter over many nodes at once; where it stops, halve the batch until the failing one is alone."""
    model = _archipelago(islands, sites, how.opset)
    try:
        lifted = version_converter.convert_version(model, how.target)
    except Exception as error:
        if len(sites) == 1:
            why = " ".join(str(error).split("failed:")[-1].split()) or type(error).__name__
            raise how.refusal(sites[0].node, f"the version converter says: {why}") from None
        half = len(sites) // 2
        return _convert(islands[:half], sites[:half], how) + _convert(islands[half:], sites[half:], how)
    return _sorted_out(lifted.graph, sites)


def _archipelago(islands: list[list[NodeProto]], sites: list[ConversionSite], opset: int) -> onnx.ModelProto:
    """A model in which no node knows another: input j of site k is called vk.ij, output j vk.oj, each input typed."""
    model = onnx.ModelProto(ir_version=7)
    model.opset_import.add(domain="", version=opset)
    model.graph.name = "islands"
    for k, (island, site) in enumerate(zip(islands, sites, strict=True)):
        names = {name: f"v{k}.i{j}" for j, name in reversed(list(enumerate(site.node.input))) if name}
        for node in island[:-1]:
            names[node.output[0]] = f"v{k}.x"
        for node in island:
            copy = model.graph.node.add()
            copy.CopyFrom(node)
            copy.ClearField("input")
            copy.ClearField("output")
            copy.input.extend(names[name] if name else "" for name in node.input)
            copy.output.extend([f"v{k}.o{j}" for j in range(len(node.output))] if node is island[-1] else [f"v{k}.x"])
        for name in dict.fromkeys(filter(None, site.node.input)):
            value = model.graph.input.add(name=names[name])
            if name in site.types:
                value.type.CopyFrom(site.types[name])
            else:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        model.graph.output.extend(onnx.ValueInfoProto(name=f"v{k}.o{j}") for j in range(len(site.node.output)))
    return model


def _sorted_out(graph: onnx.GraphProto, sites: list[ConversionSite]) -> list[list[NodeProto]]:
    """The converted nodes by site, in order; a new initializer becomes a Constant. A node belongs to who reads it."""
    owner: dict[str, int] = {}
    found: list[list[NodeProto]] = [[] for _ in sites]
    for node in reversed(graph.node):
        k = next(k for k in (_island_of(name, owner) for name in node.output) if k is not None)
        owner.update((name, k) for name in node.input)
        found[k].append(node)
    for tensor in graph.initializer:
        found[owner[tensor.name]].append(helper.make_node("Constant", [], [tensor.name], value=tensor))
    return [nodes[::-1] for nodes in found]


def _island_of(name: str, owner: Mapping[str, int]) -> int | None:
    """The site of a tensor: in its name, where the name is ours, else that of its consumer."""
    return int(name[1 : name.index(".")]) if name.startswith("v") else owner.get(name)


def _put_right(nodes: list[NodeProto], site: ConversionSite, how: Conversion) -> None:
    """Mend what the converter changes in meaning: defaults that changed, and constants that it always makes float32."""
    node = _main(nodes, site.node)
    if node.op_type == "Resize" and how.opset <= 10:
        _restore_resize(node, site, how)
    if node.op_type == "Hardmax" and how.opset < TARGET:
        _restore_hardmax(node, site, how)
    if node.op_type == "Pad" and len(node.input) < 3:
        _drop(node, "value")
    if node.op_type in ("Clip", "Pad") and how.opset <= 10:
        found = site.types.get(site.node.input[0])
        if found is not None and found.tensor_type.elem_type not in (0, onnx.TensorProto.FLOAT):
            _retype_constants(nodes, set(node.input[1:]), found.tensor_type.elem_type)


def _restore_resize(node: NodeProto, site: ConversionSite, how: Conversion) -> None:
    """Opset 10 and Upsample: x_in = x_out / scale, and for nearest the pixel below.

    onnxruntime takes the pixel above when it shrinks; that is the same one where 1 / scale is whole.
    """
    modes = {"coordinate_transformation_mode": "asymmetric"}
    if (_text(node, "mode") or "nearest") == "nearest":
        modes["nearest_mode"] = "floor"
        shrinks = site.scales is not None and site.scales < 1
        if site.scales is not None and np.any(shrinks & (np.rint(1 / site.scales) * site.scales != 1)):
            why = "it downsamples by a factor that is not an integer, which opset 10 leaves undefined"
            raise how.refusal(site.node, why)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in modes.items())


def _restore_hardmax(node: NodeProto, site: ConversionSite, how: Conversion) -> None:
    """Before opset 13 Hardmax flattens to two axes at `axis`, by default 1; the same only for the last axis."""
    axis, rank = _int(node, "axis"), rank_of(site.types, site.node.input[0])
    axis = 1 if axis is None else axis
    if axis != -1 and (rank is None or axis not in (rank - 1, -1)):
        raise how.refusal(site.node, "it flattens its input, which opset 13 does not")
    _drop(node, "axis")
    node.attribute.append(helper.make_attribute("axis", -1))


def _retype_constants(nodes: list[NodeProto], names: set[str], elem_type: int) -> None:
    if elem_type not in BITS:  # text, or nothing that is known: the converter's own choice stays
        return
    for node in nodes:
        if node.op_type == "Constant" and node.output[0] in names and node.attribute[0].t.data_type == 1:
            dtype = helper.tensor_dtype_to_np_dtype(elem_type)
            node.attribute[0].t.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(node.attribute[0].t).astype(dtype))
            )


def _main(nodes: list[NodeProto], origin: NodeProto) -> NodeProto:
    """The node that stands for the original one: of its operator, else the one that makes its first output."""
    return next((node for node in nodes if node.op_type == origin.op_type), nodes[-1])


def _named(
    nodes: list[NodeProto], origin: NodeProto, taken: FreshNames, called: FreshNames, target: int
) -> list[NodeProto]:
    """The nodes under the model's names; the main one keeps all that the original said and still says.

    Nodes of one name make others, which get names of their own: `taken` are tensors' names, `called` nodes'.
    """
    main = _main(nodes, origin)
    roles = _roles(nodes, main, target)
    base = next(name for name in origin.output if name)
    tensors: dict[str, str] = {"": ""}
    fresh = []
    for node in nodes:
        for name in (*node.input, *node.output):
            if name not in tensors:
                tensors[name] = _original(name, origin) if _is_original(name) else taken.unique(f"{base}_{roles[name]}")
        result = NodeProto()
        result.CopyFrom(origin if node is main else node)
        for field in ("input", "output", "attribute"):
            result.ClearField(field)
        result.op_type = node.op_type
        result.input.extend(tensors[name] for name in node.input)
        result.output.extend(tensors[name] for name in node.output)
        if node is not main and origin.name:
            result.name = called.unique(f"{origin.name}_{roles.get(node.output[0], node.op_type.lower())}")
        result.attribute.extend(_kept_attributes(node, origin) if node is main else node.attribute)
        fresh.append(result)
    return fresh


def _roles(nodes: list[NodeProto], main: NodeProto, target: int) -> dict[str, str]:
    """What each new tensor is called after: the input of the main operator that it feeds, else who makes it."""
    formal = onnx.defs.get_schema(main.op_type, target, "").inputs
    roles = {name: node.op_type.lower() for node in nodes for name in node.output}
    constants = {node.output[0] for node in nodes if node.op_type == "Constant"}
    for j, name in enumerate(main.input):
        if name in constants:
            roles[name] = formal[min(j, len(formal) - 1)].name.lower()
    return roles


def _is_original(name: str) -> bool:
    return name.startswith("v") and name.rpartition(".")[2][1:].isdigit()


def _original(name: str, origin: NodeProto) -> str:
    mark = name.rpartition(".")[2]
    return str((origin.input if mark[0] == "i" else origin.output)[int(mark[1:])])


def _kept_attributes(node: NodeProto, origin: NodeProto) -> list[AttributeProto]:
    """The node's attributes in the original's order; those that did not change are the original's own."""
    now = {attribute.name: attribute for attribute in node.attribute}
    kept = []
    for attribute in origin.attribute:
        if attribute.name in now:
            other = now.pop(attribute.name)
            same = _value(attribute) == _value(other)
            kept.append(attribute if same else other)
    return kept + list(now.values())


def _value(attribute: AttributeProto) -> bytes:
    bare = AttributeProto()
    bare.CopyFrom(attribute)
    bare.ClearField("doc_string")
    bare.ClearField("type")
    return bytes(bare.SerializeToString(deterministic=True))


def _unchanged(fresh: list[NodeProto], origin: NodeProto) -> bool:
    return len(fresh) == 1 and fresh[0].SerializeToString(deterministic=True) == origin.SerializeToString(
        deterministic=True
    )


def _refuse_invalid(fresh: list[NodeProto], origin: NodeProto, how: Conversion) -> None:
    """Refuse a result that its schema does not allow, where that of the source's opset allowed the node."""
    for node in fresh:
        complaint = _complaint(node, how.target)
        if complaint and not _complaint(origin, how.opset):
            raise how.refusal(origin, complaint)


def _complaint(node: NodeProto, opset: int) -> str:
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 7, {"": opset}
    typed = NodeProto()
    typed.CopyFrom(node)
    type_attributes(typed)
    try:
        onnx.checker.check_node(typed, context)
    except onnx.checker.ValidationError as error:
        return str(error).strip().partition("\n")[0]
    return ""


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _int(node: NodeProto, name: str) -> int | None:
    found = _attribute(node, name)
    return None if found is None else int(found.i)


def _text(node: NodeProto, name: str) -> str:
    found = _attribute(node, name)
    return "" if found is None else found.s.decode("utf-8", "replace")


def _drop(node: NodeProto, name: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    if len(kept) < len(node.attribute):
        copies = [AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
        node.ClearField("attribute")
        node.attribute.extend(copies)
