# SPDX-License-Identifier: Apache-2.0
"""Operators that compute in FP32 whatever is asked for, by what they are; what their values need, others say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import TensorProto

from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types, opset_of
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, may_have_bodies
from qdqtool.match.sizes import made_of_sizes
from qdqtool.precision.half_places import half_places, reads_any_type
from qdqtool.precision.int8_paths import int8_movers
from qdqtool.precision.type_rules import load_type_rules

BODIES = "its subgraphs stay in FP32"
FOREIGN = "no operator of ONNX"
UNKNOWN = "a tensor of unknown type"
ONLY_FP32 = "ONNX defines it for FP32 only"
NOT_TENSORRT = "TensorRT supports it in FP32, not in this type"
SIZES = "computes sizes"
INT8_PATH = "moves INT8 values from one pair to the next"
WEIGHTS = "computes a weight that is quantized"


def float_types(model: Model) -> dict[str, int]:
    """Element type of every tensor of the main graph, initializers included; unknown ones are left out."""
    return {**known_types(model), **{tensor.name: tensor.data_type for tensor in model.graph.initializer}}


def fixed_float32(model: Model, rest: int) -> Mapping[str, str]:
    """Operators of the main graph that stay FP32 by what they are -> why, found once for a graph.

    Those with bodies (If, Loop, Scan), those that ONNX has no schema for, those that have no such type in ONNX or in
    TensorRT (rules/types.toml), what computes sizes in float, what reads or makes a tensor of unknown type, what moves
    INT8 values from one pair to the next, and what computes a weight that is quantized. QuantizeLinear and
    DequantizeLinear are not listed: what they read and give out in float is always FP32, as are their scales.
    """
    known = model.derived(_fixed_by_type)
    if rest not in known:
        known[rest] = _fixed_float32(model, rest)
    return known[rest]


def fixed_for(model: Model, rest: int, *, for_dla: bool) -> Mapping[str, str]:
    """`fixed_float32`, without what moves INT8 values where a DLA runs it, which has no FP32."""
    fixed = fixed_float32(model, rest)
    return {key: why for key, why in fixed.items() if why != INT8_PATH} if for_dla else fixed


def _fixed_by_type(_: Model) -> dict[int, dict[str, str]]:
    return {}


def _fixed_float32(model: Model, rest: int) -> dict[str, str]:
    view, types = model.view, float_types(model)
    opset = opset_of(model.proto) or 1
    movers = int8_movers(view)
    sizes = made_of_sizes(
        view, follows=lambda node, known: node.op != "ConstantOfShape"
    )  # which is filled, not computed
    found: dict[str, str] = {}
    for node in view.every:
        if node.op in (QUANTIZE, DEQUANTIZE, "Constant"):
            continue
        reason = _reason(view, node, opset, rest, types)
        if not reason and node.key in movers:
            reason = INT8_PATH
        if not reason and not sizes.isdisjoint(node.outputs) and _touches_float(node, types):
            reason = SIZES
        if reason:
            found[node.key] = reason
    found.update(dict.fromkeys(_quantized_constants(view, found), WEIGHTS))
    return found


def makers_of_unknown(view: GraphView, nodes: Iterable[Node], types: Mapping[str, int]) -> dict[str, Node]:
    """First output of a node -> the operator at which the types end that it or its inputs lack; nodes of `UNKNOWN`."""
    found: dict[str, Node] = {}
    for node in nodes:
        path, maker = dict[str, None](), node
        while maker.key not in path and maker.key not in found:
            path[maker.key] = None
            made = (view.producers.get(name) for name in maker.inputs if name and not types.get(name))
            maker = next(filter(None, made), maker)
        found.update(dict.fromkeys(path, found.get(maker.key, maker)))
    return found


def _reason(view: GraphView, node: Node, opset: int, rest: int, types: Mapping[str, int]) -> str:
    if may_have_bodies(node):
        return FOREIGN if "::" in node.op else BODIES
    places = half_places(node, opset, rest)
    names = [*node.inputs, *node.outputs[:1], *(name for name in node.outputs[1:] if _is_read(view, name))]
    if places is None:
        return FOREIGN
    if any(name and not types.get(name) for name in names):
        return UNKNOWN
    made = [place for place, name in enumerate(node.outputs) if types.get(name) == TensorProto.FLOAT]
    read = [place for place, name in enumerate(node.inputs) if types.get(name) == TensorProto.FLOAT]
    if (made and places.typed) or (made and not any(map(places.gives, made))):
        return ONLY_FP32
    if read and not made and not any(places.reads(at) or reads_any_type(node, at) for at in read):
        return ONLY_FP32
    return NOT_TENSORRT if (read or made) and _refused(node, rest) else ""


def _is_read(view: GraphView, name: str) -> bool:
    """Whether anybody reads a tensor; of the mask of an old Dropout, which nobody does, inference knows no type."""
    return bool(view.consumers(name)) or view.is_output(name) or name in view.captured


def _refused(node: Node, rest: int) -> bool:
    """Whether TensorRT has an operator in FP32 and not in the type `rest`: a GRU in BF16."""
    form = load_type_rules().of(node.op)
    if form is None:
        return False
    taken = [form.computes_in(kind, node.inputs) for kind in (TensorProto.FLOAT, rest)]
    made = [form.only is None or kind in form.only for kind in (TensorProto.FLOAT, rest)]
    return (taken[0] and not taken[1]) or (made[0] and not made[1])


def _touches_float(node: Node, types: Mapping[str, int]) -> bool:
    read = [name for place, name in enumerate(node.inputs) if not reads_any_type(node, place)]
    return any(types.get(name) == TensorProto.FLOAT for name in (*read, *node.outputs))


def _quantized_constants(view: GraphView, found: Mapping[str, str]) -> list[str]:
    """Nodes that compute a constant which a QuantizeLinear reads: rounded twice, it would have other codes."""
    wanted = {node.inputs[0] for node in view.every if node.op == QUANTIZE and node.inputs}
    stack, seen = [name for name in sorted(wanted) if view.is_constant(name)], set[str]()
    while stack:
        node = view.producers.get(stack.pop())
        if node is None or node.op in (QUANTIZE, DEQUANTIZE, "Constant") or node.key in seen:
            continue
        seen.add(node.key)
        stack.extend(name for name in node.inputs if name and view.is_constant(name))
    return sorted(seen - found.keys())
