# SPDX-License-Identifier: Apache-2.0
"""The model that is decided about, with its plan: looked at anew after each edit. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from qdqtool.conditioning.point_consumers import PointConsumers, find_ways
from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView
from qdqtool.match.flow import Flow, commuting
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan


@dataclass(frozen=True)
class ConditionContext:
    """A plain model and where its pairs will stand.

    Attributes:
        proto: the model, of an opset in which Q/DQ can stand.
        folder: where its external data lie.
        view: of its graph.
        plan: what `insert` will do.
        flow: the operators that a pair may be moved across.
        ways: point -> who reads it.
    """

    proto: onnx.ModelProto
    folder: Path | None
    view: GraphView
    plan: Plan
    flow: Flow
    ways: Mapping[str, PointConsumers]


def look(
    proto: onnx.ModelProto,
    folder: Path | None,
    options: PlanOptions,
    decisions: Decisions | None = None,
    all_zero: Collection[str] = (),
) -> ConditionContext:
    """Index and plan a model; `decisions` and `all_zero` as in `make_plan`.

    Raises:
        QdqError: what `make_plan` refuses.
    """
    view = GraphView(proto.graph, folder)
    plan = make_plan(view, options, decisions=decisions, all_zero=all_zero)
    flow = commuting(view, options.rule_book())
    return ConditionContext(proto, folder, view, plan, flow, find_ways(view, flow, plan))
