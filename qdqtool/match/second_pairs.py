# SPDX-License-Identifier: Apache-2.0
"""Pairs that INT8 needs a second time: after an operator that copies values but stops a DequantizeLinear.

A rule with `side = "both"` names such operators (nearest Resize). The pair before them stays, so that what makes the
tensor writes INT8; without a second pair after them, the product that reads the copies is built in float with its
weight dequantized at every inference. The second pair has the scale of the first: the values lie on its grid already,
so nothing is rounded twice.

A Concat of pools (`second = "next"`) gets one after each pool, and one after the Concat with the next larger float32:
pairs of one scale are merged, and what is merged is copied into place, pool by pool. The integers are the same.

A Concat of tokens (`second = "float"`) gets one for what reads it in float, such as a Mul with a mask: the compiler
computes that once after the Concat then, not for each of its inputs. Products read the pairs before it.

Pairs of several scales before a Concat need one after it, too: without it the product reads a tensor that has no one
scale, and is built in float. Scales that a plan makes are shared there; those of a cache may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import weight_index
from qdqtool.match.flow import joins, value_inputs
from qdqtool.match.plan import Plan, Point, Read
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.sizes import gives_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import Commute
from qdqtool.rulebook import RuleBook


def with_second_pairs(
    view: GraphView, plan: Plan, rules: RuleBook, given: Mapping[str, np.float32] | None = None
) -> Plan:
    """The plan with a point more for each product whose INT8 input comes through an operator that stops it.

    One stands where the product's operands are joined last: at the output of the last Concat on the way, or at that of
    the operator itself where there is none. It also stands after a Concat of pairs that differ: those that are in the
    graph already, and those whose scales are given.
    """
    stopping = RuleIndex([rule for rule in rules.commutes if rule.side == "both" or rule.second == "float"], rules)
    if not given and (not stopping or (not view.pairs and not any(stopping.nodes(view)))):
        return plan
    moving = {id(node): rule for node, rule in RuleIndex(rules.commutes, rules).nodes(view)}
    walk = _Walk(view, plan, moving, given or {})
    products = list(_int8_products(view, plan))
    for uses in products:
        walk.visit(uses)
    walk.visit_float_readers({use for uses in products for use in uses})
    added = walk.points()
    if not added:
        return plan
    order = {name: view.level_of(name) for name in (point.tensor for point in (*plan.activations, *added))}
    activations = sorted((*plan.activations, *added), key=lambda point: (order[point.tensor], point.tensor))
    return replace(plan, points=(*activations, *plan.weights))


def _int8_products(view: GraphView, plan: Plan) -> Iterator[list[Use]]:
    """The reads of each operator that is to multiply in INT8: one for a constant weight, both of a computed MatMul."""
    weighted = {read.node for point in plan.weights for read in point.reads}
    for node in sorted(view.nodes, key=lambda node: (node.level, node.key)):
        index = weight_index(view, node)
        if index is not None and node.key in weighted:
            yield [Use(node, 1 - index)]
        elif node.op == "MatMul" and index is None:
            yield [Use(node, 0), Use(node, 1)]


@dataclass(frozen=True)
class _Traced:
    """The way from one operand of a product back to its points."""

    place: Use | None
    why: Node
    sources: list[str]
    merging: list[Node] = field(default_factory=list)
    differs: bool = False


@dataclass(frozen=True)
class _Second:
    """A second pair to be: the operator that asks for it, the points whose values it holds, and who reads it."""

    why: Node
    reason: str
    sources: list[str]
    raised: bool = False
    uses: dict[Use, None] = field(default_factory=dict)


class _Walk:
    """From products back to their points, and the second places found on the way."""

    def __init__(
        self, view: GraphView, plan: Plan, moving: dict[int, Commute], given: Mapping[str, np.float32]
    ) -> None:
        self.view, self.moving, self.given = view, moving, given
        self.by_name = {point.tensor: point for point in plan.activations}
        self.reads = {name: frozenset(point.reads) for name, point in self.by_name.items()}
        self.second: dict[str, _Second] = {}

    def visit(self, uses: list[Use]) -> None:
        """Find where the operands of one product need a second pair; nowhere if one of them is read in float."""
        traced = [one for one in map(self._trace, uses) if one is not None]
        if len(traced) < len(uses):
            return
        for one in traced:
            if one.place is not None:
                for concat in one.merging:
                    self._visit_pools(concat)
                reason = f"INT8 does not cross {one.why.op} {one.why.name}: the same scale once more"
                if one.differs:
                    reason = f"{one.why.op} {one.why.name} joins pairs of several scales: one scale after it"
                elif one.merging:
                    reason = (
                        f"{one.why.op} {one.why.name} concatenates pooled tensors: the next representable "
                        "scale, so that one kernel does it"
                    )
                found = _Second(one.why, reason, one.sources, bool(one.merging) and not one.differs)
                self.second.setdefault(self._tensor(one.place), found).uses[one.place] = None

    def visit_float_readers(self, products: Collection[Use]) -> None:
        """Find what reads, in float, values that have pairs before an operator whose rule asks for one more."""
        for node in self.view.nodes:
            rule, tensor = self.moving.get(id(node)), node.key
            if rule is None or rule.second != "float" or self.view.is_output(tensor) or tensor in self.by_name:
                continue
            readers = [use for use in self.view.consumers(tensor) if use not in products and self._computes(use.node)]
            traced = self._trace(readers[0]) if readers and tensor not in self.second else None
            if traced is not None and traced.place is None:
                first = readers[0].node
                reason = f"{first.op} {first.name} reads {node.op} {node.name} in float: the same scale once more"
                self.second[tensor] = _Second(node, reason, traced.sources, uses=dict.fromkeys(readers))

    def _computes(self, node: Node) -> bool:
        """Whether an operator works on values: none that hands them on, or reads their number alone."""
        return id(node) not in self.moving and not gives_sizes(node)

    def _visit_pools(self, concat: Node) -> None:
        """A second pair after every pool that a Concat reads, and after those that make what such a pool reads."""
        for use in (Use(concat, index) for index in value_inputs(concat)):
            while (pool := self._pool_before(use)) is not None:
                traced = self._trace(use)
                if traced is None:
                    break
                reason = f"{concat.op} {concat.name} concatenates pooled tensors: the same scale once more"
                found = _Second(concat, reason, traced.sources)
                self.second.setdefault(self._tensor(use), found).uses[use] = None
                use = Use(pool, 0)

    def _pool_before(self, use: Use) -> Node | None:
        """The pool that makes what a place reads; None where something else does, or it has a pair by the plan."""
        maker = self.view.producer(self._tensor(use))
        pools = maker is not None and maker.op in operator_set("comparing") and self._tensor(use) not in self.by_name
        return maker if pools else None

    def _tensor(self, use: Use) -> str:
        return self.view.root(use.node.inputs[use.index])

    def _trace(self, first: Use) -> _Traced | None:
        """Where the second pair of one operand stands, the operator why, and its points; None if it is float."""
        sources, pairs = dict[str, None](), dict[str, None]()
        place: Use | None = None
        why = first.node
        joint: Use | None = None
        merging: list[Node] = []
        stack, seen = [first], set[tuple[int, int]]()
        while stack:
            use = stack.pop()
            if (id(use.node), use.index) in seen:
                continue
            seen.add((id(use.node), use.index))
            tensor = self.view.root(use.node.inputs[use.index])
            if tensor in self.second:
                if place is None and use is not joint:
                    self.second[tensor].uses[use] = None
                sources.update(dict.fromkeys(self.second[tensor].sources))
                pairs.update(dict.fromkeys([tensor] if tensor in self.given else self.second[tensor].sources))
                continue
            if Read(use.node.key, use.index) in self.reads.get(tensor, ()):
                sources[tensor] = pairs[tensor] = None
                continue
            producer = self.view.producer(tensor)
            rule = None if producer is None else self.moving.get(id(producer))
            if producer is None or rule is None:
                return None
            if joins(producer) and joint is None:
                joint = use
            if rule.side == "both" and place is None:
                place, why = joint or use, producer
            if rule.second == "next":
                merging.append(producer)
            stack.extend(Use(producer, index) for index in reversed(value_inputs(producer)))
        differs = place is None and joint is not None and self._differ(pairs)
        if joint is not None and differs:
            place, why = joint, self.view.producers[self.view.root(joint.node.inputs[joint.index])]
        return _Traced(place, why, list(sources), merging, differs)

    def _differ(self, pairs: dict[str, None]) -> bool:
        """Whether pairs that stand in the graph already, or are given a scale, have other ones than one another."""
        found: set[bytes | None] = {self.given[name].tobytes() for name in pairs if name in self.given}
        for name in pairs:
            for pair in self.view.pairs.get(name, ()):
                value = self.view.array((pair.quantize or pair.dequantize).inputs[1])
                found.add(None if value is None else value.reshape(-1).tobytes())
        return len(found) > 1

    def points(self) -> list[Point]:
        """A point for each second place."""
        made = []
        for tensor, one in self.second.items():
            shared = {self.by_name[name].shared_scale for name in one.sources}
            scale_of = min(shared) if len(shared) == 1 else tensor
            reads = tuple(sorted(Read(use.node.key, use.index) for use in one.uses))
            rule, repeats = self.moving[id(one.why)].name, tuple(one.sources)
            kind = self.by_name[repeats[0]].format
            made.append(
                Point(tensor, "activation", reads, None, rule, one.reason, scale_of, "", repeats, one.raised, kind)
            )
        return made
