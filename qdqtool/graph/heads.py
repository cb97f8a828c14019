# SPDX-License-Identifier: Apache-2.0
"""Detection heads: the last weighted operators before outputs or post-processing, told apart by what follows.

A *terminal* operator is a weighted one from which some way leads to an output or a marker (NMS, TopK, ...) without
another weighted operator, and behind which no weighted operator lies but across a marker. Its *tail* is what lies on
those ways. Source of the definitions: the survey of TAO, modelopt, NNCF and YOLO tools; see docs/heads.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.rulebook import HeadRules

Label = Literal["regression", "score", "mixed"]


@dataclass(frozen=True)
class Head:
    """One terminal operator.

    Attributes:
        key: first output of the node.
        name: what to call it.
        label: bounded tails are a score; anything else, raw logits of a detector among it, is a regression; a tensor
        that is
            cut into both is mixed and treated as a regression.
        evidence: what the label rests on.
        outputs: the graph outputs and markers that it leads to.
    """

    key: str
    name: str
    label: Label
    evidence: str
    outputs: tuple[str, ...]


@dataclass
class _Tail:
    """What was met on the ways from one terminal operator."""

    ops: dict[str, None]
    ends: dict[str, None]
    bounded: bool = False
    unbounded: bool = False
    decoded: bool = False
    cut: bool = False
    pooled: bool = False


def find_heads(view: GraphView, rules: HeadRules) -> list[Head]:
    """Every terminal operator with its label, in file order."""
    terminals = _terminals(view, rules)
    tails = [_tail(view, node, rules) for node in terminals]
    alone = len(terminals) == 1
    return [_head(view, node, tail, rules, alone=alone) for node, tail in zip(terminals, tails, strict=True)]


def _terminals(view: GraphView, rules: HeadRules) -> list[Node]:
    """Weighted operators met first on the ways back from outputs and markers, less those that feed another one."""
    behind = _feeding_weights(view, rules)
    found: set[int] = set()
    seen: set[str] = set()
    stack = [view.root(name) for name in view.outputs]
    for node in view.nodes:
        if node.op in rules.markers:
            stack.extend(view.root(n) for i, n in enumerate(node.inputs) if n and rules.features.get(node.op) != i)
    while stack:
        name = stack.pop()
        maker = view.maker(name)
        if name in seen or maker is None or view.is_constant(name):
            continue
        seen.add(name)
        if weight_index(view, maker) is not None:
            found.add(id(maker))
        else:
            stack.extend(view.root(n) for n in maker.inputs if n)
    return [node for node in view.nodes if id(node) in found and id(node) not in behind]


def _feeding_weights(view: GraphView, rules: HeadRules) -> set[int]:
    """Nodes from which a weighted operator is reached without crossing a marker."""
    above: set[int] = set()
    stack = [node for node in view.nodes if weight_index(view, node) is not None]
    while stack:
        node = stack.pop()
        for name in node.inputs:
            source = view.maker(name) if name else None
            if source is not None and id(source) not in above and source.op not in rules.markers:
                above.add(id(source))
                stack.append(source)
    return above


def _tail(view: GraphView, start: Node, rules: HeadRules) -> _Tail:
    """Walk every way from a terminal operator; the state of a way is whether a bounding activation was passed."""
    tail = _Tail({}, {})
    seen: set[tuple[str, bool]] = set()
    stack = [(name, False) for name in start.outputs if name]
    while stack:
        name, bounded = stack.pop()
        if (name, bounded) in seen:
            continue
        seen.add((name, bounded))
        if view.is_output(name):
            tail.ends[name] = None
            tail.bounded, tail.unbounded = tail.bounded or bounded, tail.unbounded or not bounded
        for use in view.readers(name):
            _step(view, use, rules, tail, stack, bounded=bounded)
    return tail


def _step(
    view: GraphView, use: Use, rules: HeadRules, tail: _Tail, stack: list[tuple[str, bool]], *, bounded: bool
) -> None:
    node = use.node
    if node.op == "Shape":
        return
    tail.ops[node.op] = None
    if node.op in rules.markers and rules.features.get(node.op) != use.index:
        tail.ends[node.name] = None
        score = bounded or rules.scores.get(node.op) == use.index
        tail.bounded, tail.unbounded = tail.bounded or score, tail.unbounded or not score
        return
    tail.cut = tail.cut or node.op in rules.cuts
    tail.pooled = tail.pooled or node.op in rules.pools
    if node.op in rules.arithmetic and bounded and _with_constant(view, node):
        tail.decoded = True
    if is_product(node) and bounded:
        tail.decoded = True
    after = bounded or node.op in rules.bounded
    stack.extend((name, after) for name in node.outputs if name)


def _with_constant(view: GraphView, node: Node) -> bool:
    """Whether an operand is a constant that was stored, such as anchors, strides or variances."""
    return len(node.inputs) < 2 or any(view.is_constant(name) for name in node.inputs if name)


def _head(view: GraphView, node: Node, tail: _Tail, rules: HeadRules, *, alone: bool) -> Head:
    label, evidence = _label(view, node, tail, rules, alone=alone)
    return Head(node.key, node.name, label, evidence, tuple(tail.ends))


def _label(view: GraphView, node: Node, tail: _Tail, rules: HeadRules, *, alone: bool) -> tuple[Label, str]:
    ways = ", ".join(tail.ops) or "the output itself"
    if alone and not tail.decoded and _one_vector(view, node, tail, rules):
        return "score", f"the only head, one vector per image: {ways}"
    if tail.bounded and not tail.unbounded and not tail.decoded:
        return "score", f"bounded on every way: {ways}"
    if tail.bounded and tail.cut:
        return "mixed", f"cut into bounded and other parts: {ways}"
    if tail.decoded:
        return "regression", f"decoded behind a bounded activation: {ways}"
    return "regression", f"unbounded: {ways}"


def _one_vector(view: GraphView, node: Node, tail: _Tail, rules: HeadRules) -> bool:
    """Whether a head gives logits: pooled to one vector before or behind, and only moved or added to since."""
    simple = rules.moves | rules.pools | rules.bounded
    if any(op not in simple for op in tail.ops):
        return False
    if tail.pooled:
        return True
    index = weight_index(view, node)
    source = view.maker(node.inputs[1 - index]) if index in (0, 1) else None
    flat = node.op == "Gemm"
    for _ in range(4):
        if source is None:
            return flat
        if source.op in rules.pools or source.op == "Flatten":
            return True
        if source.op == "Reshape" and not flat:
            shape = view.array(source.inputs[1]) if len(source.inputs) > 1 else None
            return shape is not None and shape.size == 2
        if source.op not in rules.moves or len([n for n in source.inputs if n and not view.is_constant(n)]) != 1:
            return flat
        source = view.maker(source.inputs[0])
    return flat
