# SPDX-License-Identifier: Apache-2.0
"""The plan of a model: where pairs stand, and the scales that need no data. Nothing is edited or run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from qdqtool.decisions import Decisions
from qdqtool.graph.inline_functions import products_in_functions
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, Refusal
from qdqtool.match.planner import make_plan
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.match.target_points import points_everywhere, rounds_everywhere
from qdqtool.passes.insert import activation_scales
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale, ScaleTable

_NOT_INLINED = "it is in a local function that cannot be inlined, of another opset than the model's"


def plan_pairs(
    model: Model,
    options: PlanOptions | None,
    *tables: ScaleTable | None,
    floats: Collection[str] | None = None,
    decisions: Decisions | None = None,
    all_zero: Collection[str] = (),
    everywhere: bool = True,
) -> Plan:
    """The plan of a model in FP32, before `settle` adds second pairs.

    Decisions and tensors that are all zero are those given and those of the tables; a later one wins. For a target that
    rounds every tensor (DLA), every float tensor gets a point, unless `everywhere` is False: then the fused groups
    alone. `floats` as in `make_plan`.

    `insert` plans once if scales are given or estimated from the graph as it is, and once more in three cases:

    - with data: calibration needs a plan first (which tensors need a scale, and whether anything is quantized at all),
      and its table then decides requantize points, layers that stay in float, and which tensors are all zero;
    - with an estimate and `fold_bn`: the estimate reads BatchNormalization, and the pairs stand in the graph without;
    - with an estimate for a model that has a table: a tensor with an estimated scale is not all zero.

    Raises:
        QdqError: what `make_plan` refuses, and for a DLA a version without one.
    """
    decisions, zeros = decisions or Decisions(), set(all_zero)
    for table in tables:
        if table is not None:
            decisions = decisions.then(table.decisions)
            zeros = (zeros - table.scales.keys()) | table.all_zero
    view = model.view
    decided = make_plan(view, options, floats=floats, decisions=decisions.within(view.producers), all_zero=zeros)
    inside = [Refusal(name, "local-function", _NOT_INLINED) for name in products_in_functions(model.proto)]
    if inside:
        decided = replace(decided, refusals=(*decided.refusals, *inside))
    if options is None or not everywhere or not rounds_everywhere(options):
        return decided
    return points_everywhere(model, decided, options, tables)


def estimate_points(view: GraphView, decided: Plan, input_range: tuple[float, float] | None) -> ScaleTable:
    """Scales of the points that have no pair yet, from the model itself; while its BatchNormalizations are there."""
    missing = [point.tensor for point in decided.activations if point.tensor not in view.pairs]
    if not missing:
        return ScaleTable()
    from qdqtool.datafree.estimate import estimate_scales

    return estimate_scales(view, missing, input_range)


def settle(
    view: GraphView,
    plan: Plan,
    rules: RuleBook,
    scales: Mapping[str, Scale] | None = None,
    *,
    given: Mapping[str, np.float32] | None = None,
) -> tuple[Plan, Mapping[str, Scale]]:
    """The plan as it is carried out, with second pairs, and the scale of each activation point; none without `scales`.

    `given` holds scales that may differ within a group, such as those of a cache (`with_second_pairs`).
    """
    settled = with_second_pairs(view, plan, rules, given)
    return settled, {} if scales is None else activation_scales(view, settled, scales)
