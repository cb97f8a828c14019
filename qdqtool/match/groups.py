# SPDX-License-Identifier: Apache-2.0
"""The groups of a graph that TensorRT runs as one layer each. Not where their Q/DQ pairs stand (`plan.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.match.fusion_chains import Chain, trie_of
from qdqtool.rulebook import RuleBook


@dataclass(frozen=True, slots=True)
class Group:
    """A weighted operator and what fuses with it.

    Attributes:
        rule: name of the fusion rule.
        nodes: its nodes, the weighted one first.
        output: the tensor that leaves it.
        residual: where the other branch of its residual Add comes in, if it has one.
    """

    rule: str
    nodes: tuple[Node, ...]
    output: str
    residual: Use | None

    @property
    def start(self) -> Node:
        """The weighted operator."""
        return self.nodes[0]

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """What the group is, whatever the order of the node list: its rule and the first outputs of its nodes."""
        return self.rule, frozenset(node.key for node in self.nodes)


def find_groups(view: GraphView, rules: RuleBook) -> list[Group]:
    """Every fused group, the longest chain winning, in file order of their first nodes.

    A node belongs to one group: where two chains end in the same Add, `residual` has decided for one of them.
    """
    trie = trie_of(rules)
    groups = []
    for node in view.nodes:
        chain = trie.longest(view, node)
        if chain is not None:
            groups.append(_group(view, chain))
    return groups


def float_groups(view: GraphView, rules: RuleBook) -> dict[str, tuple[str, str]]:
    """Weighted operators that have no INT8 kernel with what fuses after them: first output -> rule and reason."""
    if not rules.floats:
        return {}
    trie = trie_of(rules, "floats")
    chains = ((node, trie.longest(view, node)) for node in view.nodes)
    return {node.key: (chain.rule.name, chain.rule.why) for node, chain in chains if chain is not None}


def _group(view: GraphView, chain: Chain) -> Group:
    nodes = tuple(node for link in chain.links for node in link.nodes)
    residual = None
    for before, link in zip(chain.links, chain.links[1:], strict=False):
        if link.constraint == "residual":
            add = link.nodes[0]
            index = next(i for i, name in enumerate(add.inputs) if view.root(name) != before.output)
            residual = Use(add, index)
    return Group(chain.rule.name, nodes, chain.links[-1].output, residual)
