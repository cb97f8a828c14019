# SPDX-License-Identifier: Apache-2.0
"""Why each operator is in INT8 or in float: from the plan, from what data decided, and from what lint found."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView
from qdqtool.linting.finding import Finding
from qdqtool.match.plan import Plan
from qdqtool.reporting.layer_boxes import Reason

_NO_PAIRS = "an attention whose tensors have no Q/DQ pairs; the model does not say why"
# What lint says of operators that run in float though they have Q/DQ.
_FALLS_BACK = frozenset({"Q001", "Q013", "Q035", "Q036", "Q037", "Q038", "Q039"})


def reasons_of(view: GraphView, plan: Plan, decisions: Decisions, findings: Iterable[Finding]) -> dict[str, Reason]:
    """Name of a node -> how it is shown, and why."""
    names = {node.key: node.name for node in view.nodes}
    found: dict[str, Reason] = {}
    if view.pairs:
        for point in plan.points:
            for read in point.reads:
                if point.role == "activation":
                    found.setdefault(names.get(read.node, read.node), ("int8", point.reason))
                elif "activation" not in point.format.roles:
                    reason = f"its weight is {point.format.title}, and it multiplies floats"
                    found[names.get(read.node, read.node)] = ("fp32", reason)
    for refusal in plan.refusals:
        found[names.get(refusal.site, refusal.site)] = ("kept", refusal.reason)
    for one in plan.attentions if view.pairs else ():
        if not one.int8:
            measured = (decisions.attention or {}).get(one.key) or (_NO_PAIRS if one.is_open else one.reason)
            found |= dict.fromkeys((one.nodes[0].name, one.name), ("kept", measured))
    for key, reason in (decisions.float_layers or {}).items():
        found[names.get(key, key)] = ("kept", reason)
    known = set(names.values())
    for finding in findings:
        if (
            finding.code in _FALLS_BACK
            and finding.severity != "note"
            and finding.where in known
            and found.get(finding.where, ("int8", ""))[0] == "int8"
        ):
            found[finding.where] = ("lost", f"{finding.code}: {finding.message}")
    return found
