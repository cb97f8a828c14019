# SPDX-License-Identifier: Apache-2.0
"""A scale for every float tensor of a plain graph, as the DLA wants: each from the most exact source that has one.

In this order: the Q/DQ themselves; the same values as a tensor that has one, both ways, to a fix-point; outputs that
are bounded whatever the data; what was calibrated; and, where that is asked for, what holds inside a fused group only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from qdqtool.formats import INT8
from qdqtool.graph.view import GraphView
from qdqtool.match.groups import Group
from qdqtool.match.propagate_scales import spread_scales
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.shared_scales import take_shared_scales
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale, ScaleTable

_KEEPS_RANGE = frozenset({"Relu"})


@dataclass(frozen=True)
class Complete:
    """Scales of every float tensor that has one.

    Attributes:
        scales: in topological order.
        own: the scale that a tensor had by itself before it took a shared one.
        shared_scales: tensor -> the one whose scale it took.
        left: float tensors without a scale, in topological order.
        exempt: those among them that have none by nature, with the reason (all zero, Inf).
    """

    scales: dict[str, Scale]
    own: dict[str, Scale]
    shared_scales: dict[str, str]
    left: tuple[str, ...]
    exempt: dict[str, str]


def complete_scales(
    view: GraphView,
    rules: RuleBook,
    points: Mapping[str, Scale],
    tensors: Iterable[str],
    table: ScaleTable,
    groups: Iterable[Group] = (),
    *,
    shared_scales: bool = True,
) -> Complete:
    """Find a scale for every tensor."""
    wanted = list(tensors)
    scales = dict(spread_scales(view, rules, points).scales)
    bounded = {name: scale for name, scale in bounded_scales(view, rules).items() if name not in scales}
    behind_bounds = spread_scales(view, rules, bounded, across_joins=False).scales if bounded else {}
    scales = {**behind_bounds, **scales}
    scales = {name: _original(points, bounded, name, scale) for name, scale in scales.items()}
    scales.update({name: table[name] for name in wanted if name in table and name not in scales})
    _fill_groups(view, rules, groups, scales)
    known = {name: scales[name] for name in sorted(wanted, key=lambda n: (view.level_of(n), n)) if name in scales}
    shared, taken = take_shared_scales(view, rules, known) if shared_scales else (known, {})
    left = tuple(name for name in wanted if name not in shared)
    behind = set(table.provenance.behind)
    exempt = {name: table.unscaled[name] for name in left if name in table.unscaled and name not in behind}
    return Complete(shared, {name: known[name] for name in taken}, taken, left, exempt)


def _original(points: Mapping[str, Scale], bounded: Mapping[str, Scale], name: str, scale: Scale) -> Scale:
    """The scale with the origin it began with, where spreading has passed it through unchanged."""
    return points.get(name) or bounded.get(name) or scale


def bounded_scales(view: GraphView, rules: RuleBook) -> dict[str, Scale]:
    """Outputs of operators that cannot leave [-amax, amax]."""
    return {
        node.outputs[0]: Scale.of(INT8.scale_of(rule.amax), origin="bound", method=node.op, rule=rule.name)
        for node, rule in RuleIndex(rules.bounds, rules).nodes(view)
    }


def _fill_groups(view: GraphView, rules: RuleBook, groups: Iterable[Group], scales: dict[str, Scale]) -> None:
    """Inside a fused group nothing is rounded: what lies before its activation takes the scale of what comes out."""
    derived: dict[str, Scale] = {}
    for group in groups:
        for before, after in zip(group.nodes[-2::-1], group.nodes[:0:-1], strict=False):
            source, target = after.outputs[0], before.outputs[0]
            scale = scales.get(source) or derived.get(source)
            if scale is None or target in scales or after.op not in _KEEPS_RANGE:
                break
            derived[target] = replace(scale, origin="derived", method=f"fused before {source}", rule=group.rule)
    if derived:
        scales.update(spread_scales(view, rules, {**scales, **derived}).scales)
        scales.update(derived)
