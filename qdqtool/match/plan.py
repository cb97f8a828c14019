# SPDX-License-Identifier: Apache-2.0
"""The plan: where Q/DQ pairs stand in a graph and where not, each with its rule and reason. Passes carry it out."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from qdqtool.display import Cells, Displayed, counted, short_table
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.heads import Head
from qdqtool.match.attention import Attention
from qdqtool.match.groups import Group
from qdqtool.match.options import PlanOptions as PlanOptions


@dataclass(frozen=True, order=True, slots=True)
class Read:
    """Input number `index` of the node whose first output is `node`."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Point:
    """One tensor that is quantized.

    Attributes:
        tensor: its name in the plain model.
        role: an activation, or a weight.
        reads: the places that read it through the pair; every other consumer has the tensor itself.
        axis: of a weight with one scale per channel; None for one scale.
        rule: name of the rule that asked for it.
        reason: one sentence.
        shared_scale: first tensor of those that share one scale with it; its own name where it stands alone.
        group: what makes the tensor: the name of the fused group's first node, or "" for inputs and loose operators.
        repeats: of a second pair, the points whose values it holds once more: it takes the largest of their scales.
        raised: of a second pair, whether its scale is the next larger float32: the same integers, and no pair that the
            compiler merges with the first.
        format: of the codes that its pair makes.
        block: of a weight, how many values along `axis` share a scale; 0 where there are no blocks.
    """

    tensor: str
    role: Literal["activation", "weight"]
    reads: tuple[Read, ...]
    axis: int | None
    rule: str
    reason: str
    shared_scale: str
    group: str
    repeats: tuple[str, ...] = ()
    raised: bool = False
    format: NumberFormat = INT8
    block: int = 0

    def format_reason(self) -> str:
        """The reason, and whose scale it is where that is another's."""
        return self.reason + (f"; scale shared with {self.shared_scale}" if self.shared_scale != self.tensor else "")


@dataclass(frozen=True)
class Refusal:
    """A place that was considered and left in float."""

    site: str
    rule: str
    reason: str


@dataclass(frozen=True, repr=False)
class Plan(Displayed):
    """Everything that was decided about one graph."""

    points: tuple[Point, ...]
    refusals: tuple[Refusal, ...]
    heads: tuple[Head, ...]
    float_nodes: tuple[str, ...]
    groups: tuple[Group, ...]
    attentions: tuple[Attention, ...] = ()

    @property
    def activations(self) -> tuple[Point, ...]:
        """The points of computed tensors and inputs."""
        return tuple(point for point in self.points if point.role == "activation")

    @property
    def weights(self) -> tuple[Point, ...]:
        """The points of constants."""
        return tuple(point for point in self.points if point.role == "weight")

    def shared_scales(self) -> dict[str, list[str]]:
        """First tensor -> all tensors of one scale, those that stand alone among them."""
        classes: dict[str, list[str]] = {}
        for point in self.activations:
            classes.setdefault(point.shared_scale, []).append(point.tensor)
        return classes

    @property
    def head_noun(self) -> str:
        """What heads that stay in float are called: in a network that shows no boxes, they are output layers."""
        return head_noun(self.heads)

    def headline(self) -> str:
        """How much gets a pair, and how many places were left."""
        pairs = f"pairs on {counted(len(self.activations), 'activation')} and {counted(len(self.weights), 'weight')}"
        return pairs + (f", {counted(len(self.refusals), 'place')} left in float" if self.refusals else "")

    def summary(self) -> list[str]:
        """The first points and refusals, then the counts."""
        return [*short_table(self.rows()), *self.counts()]

    def rows(self) -> Cells:
        """One row for each point, refusal and head: where, what it is, the rule, the reason."""
        points = [(p.tensor, p.role, p.rule, p.format_reason()) for p in self.points]
        refusals = [(r.site, "float", r.rule, r.reason) for r in self.refusals]
        heads = [(h.name, "head", h.label, h.evidence) for h in self.heads]
        return [("tensor", "role", "rule", "reason"), *points, *refusals, *heads]

    def lines(self) -> list[str]:
        """What `qdqtool insert --dry-run` prints: every row, then the counts."""
        rows = [f"{name:<44} {role:<10} {rule:<20} {reason}" for name, role, rule, reason in self.rows()]
        return [*rows, *self.counts()]

    def counts(self) -> list[str]:
        """How many groups, pairs and shared scales there are, and what left how many places in float."""
        shared = sum(len(names) > 1 for names in self.shared_scales().values())
        activations = f"{counted(len(self.activations), 'activation')} ({counted(shared, 'shared scale')})"
        groups, weights = counted(len(self.groups), "fused group"), counted(len(self.weights), "weight")
        titles = list(dict.fromkeys(point.format.title for point in self.points))
        kinds = "" if titles in ([], [INT8.title]) else f" in {', '.join(titles)}"
        lines = [f"Q/DQ pairs on {activations} and {weights}{kinds}, around {groups}"]
        if any(one.int8 for one in self.attentions):
            within = {name for one in self.attentions if one.int8 for name in one.points}
            title = next((point.format.title for point in self.points if point.tensor in within), INT8.title)
            chosen = sum(one.int8 for one in self.attentions)
            lines[0] += f"; {chosen} of {counted(len(self.attentions), 'attention')} in {title}"
        if self.refusals:
            rules = sorted({r.rule for r in self.refusals})
            counts = ((rule, sum(r.rule == rule for r in self.refusals)) for rule in rules)
            left = "; ".join(
                counted(count, self.head_noun) if rule == "float-head" else _format_left(rule, count)
                for rule, count in counts
            )
            lines.append(f"left in float: {left}")
        return lines


_LEFT = {  # rule of a refusal -> what was left, and why
    "decoder-float": ("layer", " of a DETR-like decoder"),
    "keep-float": ("operator", " kept for accuracy"),
    "no-scale": ("place", " without a scale"),
    "weighted": ("operator", " whose weight cannot be quantized"),
    "mixed": ("operator", " that no format makes cheaper"),
    "weight-blocks": ("operator", " whose weight the number format does not take"),
    "attention": ("product", " of attention"),
    "control-flow": ("operator", " inside If, Loop or Scan"),
    "local-function": ("operator", " inside local functions"),
    "reference-float": ("layer", " that reads the boxes of the previous layer"),
}


def head_noun(heads: Collection[Head]) -> str:
    """What heads are called: detection heads where one gives boxes, or scores stand beside raw values."""
    labels = {head.label for head in heads}
    boxes = any(head.decoded for head in heads if head.label == "regression")
    return "detection head" if boxes or "mixed" in labels or {"regression", "score"} <= labels else "output layer"


def _format_left(rule: str, count: int) -> str:
    """How many places one rule left in float: `3 detection heads`."""
    what, why = _LEFT.get(rule, ("place", f" by the rule {rule}"))
    return counted(count, what) + why


def explain(plan: Plan, name: str, options: PlanOptions | None = None) -> list[str]:
    """What was decided about a tensor or node, a line each, then each rule's reason, source and standing.

    Raises:
        QdqError: nothing of that name was considered; the nearest names are given.
    """
    inside = [
        node for nodes in (*(g.nodes for g in plan.groups), *(a.nodes for a in plan.attentions)) for node in nodes
    ]
    keys = {name, *(node.key for node in inside if node.name == name)}
    points = [p for p in plan.points if name == p.tensor or any(read.node in keys for read in p.reads)]
    lines = [
        f"{p.tensor}: {p.role} quantized by rule {p.rule}: {p.reason}"
        + (f" (scale shared with {p.shared_scale})" if p.shared_scale != p.tensor else "")
        for p in points
    ]
    lines += [f"{r.site}: left in float by rule {r.rule}: {r.reason}" for r in plan.refusals if r.site == name]
    lines += [f"{h.name}: {h.label} head: {h.evidence}" for h in plan.heads if name in (h.key, h.name)]
    for group in plan.groups:
        if any(name in (node.key, node.name) for node in group.nodes):
            lines.append(f"{name}: in the group of rule {group.rule}: {' > '.join(node.name for node in group.nodes)}")
    lines += [_explained(one, name) for one in plan.attentions if any(name in (n.key, n.name) for n in one.nodes)]
    if lines:
        rules = [p.rule for p in points]
        rules += [r.rule for r in plan.refusals if r.site == name]
        rules += [g.rule for g in plan.groups if any(name in (node.key, node.name) for node in g.nodes)]
        rules += [one.rule for one in plan.attentions if any(name in (node.key, node.name) for node in one.nodes)]
        return lines + _sources(rules, options or PlanOptions())
    known = (
        {p.tensor for p in plan.points}
        | {r.site for r in plan.refusals}
        | {n.name for g in plan.groups for n in g.nodes}
        | {n.name for one in plan.attentions for n in one.nodes}
    )
    near = difflib.get_close_matches(name, sorted(known), 3)
    raise QdqError(name, "no rule considered this name", f"near: {', '.join(near)}" if near else "see insert --dry-run")


def _explained(one: Attention, name: str) -> str:
    """What was decided about the attention that a node is part of."""
    nodes = " > ".join(node.name for node in one.nodes)
    return f"{name}: in an attention {'in INT8' if one.int8 else 'left in float'}: {one.reason} ({nodes})"


def _sources(names: list[str], options: PlanOptions) -> list[str]:
    """Why, where that is written and how sure it is, of each rule that comes from a rules file."""
    book = options.rule_book()
    rules = [book.rule(name) for name in dict.fromkeys(names) if name in book.names]
    return [f"rule {rule.name}: {rule.why} ({rule.status}; {rule.see})" for rule in rules]
