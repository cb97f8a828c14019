# SPDX-License-Identifier: Apache-2.0
"""Brings a model into a form in which Q/DQ can stand."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.formats import formats_of
from qdqtool.graph.edit import clear_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import raise_ir
from qdqtool.passes.fold_constants import unfolded_note
from qdqtool.passes.integer_operators import FloatEnds, FloatInput
from qdqtool.passes.typed_pairs import PlannedModel, peel_model


@dataclass(frozen=True)
class Prepared:
    """A model that is ready for pairs, sentences on what was changed for them, and inputs that took integers."""

    planned: PlannedModel
    notes: tuple[str, ...]
    inputs: tuple[FloatInput, ...] = ()


def opset_for(options: PlanOptions) -> int:
    """The lowest opset that holds Q/DQ of the formats that are planned."""
    release = None if options.trt_version is None else (options.trt_version.major, options.trt_version.minor)
    return max(row.opset for row in formats_of(options.format, release))


def prepare(model: Model, options: PlanOptions, *, requantize: bool) -> Prepared:
    """Lift a model to the opset and IR version of Q/DQ; with `requantize` its pairs are taken out first.

    The model is edited. Inputs and outputs that pairs make integers of become floats.

    Raises:
        QdqError: an operator cannot be lifted, or pairs cannot be taken out.
    """
    notes, ends = normalize(model, opset_for(options)).notes, FloatEnds()
    raise_ir(model.proto)
    if requantize:
        opset = opset_of(model.proto)
        ends = peel_model(model, on_asymmetric="widen", ends=True, opset=opset, drop_scales=True).ends
        clear_metadata(model.proto)
    planned = PlannedModel.of(model)
    unfolded = unfolded_note(planned.base.view, options.rule_book())
    return Prepared(planned, (*notes, *ends.notes, *unfolded), ends.inputs)
