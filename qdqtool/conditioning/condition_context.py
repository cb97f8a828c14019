# SPDX-License-Identifier: Apache-2.0
"""The model that is decided about, with its plan: looked at anew after each edit. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from qdqtool.conditioning.point_consumers import PointConsumers, find_ways
from qdqtool.decisions import Decisions
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.flow import Flow, commuting
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.quantizing.place import place
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.scales import Scale, ScaleTable


@dataclass(frozen=True)
class ConditionContext:
    """A plain model and where its pairs will be placed.

    Attributes:
        model: of an opset in which Q/DQ can be placed.
        view: the index of its graph as it was when it was planned; edits of the model leave it as it is.
        options: target, version, float heads.
        plan: what `insert` will do.
    """

    model: Model
    view: GraphView
    options: PlanOptions
    plan: Plan

    @cached_property
    def flow(self) -> Flow:
        """The operators that a pair may be moved across."""
        return commuting(self.view, self.options.rule_book())

    @cached_property
    def ways(self) -> Mapping[str, PointConsumers]:
        """Point -> who reads it."""
        return find_ways(self.view, self.flow, self.plan)


def look(
    model: Model, options: PlanOptions, decisions: Decisions | None = None, all_zero: Collection[str] = ()
) -> ConditionContext:
    """Plan a model; `decisions` and `all_zero` as in `plan_pairs`.

    Raises:
        QdqError: what `plan_pairs` refuses.
    """
    view = model.view
    return ConditionContext(
        model, view, options, plan_pairs(model, options, decisions=decisions, all_zero=all_zero, everywhere=False)
    )


def place_pairs(model: Model, options: PlanOptions, scales: Mapping[str, Scale]) -> None:
    """Insert the pairs that `insert` would with these scales; the model is edited."""
    plan = plan_pairs(model, options, everywhere=False)
    place(PlannedModel.of(model), plan, ScaleTable(dict(scales)), options, given=True)
