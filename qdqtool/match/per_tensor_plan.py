# SPDX-License-Identifier: Apache-2.0
"""The plan for a target that rounds every tensor: a point on each, one scale where the target wants one range.

Some layers must compute in FP16: what decodes the values of a float head, and products of two ranges. A tensor
that such layers alone read is not rounded; it has a point all the same, without a consumer, as an output of the graph
has: the graph carries every scale that the cache holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from qdqtool.graph.heads import nodes_behind
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan, Point, Read, Refusal
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.shared_scales import shared_scale_classes
from qdqtool.match.sizes import made_of_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook

RULE = "every-tensor"
_ABOUT_WEIGHTS = frozenset({"float-head", "keep-float", "weighted", "control-flow"})


def every_tensor(
    view: GraphView, plan: Plan, rules: RuleBook, tensors: Iterable[str], unscaled: Mapping[str, str]
) -> Plan:
    """The plan with a point on every float tensor."""
    there = {*view.inputs, *(name for node in view.nodes for name in node.outputs)} - made_of_sizes(view)
    wanted = [name for name in dict.fromkeys(tensors) if name in there and not view.is_constant(name)]
    halves = _decoding(view, plan, frozenset(wanted)) | _products(view, rules)
    names = sorted((n for n in wanted if n not in unscaled), key=lambda name: (view.level_of(name), name))
    ends = {group.output: group.start.name for group in plan.groups}
    shared = _shared_scales(view, rules, names)
    points = []
    for name in names:
        reads = tuple(sorted(_reads(view, name, halves)))
        reason = _reason(view, name, bool(reads))
        points.append(Point(name, "activation", reads, None, RULE, reason, shared.get(name, name), ends.get(name, "")))
    refusals = [one for one in plan.refusals if one.rule in _ABOUT_WEIGHTS]
    refusals += [Refusal(name, "no-scale", unscaled[name]) for name in wanted if name in unscaled]
    return replace(plan, points=(*points, *plan.weights), refusals=tuple(refusals))


def _reads(view: GraphView, name: str, halves: Collection[int]) -> list[Read]:
    """The places that read the rounded tensor; none where all of them compute in FP16."""
    sizes = operator_set("sizes")
    uses = [use for use in view.consumers(name) if use.node.op not in sizes]
    rounded = any(id(use.node) not in halves for use in uses)
    return [Read(use.node.key, use.index) for use in uses] if rounded else []


def _reason(view: GraphView, name: str, read: bool) -> str:
    if read:
        return "the DLA computes with every tensor rounded"
    what = "an output" if view.is_output(name) else "read in FP16"
    return f"{what}: the pair only carries the scale for the cache"


def _decoding(view: GraphView, plan: Plan, floats: Collection[str]) -> set[int]:
    """`id` of every node that works on the values of a float regression head, up to the next weighted operator."""
    stay = frozenset(plan.float_nodes)
    heads = [head.key for head in plan.heads if head.key in stay and head.label in ("regression", "mixed")]

    def onward(node: Node) -> list[str]:
        return [name for name in node.outputs if name in floats] if weight_index(view, node) is None else []

    return {id(node) for node in nodes_behind(view, heads, onward) if onward(node)}


def _products(view: GraphView, rules: RuleBook) -> set[int]:
    """`id` of every node whose inputs a rule leaves with two ranges: `peel --emit` tells them to compute in FP16."""
    return {id(node) for node, rule in RuleIndex(rules.shared_scales, rules).nodes(view) if rule.members == "none"}


def _shared_scales(view: GraphView, rules: RuleBook, names: list[str]) -> dict[str, str]:
    """Tensor -> the first of those that share its scale, in the order of the names."""
    place = {name: index for index, name in enumerate(names)}
    first: dict[str, str] = {}
    for members in shared_scale_classes(view, rules, place):
        top = min(members, key=lambda name: place[name])
        first.update(dict.fromkeys(members, top))
    return first
