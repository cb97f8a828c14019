# SPDX-License-Identifier: Apache-2.0
"""Which rule of a kind takes a node: by its operator, then by the guard. What the rule is for is not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from qdqtool.graph.view import GraphView, Node
from qdqtool.match.constraints import WithSets, constraint_named, operators
from qdqtool.match.site import MatchSite
from qdqtool.rule_steps import Step


class NamesOperators(Protocol):
    """A rule of any kind that names operators by its steps."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The operators, each with its guard."""


AnyRule = TypeVar("AnyRule", bound=NamesOperators)


class RuleIndex(Generic[AnyRule]):
    """The rules of one kind by the operators that they name, sets spelled out."""

    def __init__(self, kind: Iterable[AnyRule], rules: WithSets) -> None:
        """Index some rules of a rule book."""
        self._by_op: dict[str, list[tuple[AnyRule, str]]] = {}
        for rule in kind:
            for step in rule.steps:
                for op in operators(step, rules):
                    self._by_op.setdefault(op, []).append((rule, step.constraint))

    def __bool__(self) -> bool:
        """Whether some rule names an operator."""
        return bool(self._by_op)

    def first(self, view: GraphView, node: Node) -> AnyRule | None:
        """The first rule that names the operator and whose guard lets the node through."""
        named = self._by_op.get(node.op)
        if named is None:
            return None
        rule, guard = named[0]
        if not guard:
            return rule
        site = MatchSite(view, node, start=node)
        return next((rule for rule, guard in named if not guard or constraint_named(guard)(site)), None)

    def nodes(self, view: GraphView) -> Iterator[tuple[Node, AnyRule]]:
        """Every node that some rule takes, in file order, with the first such rule."""
        for node in view.nodes:
            rule = self.first(view, node)
            if rule is not None:
                yield node, rule
