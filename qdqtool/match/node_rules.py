# SPDX-License-Identifier: Apache-2.0
"""What the rules say of single nodes of one graph, whatever is decided about the others: each is asked once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from qdqtool.graph.last_layers import made_of_constants
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.match.flow import Flow
from qdqtool.match.plan import Refusal
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.sizes import made_of_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import Commute, Int8Consumer, WeightAxis
from qdqtool.rulebook import RuleBook

NodeRule = Int8Consumer | Commute | WeightAxis


def no_pairs_for(node: Node) -> str:
    """Why a product with stored weights is left in float, of those that a set of the rules names."""
    return f"{node.op} has constant weights and gets no Q/DQ pairs"


class NodeRules:
    """The rules of a target over one graph, for any number of placements in it."""

    def __init__(self, view: GraphView, rules: RuleBook) -> None:
        """Begin with nothing asked."""
        self.view = view
        self._found: dict[tuple[str, int], NodeRule | None] = {}
        self._rules: dict[str, RuleIndex[Any]] = {
            "consumer": RuleIndex(rules.consumers, rules),
            "commute": RuleIndex(rules.commutes, rules),
            "weight": RuleIndex(rules.weights, rules),
        }
        self.flow = Flow(view, lambda node: self.rule("commute", node) is not None)

    def rule(self, kind: str, node: Node) -> NodeRule | None:
        """The first rule of a kind ("consumer", "commute", "weight") whose operator and constraint fit."""
        key = kind, id(node)
        if key not in self._found:
            self._found[key] = self._rules[kind].first(self.view, node)
        return self._found[key]

    @cached_property
    def products_left_float(self) -> tuple[Refusal, ...]:
        """A refusal for each product with stored weights that is no weighted operator, such as an LSTM."""
        left, fixed = operator_set("left_float"), made_of_sizes(self.view, constants=True)
        found = []
        for node in sorted(self.view.nodes, key=lambda node: (node.level, node.key)):
            if node.key in fixed:
                continue  # an embedding of positions: nothing of the data is multiplied
            if node.op not in left or weight_index(self.view, node) is not None:
                continue
            if any(name and self.view.is_constant(name) for name in node.inputs):
                found.append(Refusal(node.name, "weighted", no_pairs_for(node)))
        made = made_of_constants(self.view) if fixed else set()
        for node in self.view.nodes if made else ():
            if is_product(node) and len(node.inputs) > 1 and self._weight_in_graph(node, made):
                reason = f"its weight is computed from constants by {self._unfolded(node)} and gets no Q/DQ pair"
                found.append(Refusal(node.name, "weighted", reason))
        return tuple(found)

    def _unfolded(self, product: Node) -> str:
        """The operator that reads constants alone and makes none, at the beginning of the weight of a product."""
        found, node = "an operator", self.view.producer(product.inputs[1])
        while node is not None:
            found = node.op
            computed = (name for name in node.inputs if name and not self.view.is_constant(name))
            node = next(filter(None, map(self.view.producer, computed)), None)
        return found

    def _weight_in_graph(self, node: Node, made: set[str]) -> bool:
        """Whether a product reads a weight that is computed of constants, in a way that nobody here works out."""
        data, weight = (self.view.root(name) for name in node.inputs[:2])
        if data in made or self.view.is_constant(data) or weight not in made:
            return False
        source = self.view.producer(data)
        return source is None or source.op != "Softmax"  # the mean of a distribution, whose bins are no weight
