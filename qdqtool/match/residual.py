# SPDX-License-Identifier: Apache-2.0
"""Which branch of a residual Add fuses with it; the other one gets the Q/DQ pair."""

from __future__ import annotations

import heapq

from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.site import MatchSite
from qdqtool.rule_files import operator_set

# How many nodes are looked at on the way back to the common ancestor: more than any residual block has, few enough
# that long skip connections do not make the search quadratic.
_REACH = 512
_AFFINE = frozenset({"BatchNormalization", "Add", "Mul"})
_GATES = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Softplus"})


def fused_branch(site: MatchSite) -> str | None:
    """The operand of an Add that comes straight out of a weighted operator and fuses with it; None where neither can.

    With two candidates the one with more weighted operators back to the branches' common ancestor fuses: the skip, or
    the projection, gets the pair. On a tie the first operand fuses.
    """
    able = able_branches(site)
    if len(able) < 2:
        return able[0] if able else None
    first, second = branch_weights(site.view, able[0], able[1])
    return able[1] if second > first else able[0]


def able_branches(site: MatchSite) -> list[str]:
    """The operands of an Add, in order, that come straight out of a weighted operator and could fuse with it."""
    names = [site.view.root(name) for name in site.node.inputs[:2]]
    if names[0] == names[1]:
        return []
    return [name for name in names if _ends_chain(site, name)]


def _ends_chain(site: MatchSite, name: str) -> bool:
    """Whether `name` is made by a weighted operator, with nothing but what fuses between, and read by the Add alone."""
    view, consumer, behind_activation = site.view, site.node, site.behind_activation
    while True:
        if view.is_output(name) or name in view.captured:
            return False
        shared = any(use.node is not consumer for use in view.consumers(name))
        if shared and not (behind_activation and _gate_of(view, name, consumer)):
            return False
        node = view.producer(name)
        if node is None:
            return False
        if weight_index(view, node) is not None:
            return site.adders is None or node.op in site.adders
        fuses = node.op in _AFFINE or (behind_activation and node.op in operator_set("act"))
        inputs = [view.root(n) for n in node.inputs if n and not view.is_constant(n)]
        if behind_activation and node.op == "Mul" and len(inputs) == 2:
            inputs = _gated(view, inputs)
        if not fuses or len(inputs) != 1:
            return False
        consumer, name = node, inputs[0]


def _gated(view: GraphView, names: list[str]) -> list[str]:
    """For x * f(x) the one tensor x, where nothing else reads what lies inside of f; else both operands."""
    for name, other in (names, names[::-1]):
        while _read_once(view, other):
            gate = view.producer(other)
            if gate is None or gate.op not in _GATES:
                break
            other = view.root(gate.inputs[0])
            if other == name:
                return [name]
    return names


def _read_once(view: GraphView, name: str) -> bool:
    return len(view.consumers(name)) == 1 and not view.is_output(name) and name not in view.captured


def _gate_of(view: GraphView, name: str, mul: Node) -> bool:
    """Whether every consumer of `name` but the Mul is the gate of that same Mul."""
    operands = [view.root(n) for n in mul.inputs if n and not view.is_constant(n)]
    return (
        mul.op == "Mul" and len(operands) == 2 and _gated(view, operands) == [name] and len(view.consumers(name)) == 2
    )


def branch_weights(view: GraphView, first: str, second: str) -> tuple[int, int]:
    """Weighted operators on either branch back to their nearest common ancestor.

    Nodes are visited from the deepest level up, so the first node that both branches reach is the nearest ancestor,
    whatever the order of the node list. Where it is further than `_REACH` nodes away, what was counted so far decides.
    """
    marks: dict[str, int] = {}
    heap: list[tuple[int, str]] = []
    counts = [0, 0]

    def reach(name: str, branch: int) -> None:
        name = view.root(name)
        if name and not view.is_constant(name):
            if name not in marks:
                heapq.heappush(heap, (-view.level_of(name), name))
            marks[name] = marks.get(name, 0) | branch

    reach(first, 1)
    reach(second, 2)
    for _ in range(_REACH):
        if not heap:
            break
        _, name = heapq.heappop(heap)
        branch, node = marks[name], view.producer(name)
        if branch == 3 or node is None:
            break
        counts[branch - 1] += weight_index(view, node) is not None
        for source in node.inputs:
            reach(source, branch)
    return counts[0], counts[1]
