# SPDX-License-Identifier: Apache-2.0
"""What `insert` says operators in float cost: bytes that the predicted layers move, with and without them in float."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.errors import QdqError
from qdqtool.formats import MIXED, number_format
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import size_of
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.quantizing.place import place
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.scales import ScaleTable

_LARGEST = 64 << 20  # bytes of a model that is copied for this


def float_cost_notes(
    model: Model, decided: Plan, options: PlanOptions, table: ScaleTable, stored: ScaleTable | None
) -> list[str]:
    """A sentence on the bytes that operators move which are kept in float for accuracy, detection heads beside them.

    Floats count as FP16. Nothing where no operator is kept, for a DLA or RTX, where sizes are not known, and for large
    models, which would be copied. `table` has the scales; it and the `stored` one have the decisions.
    """
    kept = {one.site for one in decided.refusals if one.rule == "keep-float"}
    if options.target != "gpu" or not kept or size_of(model.proto) > _LARGEST:
        return []
    bare = [
        None if one is None else replace(one, decisions=replace(one.decisions, float_layers=None))
        for one in (stored, table)
    ]

    def moved(plan: Plan | None, **changes: str) -> int | None:
        planned, asked = PlannedModel.of(model.copy()), replace(options, keep_float=(), **changes)  # type: ignore[arg-type]
        placed = place(planned, plan or plan_pairs(planned.base, asked, *bare), table, asked)
        view = placed.model.view
        return forecast(view, predict_layers(view, options.trt_version)).bytes_moved

    heads = any(head.key in decided.float_nodes for head in decided.heads)
    try:
        found = [moved(decided), moved(None), *([moved(None, float_heads="none")] if heads else [])]
    except QdqError:  # a tensor that has no scale, as it was to stay in float
        return []
    known = [f"{count:,} bytes" for count in found if count is not None]
    if len(known) < len(found):
        return []
    title = options.format.upper() if options.format == MIXED else number_format(options.format).title
    also = f", {known[2]} with {decided.head_noun}s in {title} as well" if heads else ""
    text = f"the predicted layers move {known[0]}, and {known[1]} with the operators that stay in float for accuracy"
    return [f"{text} in {title}{also} (floats as FP16; not measured); --keep-float 0 keeps nothing"]
