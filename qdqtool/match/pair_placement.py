# SPDX-License-Identifier: Apache-2.0
"""Where the pairs stand: from every INT8 read back across operators that commute, until nothing changes. No edits."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import onnx

from qdqtool.formats import INT8
from qdqtool.graph.view import Node, Use
from qdqtool.graph.weighted import is_product, weight_index, weight_type
from qdqtool.match.attention import Attention, output_reads
from qdqtool.match.constraints import reason_of
from qdqtool.match.flow import value_inputs, walk
from qdqtool.match.groups import Group
from qdqtool.match.node_rules import NodeRules, no_pairs_for
from qdqtool.match.plan import Point, Read, Refusal
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import Commute, Int8Consumer, WeightAxis


class Placer:
    """The walk over one graph, and what it has found so far.

    Attributes:
        sites: tensor -> the reads that go through its pair, and the rule and reason of the first of them.
        carried: commuting nodes whose output carries INT8 values, since a pair stands before them.
    """

    def __init__(
        self,
        nodes: NodeRules,
        groups: Iterable[Group],
        floats: set[str],
        kept: Mapping[str, tuple[str, str]] | None = None,
        requantize_points: Collection[str] = (),
        attentions: Iterable[Attention] = (),
        title: str = INT8.title,
    ) -> None:
        """Begin with nothing found."""
        self.attentions, self._title = tuple(attentions), title
        self._nodes, self.view, self.floats = nodes, nodes.view, floats
        self.kept, self.requantize_points = kept or {}, frozenset(requantize_points)
        self.group_of = {group.output: group for group in groups}
        self.sites: dict[str, dict[Use, None]] = {}
        self.why: dict[str, tuple[str, str]] = {}
        self.carried: set[int] = set()
        self.refusals: list[Refusal] = []
        self._refused: set[str] = set()
        self._shared_with: dict[str, str] = {}
        self._fresh: deque[str] = deque()

    # ------------------------------------------------------------------ the walk

    def place(self) -> tuple[list[Point], list[Refusal]]:
        """Every point and refusal of the graph; the same ones whatever the order of its node list (law L7)."""
        weighted = sorted(filter(is_product, self.view.nodes), key=lambda node: (node.level, node.key))
        quantized = [node for node in weighted if self._wants_int8(node)]
        for node in quantized:
            index = weight_index(self.view, node)
            if index is not None:
                rule = self._nodes.rule("consumer", node)
                assert isinstance(rule, Int8Consumer)
                self._read(Use(node, 1 - index), rule.name, f"{node.op} {node.name} reads {self._title}")
        for one in self._nodes.products_left_float:
            self._refuse(one.site, one.rule, one.reason)
        self._place_attentions()
        self._quantize_producers()
        self._pools_behind_groups()
        self._heads_share()
        points = self._activation_points() + self._weight_points(quantized)
        return points, self.refusals

    def _place_attentions(self) -> None:
        """All five pairs of each attention in INT8; a refusal for each in float.

        The pairs of what goes in stand before what only rearranges values: after a Split or Gather of one product that
        makes queries, keys and values, so that each has a scale of its own, at no layer more (tests/rtx).
        """
        placed = []
        for one in self.attentions:
            if not one.int8:
                self._refuse(one.name, one.rule, one.reason)
                placed.append(one)
                continue
            uses = (*one.operands, *output_reads(self.view, one))
            points = dict.fromkeys(self._stand_before_moves(use, one) for use in uses)
            placed.append(replace(one, points=tuple(points)))
        self.attentions = tuple(placed)

    def _stand_before_moves(self, use: Use, one: Attention) -> str:
        """A pair for what an attention reads or gives, before what rearranged it; the tensor that it stands on."""
        output = use.node.inputs[use.index] == one.key
        while not output and self._before(use) is not None:
            before = self.view.producer(use.node.inputs[use.index])
            if before is None or before.op not in operator_set("rearranging"):
                break
            self.carried.add(id(before))
            use = Use(before, 0)
        tensor = self.view.root(use.node.inputs[use.index])
        self._stand(tensor, use, one.rule, f"all of the pairs of the attention {one.name}")
        return tensor

    def _wants_int8(self, node: Node) -> bool:
        """Whether a weighted operator is quantized; a refusal is recorded where not."""
        index = weight_index(self.view, node)
        if index is None:
            return False
        if node.key in self.kept:
            self._refuse(node.name, *self.kept[node.key])
            return False
        if node.key in self.floats:
            self._refuse(node.name, "float-head", "a detection head that stays in float")
            return False
        rule = self._nodes.rule("consumer", node)
        if isinstance(rule, Int8Consumer) and rule.when == "always":
            return True
        kind = weight_type(self.view, node.inputs[index])
        odd = f"{reason_of('weight')}: element type {onnx.TensorProto.DataType.Name(kind)}"
        reason = f"no rule reads it in {self._title}" if kind == onnx.TensorProto.FLOAT else odd
        if node.op in operator_set("left_float"):
            reason = no_pairs_for(node)
        self._refuse(node.name, "weighted", reason)
        return False

    def _read(self, use: Use, rule: str, reason: str) -> list[str]:
        """Let a place read INT8: find where its pair stands, back across what commutes. Gives the tensors found."""
        found: dict[str, None] = {}
        for at, across in walk([use], self._before):
            tensor = self.view.root(at.node.inputs[at.index])
            if not across:
                self._stand(tensor, at, rule, reason)
                found[tensor] = None
                continue
            producer = self.view.producers[tensor]
            self.carried.add(id(producer))
            commute = self._nodes.rule("commute", producer)
            if commute is not None and len(value_inputs(producer)) > 1:
                rule, reason = commute.name, f"{producer.op} {producer.name} joins tensors of one scale"
        if len(found) > 1:
            self._join(list(found))
        return list(found)

    def _before(self, use: Use) -> list[Use] | None:
        """The reads of a commuting operator where the pair stands before it; None where it stands at what is read."""
        tensor = self.view.root(use.node.inputs[use.index])
        producer = self.view.producer(tensor)
        if (
            producer is None
            or tensor in self.sites
            or tensor in self.requantize_points
            or self.view.is_constant(tensor)
        ):
            return None
        rule = self._nodes.rule("commute", producer)
        if not isinstance(rule, Commute):
            return None
        if rule.side == "after" and self._ends_group_for(producer):
            return None
        sources = self._nodes.flow.sources(producer)
        if any(self.view.is_constant(producer.inputs[source.index]) for source in sources):
            self._refuse(producer.name, rule.name, "an input is constant: the pair is after it")
            return None
        return sources

    def _ends_group_for(self, pool: Node) -> bool:
        """Whether a pool's input comes straight out of a fused group that nobody else reads in INT8."""
        source = self.view.root(pool.inputs[0])
        return source in self.group_of and source not in self.sites

    def _stand(self, tensor: str, use: Use, rule: str, reason: str) -> None:
        if tensor not in self.sites:
            self.sites[tensor] = {}
            self.why[tensor] = (rule, reason)
            self._fresh.append(tensor)
        self.sites[tensor][use] = None

    def _quantize_producers(self) -> None:
        """Both sides of what is INT8 by its output: residual branches, averages, elementwise operators."""
        while self._fresh:
            tensor = self._fresh.popleft()
            group = self.group_of.get(tensor)
            if group is not None:
                if group.residual is not None and group.start.key not in self.floats:
                    self._read(
                        group.residual,
                        group.rule,
                        f"the skip connection of {group.residual.node.name} is read in {self._title}",
                    )
                continue
            producer = self.view.producer(tensor)
            rule = None if producer is None else self._nodes.rule("consumer", producer)
            if producer is None or not isinstance(rule, Int8Consumer) or rule.when != "quantized-output":
                continue
            indices = range(len(producer.inputs)) if rule.inputs == "all" else range(1)
            odd = next((producer.inputs[i] for i in indices if not self._from_int8(producer.inputs[i])), None)
            if odd is not None:
                self._refuse(producer.name, rule.name, f"its input {odd} is computed in float")
                continue
            for index in indices:
                self._read(
                    Use(producer, index), rule.name, f"{producer.op} {producer.name} is {self._title} on both sides"
                )

    def _from_int8(self, name: str) -> bool:
        """Whether a tensor comes, across what commutes, out of an operator that runs in INT8."""
        return all(map(self._is_int8, self._nodes.flow.origins(name, lambda one: self.view.root(one) in self.sites)))

    def _is_int8(self, name: str) -> bool:
        """Whether a tensor has a pair already, or an operator makes it that can give out INT8."""
        tensor = self.view.root(name)
        producer = self.view.producer(tensor)
        if tensor in self.sites:
            return True
        if producer is None or self.view.is_constant(tensor):
            return False
        group = self.group_of.get(tensor)
        rule = self._nodes.rule("consumer", producer)
        quantizable = isinstance(rule, Int8Consumer) and weight_index(self.view, producer) is None
        return quantizable or (group is not None and group.start.key not in self.floats)

    def _pools_behind_groups(self) -> None:
        """A pair after a pool is not needed where the pool's input got one for other consumers."""
        for tensor in sorted(self.sites, key=lambda name: (self.view.level_of(name), name)):
            producer = self.view.producer(tensor)
            rule = None if producer is None else self._nodes.rule("commute", producer)
            if producer is not None and isinstance(rule, Commute) and rule.side == "after":
                source = self.view.root(producer.inputs[0])
                before = self.view.producer(source)
                if source in self.sites or (before is not None and id(before) in self.carried):
                    reads = self.sites.pop(tensor)
                    self.carried.add(id(producer))
                    for target in self._read(Use(producer, 0), *self.why.pop(tensor)):
                        self._join([target, tensor])
                    del reads

    def _heads_share(self) -> None:
        """A float operator with a weight reads the DQ of its INT8 siblings: the tensor is INT8 in memory anyway."""
        for node in self.view.nodes:
            index = weight_index(self.view, node)
            if index is not None and node.key in self.floats:
                use = Use(node, 1 - index)
                tensor = self.view.root(node.inputs[use.index])
                if tensor in self.sites:
                    self.sites[tensor][use] = None

    # ---------------------------------------------------------- shared scales

    def _join(self, tensors: list[str]) -> None:
        roots = sorted({self._tie_of(name) for name in tensors}, key=lambda name: (self.view.level_of(name), name))
        for root in roots[1:]:
            self._shared_with[root] = roots[0]

    def _tie_of(self, name: str) -> str:
        while self._shared_with.get(name, name) != name:
            name = self._shared_with[name]
        return name

    # ------------------------------------------------------------------ what comes out

    def _activation_points(self) -> list[Point]:
        order = sorted(self.sites, key=lambda name: (self.view.level_of(name), name))
        first: dict[str, str] = {}
        for name in order:
            first.setdefault(self._tie_of(name), name)
        points = []
        for name in order:
            reads = tuple(sorted(Read(use.node.key, use.index) for use in self.sites[name]))
            group = self.group_of.get(name)
            made_by = group.start.name if group else ""
            points.append(Point(name, "activation", reads, None, *self.why[name], first[self._tie_of(name)], made_by))
        return points

    def _weight_points(self, nodes: list[Node]) -> list[Point]:
        sites: dict[tuple[str, int | None], tuple[WeightAxis, list[Read], Node]] = {}
        for node in nodes:
            index = weight_index(self.view, node)
            rule = self._nodes.rule("weight", node)
            if index is None or not isinstance(rule, WeightAxis):
                continue
            name = self.view.root(node.inputs[index])
            site = sites.setdefault((name, rule.axis), (rule, [], node))
            site[1].append(Read(node.key, index))
        ordered = sorted(sites.items(), key=lambda item: (item[1][2].level, item[0][0], str(item[0][1])))
        return [
            Point(name, "weight", tuple(sorted(reads)), rule.axis, rule.name, rule.why, name, node.name)
            for (name, _), (rule, reads, node) in ordered
        ]

    def _refuse(self, site: str, rule: str, reason: str) -> None:
        if site not in self._refused:
            self._refused.add(site)
            self.refusals.append(Refusal(site, rule, reason))
