# SPDX-License-Identifier: Apache-2.0
"""Which layers give out INT8 and which Q/DQ nodes stay as layers of their own. What is fused is `layer_units.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqtool.engine.engine_view import EngineView
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
        self._known: dict[int, bool] = {}
        self._read: dict[int, bool] = {}
        for unit in sorted(self._unit_of.values(), key=lambda unit: unit.nodes[-1].level):
            self.gives_int8(unit)  # what it reads is known by now, so no chain is too long for a recursion

    def unit_of(self, node: Node) -> Unit | None:
        """The layer that a node runs in."""
        return self._unit_of.get(id(node))

    def int8(self, name: str) -> bool:
        """Whether a tensor lies in memory as INT8: what a Q gives, what an INT8 layer gives, what only moves these."""
        producer = self.view.producers.get(self.view.root(name))
        if producer is None:
            return False
        unit = self.unit_of(producer)
        return producer.op == DEQUANTIZE if unit is None else self.gives_int8(unit)

    def converts(self, unit: Unit) -> bool:
        """Whether a layer takes in the Q/DQ nodes around it, whatever its other inputs are."""
        return all(node.op in self._converting for node in unit.nodes)

    def computes_int8(self, unit: Unit) -> bool:
        """Whether a layer computes with integers, whatever it gives out."""
        return self.view.computes_int8(unit.start) or self.gives_int8(unit)

    def gives_int8(self, unit: Unit) -> bool:
        """Whether a layer gives out INT8.

        A weighted operator does if all that reads it quantizes it by one scale and its residual, if any, comes in as
        INT8; others if also everything that they read is INT8; what only moves values does as its input does.
        """
        key = id(unit)
        if key not in self._known:
            self._known[key] = False  # cycles cannot be
            self._known[key] = self._decide(unit)
        return self._known[key]

    def _decide(self, unit: Unit) -> bool:
        view, node = self.view, unit.start
        made = {view.wanted_scale(name) for name in view.used_outputs(unit.nodes[-1])}
        wanted = made.pop() if len(made) == 1 else None
        if view.flow.moves(node) and len(unit.nodes) == 1:
            if view.dequantizer(unit.output) is not None:
                return True
            return wanted is not None and any(self.int8(name) for name in value_names(node))
        if wanted is None:
            return False
        if weight_index(view, node) is not None:
            skip = unit.residual
            return view.multiplies_int8(node) and (
                skip is None or view.dequantizer(skip.node.inputs[skip.index]) is not None
            )
        if self.converts(unit):
            return True
        able = all(
            member.op in self._elementwise or self._quantizable.first(view, member) is not None for member in unit.nodes
        )
        computed = [use.node.inputs[use.index] for use in unit.reads()]
        computed = [name for name in computed if not view.is_constant(name)]
        return able and bool(computed) and all(view.dequantizer(name) is not None for name in computed)

    def left_over(self) -> list[Left]:
        """The Q and DQ nodes that stay as layers: equal ones on one tensor are one."""
        for node in sorted(self.view.nodes, key=lambda node: node.level, reverse=True):
            if self.view.flow.moves(node):
                self._read_on(node)
        found: dict[tuple[str, str, bytes | None], list[Node]] = {}
        for node in self.view.nodes:
            if node.op == QUANTIZE and not self._taken_in(node):
                found.setdefault((QUANTIZE, node.inputs[0], self.view.scale_of(node)), []).append(node)
            elif node.op == DEQUANTIZE and self._read_in_float(node):
                tensor = self.view.quantized_tensor(node)
                found.setdefault((DEQUANTIZE, tensor, self.view.scale_of(node)), []).append(node)
        return [Left(tuple(nodes)) for nodes in found.values()]

    def _taken_in(self, node: Node) -> bool:
        """Whether what makes the tensor gives it out quantized already."""
        name = node.inputs[0]
        pair = self.view.dequantizer(name)
        if pair is not None:
            return self.view.scale_of(pair) == self.view.scale_of(node)
        return self.int8(name)

    def _read_in_float(self, node: Node) -> bool:
        name = node.outputs[0]
        if self.view.is_output(name) or name in self.view.captured:
            return True
        return any(not self._reads_int8(use) for use in self.view.consumers(name))

    def _reads_int8(self, use: Use) -> bool:
        if use.node.op == QUANTIZE:
            return True
        unit = self.unit_of(use.node)
        if unit is None:
            return False
        if self.view.flow.moves(use.node) and len(unit.nodes) == 1:
            return self._read_on(use.node)
        index = weight_index(self.view, unit.start)
        if index is not None and use.node is unit.start:
            return use.index == 1 - index and self.view.multiplies_int8(unit.start)
        return self.gives_int8(unit) or self.converts(unit) or (unit.start is use.node and self.computes_int8(unit))

    def _read_on(self, node: Node) -> bool:
        """Whether all that reads what a moving operator gives reads INT8."""
        if id(node) not in self._read:
            names = [name for name in node.outputs if name]
            given = any(self.view.is_output(name) or name in self.view.captured for name in names)
            uses = [use for name in names for use in self.view.consumers(name)]
            self._read[id(node)] = not given and all(self._reads_int8(use) for use in uses)
        return self._read[id(node)]
