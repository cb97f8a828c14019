# SPDX-License-Identifier: Apache-2.0
"""Which operators compute in FP32, and which of them hang together. Not whether FP16 would hold their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.formats import format_of_element
from qdqtool.graph.order import connected
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node
from qdqtool.graph.weighted import is_product, pair_behind, weight_index
from qdqtool.match.sizes import made_of_sizes
from qdqtool.precision.between_pairs import between_pairs
from qdqtool.precision.element_types import TypeReport
from qdqtool.precision.int8_paths import int8_layers
from qdqtool.precision.type_rules import TypeRules, load_type_rules
from qdqtool.rule_files import operator_set

_FLOAT = int(TensorProto.FLOAT)
_CONVERTERS = frozenset({QUANTIZE, DEQUANTIZE, "Cast", "CastLike", "Constant"})


@dataclass(frozen=True)
class Island:
    """Operators in FP32 that hand FP32 tensors to one another."""

    nodes: tuple[Node, ...]
    products: tuple[Node, ...]
    able: bool


def float32_islands(view: GraphView, report: TypeReport, base: GraphView | None = None) -> list[Island]:
    """The operators of the main graph that read and give FP32, by what hangs together, in the order of the file.

    Casts, pairs, products of integers and what their layers compute between INT8 and Casts, arithmetic on sizes and
    constants are none of them; an operator that only moves values is, since what it moves is twice as wide.
    """
    rules = load_type_rules()
    nodes = [node for node in view.every if computes_float32(view, node, report.types)]
    sizes = operator_set("sizes")
    out = made_of_sizes(view, lambda node: node.op in sizes, nodes=view.every)
    layers = int8_layers(base or view)
    out |= _between_casts(view, report.types, layers | between_pairs(base or view, layers))
    nodes = [node for node in nodes if node.key not in out and not (is_product(node) and multiplies_int8(view, node))]
    known = {node.index: node for node in nodes}
    links = [
        (maker.index, node.index)
        for node in nodes
        for name in node.inputs
        if (maker := view.producers.get(name)) is not None and maker.index in known and report.types.get(name) == _FLOAT
    ]
    return [_island([known[index] for index in part], rules) for part in connected(known, links)]


def _between_casts(view: GraphView, types: Mapping[str, int], keys: frozenset[str]) -> frozenset[str]:
    """Those of `keys` that neither read an FP32 tensor which another operator made, nor make one for another."""
    beside: dict[str, set[str]] = {key: set() for key in keys}
    for node in view.every:
        for name in node.inputs:
            maker = view.producers.get(name)
            if maker is None or view.is_constant(name) or types.get(name) != _FLOAT:
                continue
            for one, other in ((node, maker), (maker, node)):
                if one.key in beside and other.op not in _CONVERTERS:
                    beside[one.key].add(other.key)
    left = set(keys)
    while wide := {key for key in left if not left.issuperset(beside[key])}:
        left -= wide
    return frozenset(left)


def computes_float32(view: GraphView, node: Node, types: Mapping[str, int]) -> bool:
    """Whether an operator reads and gives FP32, and is none of those that only convert."""
    if node.op in _CONVERTERS or view.is_constant(node.key):
        return False
    form = load_type_rules().of(node.proto.op_type)
    if form is None or types.get(node.key) != _FLOAT:
        return False
    places = form.data_inputs(len(node.inputs))
    return any(types.get(node.inputs[index]) == _FLOAT for index in places if node.inputs[index])


def _island(nodes: list[Node], rules: TypeRules) -> Island:
    forms = (rules.of(node.proto.op_type) for node in nodes)
    able = any(form is not None and form.computes_in(TensorProto.FLOAT16) for form in forms)
    return Island(tuple(nodes), tuple(node for node in nodes if is_product(node)), able)


def multiplies_int8(view: GraphView, node: Node) -> bool:
    """Whether a product reads its weight, or both its inputs, from integers, as they are or moved."""
    index = weight_index(view, node)
    if index is not None:
        return pair_behind(view, node.inputs[index]) is not None and not format_of_weight_alone(view, node)
    moves = operator_set("rearranging")
    makers = [view.producers.get(name) for name in node.inputs[:2]]
    while any(maker is not None and maker.op in moves for maker in makers):
        makers = [view.producers.get(one.inputs[0]) if one and one.op in moves else one for one in makers]
    return all(maker is not None and maker.op == DEQUANTIZE for maker in makers)


def format_of_weight_alone(view: GraphView, node: Node) -> str:
    """The title of the format of a product's weight, where activations have none of that format; else ""."""
    index = weight_index(view, node)
    pair = None if index is None else pair_behind(view, node.inputs[index])
    codes = None if pair is None else view.constant_tensor(pair.dequantize.inputs[0])
    row = None if codes is None else format_of_element(codes.data_type)
    return "" if row is None or "activation" in row.roles else row.title
