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
from qdqtool.passes.typed_pairs import PlannedModel, peel_model


@dataclass(frozen=True)
class Prepared:
    """A model that is ready for pairs, and sentences on what was lifted."""

    planned: PlannedModel
    notes: tuple[str, ...]


def opset_for(options: PlanOptions) -> int:
    """The lowest opset that holds Q/DQ of the formats that are planned."""
    release = None if options.trt_version is None else (options.trt_version.major, options.trt_version.minor)
    return max(row.opset for row in formats_of(options.format, release))


def prepare(model: Model, options: PlanOptions, *, requantize: bool, ends: bool = False) -> Prepared:
    """Lift a model to the opset and IR version of Q/DQ; with `requantize` its pairs are taken out first.

    The model is edited. `ends` as in `peel_pairs`.

    Raises:
        QdqError: an operator cannot be lifted, or pairs cannot be taken out.
    """
    notes = normalize(model, opset_for(options)).notes
    raise_ir(model.proto)
    if requantize:
        peel_model(model, on_asymmetric="widen", ends=ends, opset=opset_of(model.proto), drop_scales=True)
        clear_metadata(model.proto)
    planned = PlannedModel.of(model)
    return Prepared(planned, (*notes, *unfolded_note(planned.base.view, options.rule_book())))
