# SPDX-License-Identifier: Apache-2.0
"""What `insert` says operators in float cost: bytes that the predicted layers move, with and without them in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import size_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.passes.insert import insert_pairs
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.insert_decide import decide

_LARGEST = 64 << 20  # bytes of a model that is copied for this
Scales = Callable[[GraphView, Plan], Mapping[str, Scale]]


def float_cost_notes(
    base: Model,
    decided: Plan,
    options: PlanOptions,
    tables: tuple[ScaleTable | None, ...],
    scales: Scales,
) -> list[str]:
    """A sentence on the bytes that operators move which are kept in float for accuracy, detection heads beside them.

    Floats count as FP16. Nothing where no operator is kept, for a DLA or RTX, where sizes are not known, and for large
    models, which would be copied.
    """
    kept = {one.site for one in decided.refusals if one.rule == "keep-float"}
    if options.target != "gpu" or not kept or size_of(base.proto) > _LARGEST:
        return []

    bare = tuple(one if one is None else _without_kept(one) for one in tables)

    def moved(plan: Plan | None, **changes: str) -> int | None:
        copy = base.copy()
        view, asked = copy.view, replace(options, keep_float=(), **changes)  # type: ignore[arg-type]
        plan = with_second_pairs(view, plan or decide(copy.proto, view, asked, *bare), asked.rule_book())
        insert_pairs(view, plan, scales(view, plan))
        view = copy.view
        return forecast(view, predict_layers(view, options.trt_version)).bytes_moved

    heads = any(head.key in decided.float_nodes for head in decided.heads)
    try:
        found = [moved(decided), moved(None), *([moved(None, float_heads="none")] if heads else [])]
    except QdqError:  # a tensor that has no scale, as it was to stay in float
        return []
    known = [f"{count:,} bytes" for count in found if count is not None]
    if len(known) < len(found):
        return []
    also = f", {known[2]} with {decided.head_noun}s in INT8 as well" if heads else ""
    text = f"the predicted layers move {known[0]}, and {known[1]} with what is kept in float for accuracy in INT8{also}"
    return [f"{text} (floats as FP16; not measured); --keep-float 0 keeps nothing"]


def _without_kept(table: ScaleTable) -> ScaleTable:
    return replace(table, decisions=replace(table.decisions, float_layers=None))
