# SPDX-License-Identifier: Apache-2.0
"""What `insert` and `plan` decide about a graph, and the scales that need no data. Nothing is edited or run."""

from __future__ import annotations

from dataclasses import replace

import onnx

from qdqtool.datafree.estimate import estimate_scales
from qdqtool.decisions import Decisions
from qdqtool.graph.inline_functions import products_in_functions
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, Refusal
from qdqtool.match.planner import make_plan
from qdqtool.match.target_points import points_everywhere, rounds_everywhere
from qdqtool.scales import ScaleTable

_NOT_INLINED = "it is in a local function that cannot be inlined, of another opset than the model's"


def decide(proto: onnx.ModelProto, view: GraphView, options: PlanOptions | None, *tables: ScaleTable | None) -> Plan:
    """The plan of a graph, with the decisions and the tensors without a scale that come with tables.

    `insert` calls it once for a plain model whose scales are given, or estimated from the graph as it is. It calls it
    once more in three cases, since what the plan is made from is then another:

    - with data: calibration needs a plan first (which tensors must get a scale, and whether anything is quantized at
      all before hours of work), and its table then decides requantize points, layers that stay in float, and which
      tensors are all zero;
    - with an estimate and `fold_bn`: the estimate reads BatchNormalization, and the pairs stand in the graph without;
    - with an estimate for a model that has a table: what an estimate gives a scale is not all zero.
    """
    decisions = Decisions()
    all_zero: set[str] = set()
    for table in tables:
        if table is not None:
            decisions = decisions.then(table.decisions)
            all_zero = (all_zero - table.scales.keys()) | table.all_zero
    decided = make_plan(view, options, decisions=decisions.within(view.producers), all_zero=all_zero)
    inside = [Refusal(name, "local-function", _NOT_INLINED) for name in products_in_functions(proto)]
    if inside:
        decided = replace(decided, refusals=(*decided.refusals, *inside))
    if options is None or not rounds_everywhere(options):
        return decided
    return points_everywhere(proto, view, decided, options, tables)


def estimate_points(view: GraphView, decided: Plan, input_range: tuple[float, float] | None) -> ScaleTable:
    """Scales of the points that have no pair yet, from the model itself; while its BatchNormalizations are there."""
    missing = [point.tensor for point in decided.activations if point.tensor not in view.pairs]
    if not missing:
        return ScaleTable()

    return estimate_scales(view, missing, input_range)
