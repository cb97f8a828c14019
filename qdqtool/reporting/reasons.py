# SPDX-License-Identifier: Apache-2.0
"""Why each operator is in INT8 or in float: from the plan, from what data decided, and from what lint found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qdqtool.graph.view import GraphView
from qdqtool.linting.finding import Finding
from qdqtool.match.plan import Plan
from qdqtool.reporting.layer_boxes import Reason

# What lint says of operators that run in float though they have Q/DQ.
_FALLS_BACK = frozenset({"Q001", "Q013", "Q035", "Q036", "Q037", "Q038", "Q039"})


def reasons_of(view: GraphView, plan: Plan, kept: Mapping[str, str], findings: Iterable[Finding]) -> dict[str, Reason]:
    """Name of a node -> how it is shown, and why.

    Args:
        view: the graph; without a pair in it nothing is expected in INT8.
        plan: what `insert` decides about the graph.
        kept: first outputs of operators that data keeps in float -> the reason.
        findings: of lint; some say that a node runs in float though it has Q/DQ.
    """
    names = {node.key: node.name for node in view.nodes}
    found: dict[str, Reason] = {}
    if view.pairs:
        for point in plan.points:
            for read in point.reads:
                if point.role == "activation":
                    found.setdefault(names.get(read.node, read.node), ("int8", point.reason))
    for refusal in plan.refusals:
        found[names.get(refusal.site, refusal.site)] = ("kept", refusal.reason)
    for key, reason in kept.items():
        found[names.get(key, key)] = ("kept", reason)
    known = set(names.values())
    for one in findings:
        if (
            one.code in _FALLS_BACK
            and one.severity != "note"
            and one.where in known
            and found.get(one.where, ("int8", ""))[0] == "int8"
        ):
            found[one.where] = ("lost", f"{one.code}: {one.message}")
    return found
