# SPDX-License-Identifier: Apache-2.0
"""All fusion rules as one trie keyed by (operator, constraint), and the longest chain of it that starts at a node."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.composite import Pattern, compile_composite, find_composite
from qdqtool.match.constraints import Constraint, constraint_named
from qdqtool.match.site import MatchSite
from qdqtool.rule_kinds import Fusion
from qdqtool.rule_steps import Step
from qdqtool.rulebook import RuleBook

_RESIDUAL = frozenset({"residual", "residual_projection"})
BOOKS = 24  # tries that are kept
_EITHER_INPUT = frozenset({"Add", "Mul", "Sub", "Max", "Min", "Where"})
_SECOND_INPUT = frozenset(
    {"computed_from_second"}
)  # guards of steps that a chain enters by another operand than the first


@dataclass
class _Branch:
    """A place in the trie: the rule that ends here, and what may follow.

    `steps` holds one branch per distinct step; `ops` and `composites` find them by operator and by name.
    """

    rule: Fusion | None = None
    steps: dict[tuple[tuple[str, ...], str], _Branch] = field(default_factory=dict)
    ops: dict[str, list[tuple[str, _Branch]]] = field(default_factory=dict)
    composites: dict[str, list[tuple[str, _Branch]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: its nodes (several for a composite), what comes out, and the guard that let it in."""

    nodes: tuple[Node, ...]
    output: str
    constraint: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The longest chain of a rule from one node on."""

    rule: Fusion
    links: tuple[Link, ...]


class Trie:
    """Fusion rules compiled: see `trie_of`, which does it once per rule book."""

    def __init__(
        self, rules: RuleBook, fusions: Sequence[Fusion] | None = None, guards: Mapping[str, Constraint] | None = None
    ) -> None:
        """Compile fusions of a rule book."""
        fusions = rules.fusions if fusions is None else fusions
        self._guards = guards or {}
        self._root = _Branch()
        self._patterns: dict[str, tuple[Pattern, ...]] = {
            rule.name: compile_composite(rule) for rule in rules.composites
        }
        self._first_ops = {
            name: {pattern.first_ops for pattern in patterns} for name, patterns in self._patterns.items()
        }
        self.behind_activation = any(_adds_behind_activation(rule, rules) for rule in fusions)
        adding = [rule for rule in fusions if any(step.constraint in _RESIDUAL for step in rule.steps)]
        self.adders = frozenset(
            op for rule in adding for name in rule.steps[0].names for op in self._expand(rule, name, rules)
        )
        for rule in fusions:
            self._add(self._root, rule, 0, rules)

    def _add(self, branch: _Branch, rule: Fusion, at: int, rules: RuleBook) -> None:
        """The steps of a rule from one on, after a branch: with an optional one first, then without it."""
        if at == len(rule.steps):
            branch.rule = branch.rule or rule
            return
        step = rule.steps[at]
        if step.constraint:
            self._guard(step.constraint)
        self._add(self._after(branch, rule, step, rules), rule, at + 1, rules)
        if step.optional:
            self._add(branch, rule, at + 1, rules)

    def _guard(self, name: str) -> Constraint:
        return self._guards.get(name) or constraint_named(name)

    def _after(self, branch: _Branch, rule: Fusion, step: Step, rules: RuleBook) -> _Branch:
        key = step.names, step.constraint
        if key not in branch.steps:
            after = branch.steps[key] = _Branch()
            for op in (op for name in step.names for op in self._expand(rule, name, rules)):
                table = branch.composites if op in self._patterns else branch.ops
                table.setdefault(op, []).append((step.constraint, after))
        return branch.steps[key]

    def _expand(self, rule: Fusion, name: str, rules: RuleBook) -> list[str]:
        if name[:1].isupper() or name in self._patterns:
            return [name]
        if name not in rules.sets:
            raise QdqError(
                rule.name, f"{name!r} is neither a set nor a composite", f"known sets: {', '.join(sorted(rules.sets))}"
            )
        return [op for member in rules.sets[name] for op in self._expand(rule, member, rules)]

    def longest(self, view: GraphView, node: Node) -> Chain | None:
        """The chain of most nodes that starts at `node`; None where no rule starts with it."""
        if node.op not in self._root.ops:
            return None
        best: Chain | None = None
        depth = 0
        stack: list[tuple[_Branch, tuple[Link, ...]]] = [(branch, (link,)) for branch, link in self._starts(view, node)]
        while stack:
            branch, links = stack.pop()
            size = sum(len(link.nodes) for link in links)
            if branch.rule is not None and size > depth:
                best, depth = Chain(branch.rule, links), size
            stack.extend((after, (*links, link)) for after, link in self._follow(view, branch, links, node))
        return best

    def _starts(self, view: GraphView, node: Node) -> Iterator[tuple[_Branch, Link]]:
        for guard, branch in self._root.ops.get(node.op, ()):
            if not guard or self._guard(guard)(MatchSite(view, node, start=node)):
                yield branch, Link((node,), node.outputs[0], guard)

    def _site(self, view: GraphView, node: Node, entry: str, start: Node) -> MatchSite:
        return MatchSite(view, node, entry, start, self.behind_activation, self.adders)

    def _follow(
        self, view: GraphView, branch: _Branch, links: tuple[Link, ...], start: Node
    ) -> Iterator[tuple[_Branch, Link]]:
        if not branch.steps:
            return
        entry = links[-1].output
        consumers = view.consumers(entry)
        if not consumers or view.is_output(entry) or entry in view.captured:
            return
        if len(consumers) == 1:
            use = consumers[0]
            for guard, after in branch.ops.get(use.node.op, ()):
                if use.index and use.node.op not in _EITHER_INPUT and guard not in _SECOND_INPUT:
                    continue
                if not guard or self._guard(guard)(self._site(view, use.node, entry, start)):
                    yield after, Link((use.node,), use.node.outputs[0], guard)
        if not branch.composites:
            return
        ops = tuple(sorted(use.node.op for use in consumers))
        for name, guards in branch.composites.items():
            found = find_composite(view, self._patterns[name], entry) if ops in self._first_ops[name] else None
            if found is not None:
                for guard, after in guards:
                    yield after, Link(found.nodes, found.output, guard)


@functools.lru_cache(maxsize=BOOKS)
def trie_of(rules: RuleBook, kind: Literal["fusions", "floats", "attentions"] = "fusions") -> Trie:
    """The chains of one kind in a rule book, compiled once."""
    return Trie(rules, getattr(rules, kind))


def _adds_behind_activation(rule: Fusion, rules: RuleBook) -> bool:
    seen = False
    for step in rule.steps:
        if step.constraint in _RESIDUAL:
            return seen
        seen = seen or any(name in rules.sets and "Relu" in rules.sets[name] for name in step.names)
    return False
