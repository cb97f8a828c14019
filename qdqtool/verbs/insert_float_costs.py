# SPDX-License-Identifier: Apache-2.0
"""What `insert` says operators in float cost: bytes that the predicted layers move, with and without them in float."""

from __future__ import annotations

from collections.abc import Sequence
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


def bytes_in_codes(
    model: Model, decided: Plan, options: PlanOptions, tables: tuple[ScaleTable | None, ScaleTable]
) -> list[int | None]:
    """What the predicted layers move without operators in float for accuracy; the second: heads not in float either.

    Floats count as FP16. None where a size is not known; nothing where no operator is kept, for a DLA or RTX, and for
    large models, which would be copied. `tables` are that which the model had, and that with the scales.
    """
    kept = {one.site for one in decided.refusals if one.rule == "keep-float"}
    if options.target != "gpu" or not kept or size_of(model.proto) > _LARGEST:
        return []
    bare = [
        None if one is None else replace(one, decisions=replace(one.decisions, float_layers=None)) for one in tables
    ]

    def moved(**changes: str) -> int | None:
        planned, asked = PlannedModel.of(model.copy()), replace(options, keep_float=(), **changes)  # type: ignore[arg-type]
        view = place(planned, plan_pairs(planned.base, asked, *bare), tables[1], asked).model.view
        return forecast(view, predict_layers(view, options.trt_version)).bytes_moved

    heads = any(head.key in decided.float_nodes for head in decided.heads)
    try:
        return [moved(), *([moved(float_heads="none")] if heads else [])]
    except QdqError:  # a tensor that has no scale, as it was to stay in float
        return []


def float_cost_notes(moved: int | None, in_codes: Sequence[int | None], decided: Plan, name: str) -> list[str]:
    """A sentence on the bytes that operators move which are kept in float for accuracy, detection heads beside them."""
    known = [f"{count:,} bytes" for count in (moved, *in_codes) if count is not None]
    if not in_codes or len(known) <= len(in_codes):
        return []
    title = name.upper() if name == MIXED else number_format(name).title
    also = f", {known[2]} with {decided.head_noun}s in {title} as well" if in_codes[1:] else ""
    text = f"the predicted layers move {known[0]}, and {known[1]} with the operators that stay in float for accuracy"
    return [f"{text} in {title}{also} (floats as FP16; not measured); --keep-float 0 keeps nothing"]
