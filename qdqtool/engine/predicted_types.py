# SPDX-License-Identifier: Apache-2.0
"""Which layers give out codes and which Q/DQ nodes stay as layers of their own. What is fused is `layer_units.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqtool.engine.engine_view import Coding, EngineView
from qdqtool.engine.layer_units import CONVERTS, Unit
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, Use
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import value_names
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rulebook import RuleBook


@dataclass(frozen=True)
class Left:
    """A QuantizeLinear or DequantizeLinear that no layer takes in, with equal ones beside it."""

    nodes: tuple[Node, ...]

    @property
    def node(self) -> Node:
        """The first of them, whose name the layer has."""
        return self.nodes[0]


class Storage:
    """What every tensor of a graph is in memory, decided once per unit."""

    def __init__(self, view: EngineView, rules: RuleBook, units: Iterable[Unit]) -> None:
        self.view = view
        self._unit_of = {id(node): unit for unit in units for node in unit.nodes}
        self._quantizable = RuleIndex((rule for rule in rules.consumers if rule.when == "quantized-output"), rules)
        self._elementwise = frozenset(rules.sets.get("elementwise", ()))
        self._converting = self._elementwise if CONVERTS in rules.names else frozenset()
        self._known: dict[int, str | None] = {}
        self._read: dict[int, bool] = {}
        for unit in sorted(self._unit_of.values(), key=lambda unit: unit.nodes[-1].level):
            self.gives(unit)  # what it reads is known by now, so no chain is too long for a recursion

    def unit_of(self, node: Node) -> Unit | None:
        """The layer that a node runs in."""
        return self._unit_of.get(id(node))

    def format(self, name: str) -> str | None:
        """The format in which a tensor lies in memory: that of a Q, of a layer that gives it, of what only moves these.

        None for float.
        """
        producer = self.view.producers.get(self.view.root(name))
        if producer is None:
            return None
        unit = self.unit_of(producer)
        if unit is None:
            return self.view.format_of(producer) if producer.op == DEQUANTIZE else None
        return self.gives(unit)

    def converts(self, unit: Unit) -> bool:
        """Whether a layer takes in the Q/DQ nodes around it, whatever its other inputs are."""
        return all(node.op in self._converting for node in unit.nodes)

    def computes(self, unit: Unit) -> str | None:
        """The format that a layer computes in, whatever it gives out; None for float."""
        return self.view.computes(unit.start) or self.gives(unit)

    def gives(self, unit: Unit) -> str | None:
        """The format that a layer gives out; None for float.

        A weighted operator does if all that reads it quantizes it by one scale and its residual, if any, comes in
        quantized; others if also everything that they read is; what only moves values does as its input does.
        """
        key = id(unit)
        if key not in self._known:
            self._known[key] = None  # cycles cannot be
            self._known[key] = self._decide(unit)
        return self._known[key]

    def _decide(self, unit: Unit) -> str | None:
        view, node = self.view, unit.start
        made = {view.wanted_coding(name) for name in view.used_outputs(unit.nodes[-1])}
        coding = made.pop() if len(made) == 1 else None
        wanted = None if coding is None else coding[0]
        if view.flow.moves(node) and len(unit.nodes) == 1:
            if (source := view.dequantizer(unit.output)) is not None:
                return view.format_of(source)
            return wanted if any(self.format(name) for name in value_names(node)) else None
        if wanted is None:
            return None
        if weight_index(view, node) is not None:
            skip = unit.residual
            able = skip is None or view.dequantizer(skip.node.inputs[skip.index]) is not None
            return wanted if able and view.multiplies(node) == wanted else None
        if self.converts(unit):
            return wanted
        able = all(
            member.op in self._elementwise or self._quantizable.first(view, member) is not None for member in unit.nodes
        )
        computed = [use.node.inputs[use.index] for use in unit.reads()]
        computed = [name for name in computed if not view.is_constant(name)]
        able = able and bool(computed) and all(view.dequantizer(name) is not None for name in computed)
        return wanted if able else None

    def left_over(self) -> list[Left]:
        """The Q and DQ nodes that stay as layers: equal ones on one tensor are one."""
        for node in sorted(self.view.nodes, key=lambda node: node.level, reverse=True):
            if self.view.flow.moves(node):
                self._read_on(node)
        found: dict[tuple[str, str, Coding | None], list[Node]] = {}
        for node in self.view.nodes:
            if node.op == QUANTIZE and not self._taken_in(node):
                found.setdefault((QUANTIZE, node.inputs[0], self.view.coding_of(node)), []).append(node)
            elif node.op == DEQUANTIZE and self._read_in_float(node):
                tensor = self.view.quantized_tensor(node)
                found.setdefault((DEQUANTIZE, tensor, self.view.coding_of(node)), []).append(node)
        return [Left(tuple(nodes)) for nodes in found.values()]

    def _taken_in(self, node: Node) -> bool:
        """Whether what makes the tensor gives it out quantized already."""
        name = node.inputs[0]
        pair = self.view.dequantizer(name)
        if pair is not None:
            return self.view.coding_of(pair) == self.view.coding_of(node)
        return self.format(name) is not None

    def _read_in_float(self, node: Node) -> bool:
        name = node.outputs[0]
        if self.view.is_output(name) or name in self.view.captured:
            return True
        return any(not self._reads_codes(use) for use in self.view.consumers(name))

    def _reads_codes(self, use: Use) -> bool:
        if use.node.op in (QUANTIZE, DEQUANTIZE):  # a DequantizeLinear reads the scales of its blocks
            return True
        unit = self.unit_of(use.node)
        if unit is None:
            return False
        if self.view.flow.moves(use.node) and len(unit.nodes) == 1:
            return self._read_on(use.node)
        index = weight_index(self.view, unit.start)
        if index is not None and use.node is unit.start:
            return use.index == 1 - index and self.view.multiplies(unit.start) is not None
        reads = self.gives(unit) is not None or self.converts(unit)
        return reads or (unit.start is use.node and self.computes(unit) is not None)

    def _read_on(self, node: Node) -> bool:
        """Whether all that reads what a moving operator gives reads its codes."""
        if id(node) not in self._read:
            names = [name for name in node.outputs if name]
            given = any(self.view.is_output(name) or name in self.view.captured for name in names)
            uses = [use for name in names for use in self.view.consumers(name)]
            self._read[id(node)] = not given and all(self._reads_codes(use) for use in uses)
        return self._read[id(node)]
