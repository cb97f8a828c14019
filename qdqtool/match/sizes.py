# SPDX-License-Identifier: Apache-2.0
"""What follows from sizes and constants alone, whatever the data: the one walk, and what its callers may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from qdqtool.graph.view import GraphView, Node
from qdqtool.rule_files import operator_set


def gives_sizes(node: Node) -> bool:
    """Whether an operator reads nothing but the shape of its input."""
    return node.op in operator_set("sizes")


def made_of_sizes(
    view: GraphView,
    begins: Callable[[Node], bool] = gives_sizes,
    *,
    follows: Callable[[Node, Set[str]], bool] = lambda node, known: True,
    nodes: Iterable[Node] | None = None,
    constants: bool = False,
) -> set[str]:
    """Tensors that are computed of sizes and constants alone."""
    known = set[str]()
    for node in sorted(view.nodes if nodes is None else nodes, key=lambda node: (node.level, node.index)):
        given = [view.root(name) for name in node.inputs if name]
        computed = [name for name in given if not view.is_constant(name)]
        some = given if constants else computed
        if begins(node) or (bool(some) and known.issuperset(computed) and follows(node, known)):
            known.update(node.outputs)
    return known - {""}
