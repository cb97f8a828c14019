# SPDX-License-Identifier: Apache-2.0
"""Which operators of a graph run together: one unit per layer of the engine, before its types and names are known."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from qdqtool.engine.engine_view import EngineView
from qdqtool.engine.layer_guards import GUARDS
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, Use, attribute
from qdqtool.graph.weighted import is_product, pair_behind, weight_index
from qdqtool.match.fusion_chains import BOOKS, Chain, Trie
from qdqtool.match.sizes import made_of_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook

PARALLEL, CONVERTS = "parallel", "converts"  # rules that hold for a version and are no chains
MERGED_AT_MOST = 8


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Operators that run as one layer.

    Attributes:
        nodes: in the order of the chain; the weighted operator, where there is one, first.
        rule: name of the fusion rule; "" for an operator alone.
        residual: where the other branch of a fused Add comes in.
    """

    nodes: tuple[Node, ...]
    rule: str = ""
    residual: Use | None = None

    @property
    def start(self) -> Node:
        """The operator that it begins with."""
        return self.nodes[0]

    @property
    def output(self) -> str:
        """The first tensor that leaves it."""
        return self.nodes[-1].key

    def reads(self) -> list[Use]:
        """Every place where it reads a tensor that it does not make itself, constants among them."""
        inside = {name for node in self.nodes for name in node.outputs}
        uses = [Use(node, index) for node in self.nodes for index, name in enumerate(node.inputs) if name]
        return [use for use in uses if use.node.inputs[use.index] not in inside]


def find_units(view: EngineView, rules: RuleBook) -> list[Unit]:
    """Every layer of a graph but left-over Q/DQ nodes, in the order of what they make.

    Weighted operators take what fuses with them first, then elementwise operators their followers; the rest stand
    alone. Arithmetic on shapes and constants is no layer.
    """
    trie = _trie_of(rules)
    skipped = shape_nodes(view)
    order = [
        node for node in sorted(view.nodes, key=_place) if id(node) not in skipped and not view.is_constant(node.key)
    ]
    taken: set[int] = set()
    units = []
    for weighted in (True, False):
        for node in order:
            if (weight_index(view, node) is not None) == weighted and id(node) not in taken:
                unit = _unit(trie.longest(view, node), node, taken)
                taken.update(id(member) for member in unit.nodes)
                units.append(unit)
    alone = [unit for unit in units if unit.start.op not in (QUANTIZE, DEQUANTIZE)]
    return sorted(alone, key=lambda unit: _place(unit.nodes[-1]))


@functools.lru_cache(maxsize=BOOKS)
def _trie_of(rules: RuleBook) -> Trie:
    chains = tuple(rule for rule in rules.fusions if rule.name not in (PARALLEL, CONVERTS, "joined"))
    return Trie(rules, chains, GUARDS)


def _place(node: Node) -> tuple[int, int]:
    return node.level, node.index


def _unit(chain: Chain | None, node: Node, taken: set[int]) -> Unit:
    """The chain up to the first node that another layer has already."""
    if chain is None:
        return Unit((node,))
    nodes: list[Node] = []
    residual: Use | None = None
    entry = ""
    for link in chain.links:
        if any(id(member) in taken for member in link.nodes):
            break
        if link.constraint.startswith("residual"):
            index = next(i for i, name in enumerate(link.nodes[0].inputs) if name != entry)
            residual = Use(link.nodes[0], index)
        nodes += link.nodes
        entry = link.output
    return Unit(tuple(nodes) or (node,), chain.rule.name if nodes else "", residual)


def shape_nodes(view: EngineView) -> set[int]:
    """Identities of the nodes that compute shapes: what reads nothing but constants and the shapes of tensors."""
    ops = operator_set("sizes") | {"NonZero"}
    made = made_of_sizes(view, lambda node: node.op in ops, nodes=view.every)
    return {id(node) for node in view.every if node.key in made}


def merge_parallel(view: EngineView, units: list[Unit], rules: RuleBook) -> list[tuple[Unit, ...]]:
    """Units that run side by side as one layer, alone or up to eight together, in the order of the first of each."""
    if PARALLEL not in rules.names:
        return [(unit,) for unit in units]
    rule = next(rule for rule in rules.fusions if rule.name == PARALLEL)
    ops = set(rule.steps[0].names)
    merged: list[list[Unit]] = []
    open_: dict[object, list[Unit]] = {}
    for unit in units:
        key = _likeness(view, unit) if unit.start.op in ops and unit.residual is None else None
        group = open_.get(key) if key is not None else None
        if group is not None and len(group) < MERGED_AT_MOST:
            group.append(unit)
            continue
        merged.append([unit])
        if key is not None:
            open_[key] = merged[-1]
    return [tuple(group) for group in merged]


def _likeness(view: EngineView, unit: Unit) -> object:
    """What two convolutions must share to run as one; None where the weight is unknown."""
    index = weight_index(view, unit.start)
    if index is None or not is_product(unit.start):
        return None
    weight = view.constant_tensor(unit.start.inputs[index])
    if weight is None:
        return None
    pair = view.dequantizer(unit.start.inputs[1 - index])
    entry = unit.start.inputs[1 - index]
    source: object = entry if pair is None else (view.quantized_tensor(pair), view.coding_of(pair))
    words = tuple(
        (name, str(attribute(unit.start, name))) for name in ("strides", "pads", "dilations", "group", "auto_pad")
    )
    behind = tuple(node.op for node in unit.nodes[1:])
    quantized = pair_behind(view, unit.start.inputs[index]) is not None
    return source, tuple(weight.dims[1:]), words, behind, quantized, view.wanted_coding(unit.output)


def constant_names(view: EngineView, node: Node) -> list[str]:
    """The constants that a node reads, by the names that TensorRT gives their layers."""
    names = [view.root(name) for name in node.inputs if name and view.is_constant(name)]
    return [view.producers[name].name if name in view.producers else name for name in names]
