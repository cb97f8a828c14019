# SPDX-License-Identifier: Apache-2.0
"""Places the pairs of a plan, and fits the model to its target. Every Q/DQ model comes from here, trials among them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qdqtool.graph.model import Model
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.restrict_plan import share_scales
from qdqtool.match.target_points import rounds_everywhere, with_fixed_ranges
from qdqtool.passes.insert import Inserted
from qdqtool.passes.rewrites import apply_rewrites
from qdqtool.passes.stored_integers import store_integers
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.quantizing.plan import settle
from qdqtool.scales import ScaleTable


@dataclass(frozen=True)
class QuantizedModel:
    """A model with its pairs.

    Attributes:
        model: with Q/DQ.
        plan: the plan that was carried out, second pairs among its points.
        inserted: the pairs that were added or were there, with their scales.
        notes: sentences on how it was fitted to its target.
    """

    model: Model
    plan: Plan
    inserted: Inserted
    notes: tuple[str, ...] = ()


def place(
    planned: PlannedModel, plan: Plan, table: ScaleTable, options: PlanOptions, *, given: bool = False
) -> QuantizedModel:
    """Put the pairs of a plan into a model; it is edited.

    Tensors that share a scale get the largest of theirs. Unless scales are `given`, an output whose range the target
    fixes gets that range.

    Raises:
        QdqError: a point without a scale, a conflict, a weight with NaN or Inf. The model is untouched then.
    """
    settled, _ = settle(planned.base.view, plan, options.rule_book())
    scales = share_scales(settled, table.scales, table.all_zero)
    if not given and rounds_everywhere(options):
        scales = with_fixed_ranges(planned.base.view, options, scales)
    placed = QuantizedModel(planned.model, settled, planned.insert(settled, scales, given=given))
    if coded := {point.tensor for point in settled.weights if point.format.stored == "codes"}:
        store_integers(planned.model.view, coded)
    imported = {entry.domain for entry in planned.model.proto.opset_import}
    if any(point.format.has_two_levels for point in settled.activations) and "trt" not in imported:
        planned.model.proto.opset_import.add(domain="trt", version=1)
    return placed


def fit(quantized: QuantizedModel, options: PlanOptions, *, half: bool) -> QuantizedModel:
    """Rewrite a Q/DQ model as its target rewards it (`rewrites.py`); `half`: whether what is not INT8 is FP16."""
    notes = apply_rewrites(quantized.model, options.rule_book(), half=half)
    return replace(quantized, notes=(*quantized.notes, *notes))
