# SPDX-License-Identifier: Apache-2.0
"""Where the pairs stand: from every INT8 read back across operators that commute, until nothing changes. No edits."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

import onnx

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import is_product, weight_index, weight_type
from qdqtool.match.constraints import constraint_named, operators, reason_of
from qdqtool.match.groups import Group
from qdqtool.match.plan import Point, Read, Refusal
from qdqtool.match.site import MatchSite
from qdqtool.rulebook import Commute, Reader, RuleBook, Step, WeightAxis

_AnyRule = Reader | Commute | WeightAxis


class Placer:
    """The walk over one graph, and what it has found so far.

    Attributes:
        sites: tensor -> the reads that go through its pair, and the rule and reason of the first of them.
        carried: commuting nodes whose output carries INT8 values, since a pair stands before them.
    """

    def __init__(
        self,
        view: GraphView,
        rules: RuleBook,
        groups: Iterable[Group],
        floats: set[str],
        kept: Mapping[str, tuple[str, str]] | None = None,
        requantize_points: Collection[str] = (),
    ) -> None:
        """Begin with nothing found.

        Args:
            view: the graph.
            rules: of the target and version.
            groups: its fused groups.
            floats: first outputs of the weighted operators that stay in float.
            kept: those of them that are no detection heads -> the rule that keeps them in float, and the reason.
            requantize_points: tensors at which a pair stands though what makes them commutes: their readers have
                their own scale.
        """
        self.view, self.rules, self.floats = view, rules, floats
        self.kept, self.requantize_points = kept or {}, frozenset(requantize_points)
        self.group_of = {group.output: group for group in groups}
        self.sites: dict[str, dict[Use, None]] = {}
        self.why: dict[str, tuple[str, str]] = {}
        self.carried: set[int] = set()
        self.refusals: list[Refusal] = []
        self._refused: set[str] = set()
        self._tie: dict[str, str] = {}
        self._fresh: deque[str] = deque()
        self._found: dict[tuple[str, int], _AnyRule | None] = {}
        self._steps = {
            "reader": _by_op((rule, step) for rule in rules.readers for step in self._plain(rule.steps)),
            "commute": _by_op((rule, step) for rule in rules.commutes for step in self._plain(rule.steps)),
            "weight": _by_op((rule, step) for rule in rules.weights for step in self._plain(rule.steps)),
        }

    def _plain(self, steps: tuple[Step, ...]) -> list[Step]:
        """Steps with their sets spelled out."""
        return [Step((op,), step.constraint, step.optional) for step in steps for op in operators(step, self.rules)]

    # ------------------------------------------------------------------ the walk

    def place(self) -> tuple[list[Point], list[Refusal]]:
        """Every point and refusal of the graph; the same ones whatever the order of its node list (law L7)."""
        weighted = sorted(filter(is_product, self.view.nodes), key=lambda node: (node.level, node.key))
        quantized = [node for node in weighted if self._wants_int8(node)]
        for node in quantized:
            index = weight_index(self.view, node)
            if index is not None:
                rule = self._rule("reader", node)
                assert isinstance(rule, Reader)
                self._read(Use(node, 1 - index), rule.name, f"{node.op} {node.name} reads INT8")
        self._quantize_producers()
        self._pools_behind_groups()
        self._heads_share()
        points = self._activation_points() + self._weight_points(quantized)
        return points, self.refusals

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
        rule = self._rule("reader", node)
        if isinstance(rule, Reader) and rule.when == "always":
            return True
        kind = weight_type(self.view, node.inputs[index])
        odd = f"{reason_of('weight')}: element type {onnx.TensorProto.DataType.Name(kind)}"
        reason = "no rule reads it in INT8" if kind == onnx.TensorProto.FLOAT else odd
        self._refuse(node.name, "weighted", reason)
        return False

    def _read(self, use: Use, rule: str, reason: str) -> list[str]:
        """Let a place read INT8: find where its pair stands, back across what commutes. Gives the tensors found."""
        found: dict[str, None] = {}
        stack = [use]
        while stack:
            use = stack.pop()
            tensor = self.view.root(use.node.inputs[use.index])
            maker = self.view.producer(tensor)
            sources = self._through(tensor, maker)
            if not sources or maker is None:
                self._stand(tensor, use, rule, reason)
                found[tensor] = None
                continue
            self.carried.add(id(maker))
            stack.extend(reversed(sources))
            if len(sources) > 1:
                rule, reason = self._rule("commute", maker).name, f"{maker.op} {maker.name} joins tensors of one scale"  # type: ignore[union-attr]
        if len(found) > 1:
            self._join(list(found))
        return list(found)

    def _through(self, tensor: str, maker: Node | None) -> list[Use]:
        """The inputs of a commuting operator where the pair stands before it; none where it stands at `tensor`."""
        if maker is None or tensor in self.sites or tensor in self.requantize_points or self.view.is_constant(tensor):
            return []
        rule = self._rule("commute", maker)
        if not isinstance(rule, Commute):
            return []
        if rule.side == "after" and self._ends_group_for(maker):
            return []
        indices = range(len(maker.inputs)) if maker.op == "Concat" else range(1)
        if any(self.view.is_constant(maker.inputs[i]) for i in indices):
            self._refuse(maker.name, rule.name, "an input is constant: the pair stands behind it")
            return []
        return [Use(maker, index) for index in indices]

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
                    self._read(group.residual, group.rule, f"the skip of {group.residual.node.name} comes in as INT8")
                continue
            maker = self.view.producer(tensor)
            rule = None if maker is None else self._rule("reader", maker)
            if maker is None or not isinstance(rule, Reader) or rule.when != "quantized-output":
                continue
            indices = range(len(maker.inputs)) if rule.inputs == "all" else range(1)
            odd = next((maker.inputs[i] for i in indices if not self._from_int8(maker.inputs[i])), None)
            if odd is not None:
                self._refuse(maker.name, rule.name, f"its input {odd} is made in float")
                continue
            for index in indices:
                self._read(Use(maker, index), rule.name, f"{maker.op} {maker.name} is INT8 on both sides")

    def _from_int8(self, name: str) -> bool:
        """Whether a tensor comes, across what commutes, out of an operator that runs in INT8."""
        stack, seen = [self.view.root(name)], set[str]()
        while stack:
            tensor = stack.pop()
            if tensor in seen or tensor in self.sites:
                continue
            seen.add(tensor)
            maker = self.view.producer(tensor)
            if maker is None or self.view.is_constant(tensor):
                return False
            if isinstance(self._rule("commute", maker), Commute):
                wide = maker.inputs if maker.op == "Concat" else maker.inputs[:1]
                stack.extend(self.view.root(n) for n in wide if n)
                continue
            group = self.group_of.get(tensor)
            quantizable = isinstance(self._rule("reader", maker), Reader) and weight_index(self.view, maker) is None
            if not quantizable and (group is None or group.start.key in self.floats):
                return False
        return True

    def _pools_behind_groups(self) -> None:
        """A pair behind a pool is not needed where the pool's input got one for other readers."""
        for tensor in sorted(self.sites, key=lambda name: (self.view.level_of(name), name)):
            maker = self.view.producer(tensor)
            rule = None if maker is None else self._rule("commute", maker)
            if maker is not None and isinstance(rule, Commute) and rule.side == "after":
                source = self.view.root(maker.inputs[0])
                before = self.view.producer(source)
                if source in self.sites or (before is not None and id(before) in self.carried):
                    reads = self.sites.pop(tensor)
                    self.carried.add(id(maker))
                    for target in self._read(Use(maker, 0), *self.why.pop(tensor)):
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

    # ------------------------------------------------------------------ ties

    def _join(self, tensors: list[str]) -> None:
        roots = sorted({self._tie_of(name) for name in tensors}, key=lambda name: (self.view.level_of(name), name))
        for root in roots[1:]:
            self._tie[root] = roots[0]

    def _tie_of(self, name: str) -> str:
        while self._tie.get(name, name) != name:
            name = self._tie[name]
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
            rule = self._rule("weight", node)
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

    def _rule(self, kind: str, node: Node) -> _AnyRule | None:
        """The first rule of a kind whose operator and constraint fit."""
        candidates = self._steps[kind].get(node.op)
        if candidates is None:
            return None
        key = kind, id(node)
        if key not in self._found:
            site = MatchSite(self.view, node, start=node)
            fits = (rule for rule, step in candidates if not step.constraint or constraint_named(step.constraint)(site))
            self._found[key] = next(fits, None)
        return self._found[key]

    def _refuse(self, site: str, rule: str, reason: str) -> None:
        if site not in self._refused:
            self._refused.add(site)
            self.refusals.append(Refusal(site, rule, reason))


def _by_op(pairs: Iterable[tuple[_AnyRule, Step]]) -> dict[str, list[tuple[_AnyRule, Step]]]:
    table: dict[str, list[tuple[_AnyRule, Step]]] = {}
    for rule, step in pairs:
        table.setdefault(step.names[0], []).append((rule, step))
    return table
