# SPDX-License-Identifier: Apache-2.0
"""What a target that rounds every tensor asks of `insert` beside the plan: points everywhere, and ranges it fixes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.folding import FOLDING
from qdqtool.graph.heads import nodes_behind
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.match.full_scale_table import bounded_scales
from qdqtool.match.plan import Plan, PlanOptions, Point, Read, Refusal
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.shared_scales import shared_scale_classes
from qdqtool.match.sizes import made_of_sizes
from qdqtool.rule_files import operator_set
from qdqtool.rulebook import RuleBook, load_rules
from qdqtool.runtime.float_tensors import find_float_tensors
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import require_dla_model

_SHOWN = 3
_EMPTY = "--allow-empty writes it without Q/DQ"
_QUANTIZE = {  # rule of a refusal -> the option that quantizes what it leaves in float
    "float-head": "--float-heads none quantizes heads",
    "decoder-float": "--decoder int8 quantizes the decoder",
    "depthwise-float": "--depthwise int8 quantizes depthwise convolutions",
}
RULE = "every-tensor"
_ABOUT_WEIGHTS = frozenset({"float-head", "keep-float", "weighted", "control-flow"})


def rounds_everywhere(options: PlanOptions | None) -> bool:
    """Whether the target computes with every tensor rounded: the DLA, by a cache or (from 11.4.1) by Q/DQ."""
    return options is not None and load_rules(options.target).policy.rounds_everything


def points_everywhere(model: Model, decided: Plan, options: PlanOptions, tables: tuple[ScaleTable | None, ...]) -> Plan:
    """The plan with a point on every float tensor, but those of which a table says that they have no scale by nature.

    Tensors whose type nobody knows have no point either, and are reported as refusals.

    Raises:
        QdqError: a version without a DLA, a number format that it does not have.
    """
    if options.trt_version is not None:
        require_dla_model(options.trt_version)
    if options.format != INT8.name:
        raise QdqError("--format", f"a DLA does not compute in {options.format}", f"leave it out, which is {INT8.name}")
    rules = options.rule_book()
    unscaled: dict[str, str] = {}
    for table in tables:
        if table is not None:
            behind = frozenset(table.provenance.behind)
            unscaled.update({name: why for name, why in table.unscaled.items() if name not in behind})
    found = find_float_tensors(model, tables)
    unscaled.update(found.unknown)
    return every_tensor(model.view, decided, rules, (*found.names, *found.unknown), unscaled)


def with_fixed_ranges(view: GraphView, options: PlanOptions, scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """Scales as the target has them whatever the data: outputs that it gives a fixed range take that."""
    return {**scales, **bounded_scales(view, options.rule_book())}


def refuse_empty(view: GraphView, decided: Plan, where: object) -> None:
    """Refuse a plain model in which nothing would be quantized: what came out would be the model itself.

    Raises:
        QdqError: the plan has no point and the graph no pair; why the operators stay in float is reported. Not where a
            measurement keeps operators in float: those could be quantized.
    """
    if decided.points or view.pairs or any(one.rule == "keep-float" for one in decided.refusals):
        return
    reasons: dict[str, list[str]] = {}
    for one in decided.refusals:
        reasons.setdefault(one.reason, []).append(one.site)
    if not reasons:
        detail = _unfolded_weight(view) or "it has no Conv, ConvTranspose, Gemm or MatMul with constant weights"
    else:
        many = sorted(reasons.items(), key=lambda item: -len(item[1]))
        detail = "; ".join(f"{sites[0]}{_more(sites)}: {reason}" for reason, sites in many[:_SHOWN])
    rules = {one.rule for one in decided.refusals}
    todo = [step for rule, step in _QUANTIZE.items() if rule in rules]
    raise QdqError(where, f"has nothing to quantize ({detail})", ", ".join([*todo, _EMPTY]))


def _unfolded_weight(view: GraphView) -> str:
    """Which weight would be constant if an operator could make it of its constants, and why not; "" for none."""
    for node in view.every:
        if not is_product(node):
            continue
        for name in node.inputs[:2]:
            if (producer := _unfoldable(view, name)) is not None:
                shape = view.shape(producer.inputs[0])
                detail = f"it makes {producer.outputs[0]} of the constant {producer.inputs[0]}"
                shown = "" if shape is None else f" of shape {list(shape)[:8]}"
                return f"{node.key}: its weight comes from a {producer.op} that cannot be: {detail}{shown}"
    return ""


def _unfoldable(view: GraphView, name: str) -> Node | None:
    """The operator at the beginning of a tensor that reads constants alone and makes none; None where there is none."""
    while (node := view.producers.get(name)) is not None and node.op in FOLDING and node.inputs:
        if all(view.is_constant(source) for source in node.inputs if source):
            return None if view.is_constant(name) else node
        name = node.inputs[0]
    return None


def _more(sites: list[str]) -> str:
    return f" and {len(sites) - 1} more" if sites[1:] else ""


def every_tensor(
    view: GraphView, plan: Plan, rules: RuleBook, tensors: Iterable[str], unscaled: Mapping[str, str]
) -> Plan:
    """The plan with a point on every float tensor, one scale where the target wants one range.

    Some layers must compute in FP16: what decodes the values of a float head, and products of two ranges. A tensor
    that such layers alone read is not rounded; it has a point all the same, without a consumer, as an output of the
    graph has: the graph carries every scale that the cache holds.
    """
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
