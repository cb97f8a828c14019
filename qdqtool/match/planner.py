# SPDX-License-Identifier: Apache-2.0
"""From a graph and the rules to its plan: groups, heads, places, and what stays in float. Nothing is edited.

A `Planner` finds once what the plans of one graph with other operators in float have in common (`node_rules.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace

from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, MIXED, NumberFormat, format_of_element, formats_of, number_format
from qdqtool.graph.heads import Head, find_heads
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_depthwise, is_product, pair_behind, weight_index
from qdqtool.match.attention import Attention, find_attentions
from qdqtool.match.groups import find_groups, float_groups
from qdqtool.match.node_rules import NodeRules
from qdqtool.match.pair_placement import Placer
from qdqtool.match.plan import Plan, PlanOptions, Point, Refusal, head_noun
from qdqtool.match.query_decoder import decoder_layers, query_nodes, reference_readers
from qdqtool.match.restrict_plan import activation_sites, leave_all_zero
from qdqtool.match.weight_points import weight_points
from qdqtool.options import compile_pattern
from qdqtool.rulebook import RuleBook

_NAMED = "named by --keep-float"


def make_plan(
    view: GraphView,
    options: PlanOptions | None = None,
    *,
    floats: Collection[str] | None = None,
    decisions: Decisions | None = None,
    all_zero: Collection[str] = (),
) -> Plan:
    """Decide about one graph; nothing is edited.

    The main graph only: bodies of control flow keep their float operators, each with a refusal.

    Raises:
        QdqError: a pattern that is no regular expression or matches nothing, a name that no weighted operator has, or
            rules that cannot be read.
    """
    return planner_of(view, options, decisions=decisions, all_zero=all_zero).plan(floats)


def planner_of(
    view: GraphView,
    options: PlanOptions | None = None,
    *,
    decisions: Decisions | None = None,
    all_zero: Collection[str] = (),
) -> Planner | MixedPlanner:
    """What makes the plans of a graph in one format, or in one for each operator."""
    mixed = options is not None and options.format == MIXED
    return (MixedPlanner if mixed else Planner)(view, options, decisions=decisions, all_zero=all_zero)


class Planner:
    """Plans of one graph that differ in what stays in float; what they have in common is found once."""

    def __init__(
        self,
        view: GraphView,
        options: PlanOptions | None = None,
        *,
        decisions: Decisions | None = None,
        all_zero: Collection[str] = (),
    ) -> None:
        """Look at a graph; see `make_plan`."""
        self.view, self.options, self.decisions = view, options or PlanOptions(), decisions or Decisions()
        self._all_zero = all_zero
        self._rules = rules = self.options.rule_book()
        self._nodes = NodeRules(view, rules)
        self._groups = tuple(find_groups(view, rules))
        self._heads = find_heads(view, rules.heads)
        self._kept = {key: ("keep-float", reason) for key, reason in (self.decisions.float_layers or {}).items()}
        self._kept |= {
            key: ("keep-float", reason) for key, reason in named_layers(view, self.options.keep_float).items()
        }
        by_rule = rules.attentions and self.options.decoder == "float"
        self._asked = query_nodes(view, self._heads, rules.heads) if by_rule else ()
        self._attentions: dict[frozenset[str], tuple[Attention, ...]] = {}
        self._bodies = _body_refusals(view)

    def plan(self, floats: Collection[str] | None = None, others: Mapping[str, tuple[str, str]] | None = None) -> Plan:
        """The plan with these in float, in place of what the options say of heads; see `make_plan`.

        `others` are not quantized here either: first outputs -> rule and reason.

        Raises:
            QdqError: a pattern that is not a regular expression or matches nothing.
        """
        view, rules, options = self.view, self._rules, self.options
        stay = _float_nodes(view, self._heads, options) if floats is None else set(floats)
        refused = self._kept
        if floats is None:
            decoder = _float_decoder(view, self._heads, rules, options)
            refused = {**decoder, **_float_depthwise(view, rules, options), **float_groups(view, rules), **refused}
        chosen, attentions = number_format(options.format), tuple[Attention, ...]()
        refused = {**refused, **_weights_of_other_formats(view, chosen), **(others or {})}
        if not chosen.blocks:
            attentions = self._attentions_with({*(floats or ()), *(others or {})})
            points_at = self.decisions.requantize_points
            placer = Placer(
                self._nodes, self._groups, stay | set(refused), refused, points_at, attentions, chosen.title
            )
            points, refusals = placer.place()
            stayed, attentions = placer.floats, placer.attentions
        else:
            kept = {**dict.fromkeys(stay, ("float-head", "a detection head that stays in float")), **refused}
            points, refusals = weight_points(view, chosen, options.block, kept)
            stayed = set(kept)
        if chosen != INT8:
            points = [replace(point, format=chosen) for point in points]
        if (noun := head_noun(self._heads)) != "detection head":
            reason = f"an {noun} that stays in float: its values have no bounds that the graph shows"
            refusals = [replace(one, reason=reason) if one.rule == "float-head" else one for one in refusals]
        refusals += self._bodies
        heads, sites = tuple(self._heads), tuple(sorted(stayed))
        made = Plan(tuple(points), tuple(refusals), heads, sites, self._groups, attentions)
        return leave_all_zero(view, made, self._all_zero)

    def _attentions_with(self, floats: Collection[str]) -> tuple[Attention, ...]:
        """Every attention, with some in float."""
        none = frozenset[str]()
        if none not in self._attentions:
            self._attentions[none] = self._find_attentions(none)
        own = frozenset(floats) & {one.key for one in self._attentions[none]}
        if own not in self._attentions:
            self._attentions[own] = self._find_attentions(own)
        return self._attentions[own]

    def _find_attentions(self, floats: frozenset[str]) -> tuple[Attention, ...]:
        return find_attentions(self.view, self._rules, self.options.attention, self.decisions, floats, self._asked)


class MixedPlanner:
    """Plans in which each operator has its number format, as `Decisions.formats` say: one plan of each, joined."""

    def __init__(
        self,
        view: GraphView,
        options: PlanOptions | None = None,
        *,
        decisions: Decisions | None = None,
        all_zero: Collection[str] = (),
    ) -> None:
        """Look at a graph; see `make_plan`.

        Raises:
            QdqError: no formats were decided.
        """
        self.view, self._formats = view, (decisions or Decisions()).formats
        if options is None or self._formats is None:
            raise QdqError(f"--format {MIXED}", "is decided by insert alone", "name one format")
        names = {INT8.name, *(name for name, _ in self._formats.values())}
        self._planners = {
            row.name: Planner(view, replace(options, format=row.name), decisions=decisions, all_zero=all_zero)
            for row in formats_of(MIXED)
            if row.name in names
        }

    def plan(self, floats: Collection[str] | None = None) -> Plan:
        """The plan with these in float, as `Planner.plan` makes it.

        A tensor has one pair. An operator that would read a second one, of a later format, stays in float.
        """
        formats = self._formats or {}
        torn: dict[str, tuple[str, str]] = {}
        while True:
            plans = {
                name: planner.plan(floats, {**_of_others(formats, name), **torn})
                for name, planner in self._planners.items()
            }
            taken: set[str] = set()
            found: set[str] = set()
            for plan in plans.values():
                found |= _readers_of(self.view, plan, taken)
                taken |= {point.tensor for point in plan.points}
            if not found:
                break
            torn |= dict.fromkeys(found, (MIXED, "what it reads has a pair of another format"))
        first = {point.tensor: name for name, plan in reversed(plans.items()) for point in plan.points}
        points = [
            replace(point, reason=f"{point.reason}; in {point.format.title} {why}")
            if (why := _choice_of(point, formats))
            else point
            for name, plan in plans.items()
            for point in plan.points
            if first[point.tensor] == name
        ]
        planned_in = {node.name: formats[node.key][0] for node in self.view.nodes if node.key in formats}
        refusals = [
            one
            for name, plan in plans.items()
            for one in plan.refusals
            if (planned_in.get(one.site) or INT8.name) == name
        ]
        whole = plans[INT8.name]
        own = {formats[one.key][0] for one in whole.attentions if one.key in formats}
        return replace(
            whole,
            points=tuple(points),
            refusals=tuple(refusals),
            float_nodes=tuple(sorted(set.intersection(*(set(plan.float_nodes) for plan in plans.values())))),
            attentions=next((plan.attentions for name, plan in plans.items() if name in own), whole.attentions),
        )


def _of_others(formats: Mapping[str, tuple[str, str]], name: str) -> dict[str, tuple[str, str]]:
    """What another format, or none, was chosen for."""
    return {key: (MIXED, reason) for key, (own, reason) in formats.items() if own != name}


def _readers_of(view: GraphView, plan: Plan, taken: Collection[str]) -> set[str]:
    """First outputs of the operators and attentions of a plan that read tensors which have pairs already."""
    points = {point.tensor for point in plan.activations}
    found = {one.key for one in plan.attentions if one.int8 and not set(one.points).isdisjoint(taken)}
    for point in plan.weights:
        for read in point.reads:
            sites = activation_sites(view, view.producers[read.node], points) & points
            if point.tensor in taken or not sites.isdisjoint(taken):
                found.add(read.node)
    return found


def _choice_of(point: Point, formats: Mapping[str, tuple[str, str]]) -> str:
    """Why the operator of a weight has its format."""
    return next((formats[read.node][1] for read in point.reads if read.node in formats), "")


def named_layers(view: GraphView, names: Collection[str]) -> dict[str, str]:
    """What stays in float by name, as `Decisions.float_layers` has it.

    Raises:
        QdqError: a name that no weighted operator has.
    """
    if not names:
        return {}
    known = {name: node for node in view.nodes for name in (*node.outputs, node.name) if name}
    weighted = {name: node for name, node in known.items() if weight_index(view, node) is not None}
    for name in names:
        if name not in weighted:
            near = difflib.get_close_matches(name, weighted, 3)
            op = known[name].op if name in known else ""
            reason = f"is a {op}, which has no weights" if op else "is not an operator of the model"
            todo = f"near: {', '.join(near)}" if near else "see sensitivity or insert --dry-run for the names"
            alike = [one.key for one in weighted.values() if one.proto.name == name]
            if alike:
                reason, todo = (
                    "is the name of several operators",
                    f"name what they make: {', '.join(sorted(set(alike)))}",
                )
            raise QdqError(f"--keep-float {name}", reason, todo)
    return {weighted[name].key: _NAMED for name in names}


def _float_depthwise(view: GraphView, rules: RuleBook, options: PlanOptions) -> dict[str, tuple[str, str]]:
    """Depthwise convolutions by first output, with rule and reason, where they are to stay in float."""
    if (options.depthwise or rules.policy.depthwise) == "int8":
        return {}
    reason = "a depthwise convolution: few multiply-adds for its bytes, and INT8 pads its channels"
    return {node.key: ("depthwise-float", reason) for node in view.nodes if is_depthwise(view, node)}


def _weights_of_other_formats(view: GraphView, chosen: NumberFormat) -> dict[str, tuple[str, str]]:
    """Products by first output, with rule and reason, whose weight the file holds in codes of another format."""
    found = {}
    for node in view.nodes:
        index = weight_index(view, node)
        pair = None if index is None else pair_behind(view, node.inputs[index])
        codes = None if pair is None else view.constant_tensor(pair.dequantize.inputs[0])
        row = None if codes is None else format_of_element(codes.data_type)
        if row is not None and row != chosen:
            found[node.key] = ("other-format", f"its weight is {row.title} in the file; --requantize replaces it")
    return found


def _float_decoder(
    view: GraphView, heads: list[Head], rules: RuleBook, options: PlanOptions
) -> dict[str, tuple[str, str]]:
    """The layers of a DETR-like decoder that are to stay in float, by first output, with rule and reason.

    Its class layers are among them: the layers of boxes beside them would read what is rounded for these.
    """
    if options.decoder == "float":
        nodes = decoder_layers(view, heads, rules.heads)
        rule, reason = (
            "decoder-float",
            "in a DETR-like decoder: few multiply-adds, and box values that INT8 would make wrong",
        )
    else:
        nodes = reference_readers(view, heads)
        rule, reason = "reference-float", "it reads the reference boxes of a decoder, which INT8 would make wrong"
    own = {head.key for head in heads if head.label in ("regression", "mixed")}
    return {node.key: (rule, reason) for node in nodes if node.key not in own}


def _float_nodes(view: GraphView, heads: list[Head], options: PlanOptions) -> set[str]:
    """First outputs of the weighted operators that stay in float."""
    by_policy = {
        "none": (),
        "regression": ("regression", "mixed"),
        "all": ("regression", "mixed", "score", "last layer"),
    }
    floats = {head.key for head in heads if head.label in by_policy[options.float_heads]}
    weighted = [node for node in view.nodes if weight_index(view, node) is not None]
    for pattern in options.heads:
        floats |= _matching(pattern, weighted, {head.key: head for head in heads}, "--heads")
    for pattern in options.not_heads:
        floats -= _matching(
            pattern, [n for n in weighted if n.key in {h.key for h in heads}], {h.key: h for h in heads}, "--not-heads"
        )
    return floats


def _matching(pattern: str, nodes: list[Node], heads: dict[str, Head], option: str) -> set[str]:
    expression = compile_pattern(option, pattern)
    found = set()
    for node in nodes:
        names = [node.name, *node.outputs, *(heads[node.key].outputs if node.key in heads else ())]
        if any(expression.search(name) for name in names if name):
            found.add(node.key)
    if not found:
        near = difflib.get_close_matches(pattern, [node.name for node in nodes], 3)
        todo = f"near: {', '.join(near)}" if near else "see insert --dry-run for the names"
        raise QdqError(f"{option} {pattern}", "matches no weighted operator", todo)
    return found


def _body_refusals(view: GraphView) -> list[Refusal]:
    refusals = []
    for body in view.bodies():
        refusals += [
            Refusal(f"{body.scope}/{node.name}", "control-flow", "TensorRT does not use INT8 inside If, Loop and Scan")
            for node in body.nodes
            if is_product(node)  # its weight may be an initializer of the graph around the body
        ]
    return refusals
