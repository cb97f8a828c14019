# SPDX-License-Identifier: Apache-2.0
"""What a guard looks at: one operator, and the tensor by which a chain reaches it. No guard is here."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node


@dataclass(frozen=True, slots=True)
class MatchSite:
    """What a guard looks at.

    Attributes:
        view: the graph.
        node: the operator in question.
        entry: the tensor by which a chain comes in; "" at its start.
        start: the operator that the chain starts with; the node itself at its start.
        behind_activation: whether some rule fuses an Add after an activation.
        adders: operators that start a fusion with a residual Add; None for every weighted one.
    """

    view: GraphView
    node: Node
    entry: str = ""
    start: Node | None = None
    behind_activation: bool = False
    adders: frozenset[str] | None = None

    def others(self) -> list[str]:
        """The operands but the entry."""
        names = list(self.node.inputs)
        for index, name in enumerate(names):
            if self.view.root(name) == self.entry:
                del names[index]
                break
        return [name for name in names if name]
