# SPDX-License-Identifier: Apache-2.0
"""What `report` learns of a model without running it: layers, scales, findings, what NVIDIA's parser says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import onnx

from qdqtool.conditioning.edits import require_reference
from qdqtool.deploying.board_ratios import BoardRatio, over_boards
from qdqtool.engine.cost import Forecast
from qdqtool.engine.layer_work import LayerWork
from qdqtool.engine.predict import PredictedLayer
from qdqtool.errors import QdqError
from qdqtool.forecasting.model_layers import predict_engine, predict_engine_of
from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.edit import traced
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.linting.check_formats import formats_in
from qdqtool.linting.checks import checks_of, run_checks
from qdqtool.linting.finding import Finding
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.metadata import stored_table
from qdqtool.passes.peel import peel_pairs
from qdqtool.precision.widen import as_fp32
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.reporting.boxes import LayerBox
from qdqtool.reporting.layer_boxes import predicted_boxes
from qdqtool.reporting.reasons import reasons_of
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.scales import Scale, ScaleTable
from qdqtool.tensorrt_rtx.installed import find_library, how_to_install, require_library
from qdqtool.tensorrt_rtx.parser import parse_opened
from qdqtool.verbs.forecast import Engines
from qdqtool.workflows.report_options import ReportOptions

if TYPE_CHECKING:
    from qdqtool.tensorrt_rtx.parser import ParserVerdict


@dataclass(frozen=True)
class LookedModel:
    """What the model itself tells.

    Attributes:
        context: the model as lint sees it.
        layers: the predicted ones.
        forecast: their cost.
        pairs: activation -> the scale of its pair.
        table: of every tensor, from the metadata.
        plain: the model in FP32 without its pairs; None where they cannot be taken out.
        bare: the forecast of the model that the user gave: the reference, else `plain` without what `condition` added;
            None for a model without pairs, too.
        findings: of lint.
        parser: NVIDIA's verdict, or why it was not asked.
        notes: what cannot be shown, a sentence each.
        ratios: FP16 beside INT8, by board: INT8 with the pairs of the model, else with those that `insert` would place;
            empty where a size is not known.
        work: what each predicted kernel computes and moves; None where a size is not known.
    """

    context: LintContext
    layers: tuple[PredictedLayer, ...]
    forecast: Forecast
    pairs: Mapping[str, Scale]
    table: ScaleTable
    plain: Model | None
    bare: Forecast | None
    findings: Sequence[Finding]
    parser: ParserVerdict | str
    notes: tuple[str, ...]
    ratios: tuple[BoardRatio, ...] = ()
    work: Sequence[LayerWork] | None = None
    row: NumberFormat = INT8

    @cached_property
    def plan(self) -> Plan:
        """What `insert` decides about this graph in the format of its pairs."""
        target = RTX_TARGET if self.context.target == RTX_TARGET else "gpu"
        if self.row == INT8 or self.plain is None:
            return self.context.plan
        return plan_pairs(self.plain, PlanOptions(target, self.context.asked, format=self.row.name))

    @property
    def view(self) -> GraphView:
        """The index of the main graph."""
        return self.context.view


def look_at(opened: Model, options: ReportOptions) -> LookedModel:
    """Look at a model without running it.

    Raises:
        MissingPackageError: the parser is asked for and not installed.
    """
    context = LintContext(opened, options.target, options.trt_version)
    parser = _parser(opened, options)
    context.verdict = None if isinstance(parser, str) else parser
    target = options.target if options.target == RTX_TARGET else "gpu"
    engine = predict_engine(opened, options.trt_version, target)
    plain, pairs, notes = _without_pairs(context.wide)
    bare, ratios = None, tuple[BoardRatio, ...]()
    others = [] if any(layer.unit == "int8" for layer in engine.work or ()) else formats_in(opened.view)
    row = others[0] if others else INT8
    if engine.view.pairs and plain is not None:
        before = predict_engine_of(_as_given(plain, options.reference), options.trt_version, target)
        bare = before.forecast()
        ratios = tuple(over_boards(before.work, engine.work, options.trt_version, row, target))
    elif not engine.view.pairs and engine.work is not None:
        planned = Engines(opened).int8(options.trt_version, target)
        ratios = tuple(over_boards(engine.work, planned, options.trt_version, target=target))
    findings = run_checks(context, checks_of((), ()))
    table = stored_table(opened.proto) or ScaleTable()
    cost = engine.forecast()
    return LookedModel(
        context, engine.layers, cost, pairs, table, plain, bare, findings, parser, notes, ratios, engine.work, row
    )


def _as_given(plain: Model, reference: ModelSource | None) -> GraphView:
    """The model that became this one: the user's, else without the Muls and Adds that editing weights put into it."""
    if reference is not None:
        given = as_fp32(open_model(reference))
        normalize(given)
        if not given.view.pairs:
            return given.view
    added = {
        node.outputs[0]: node.inputs[0]
        for node in plain.view.nodes
        if node.op in ("Add", "Mul") and traced(node, "origin") == "condition"
    }
    if not added:
        return plain.view
    bare = plain.copy()
    for node in bare.graph.node:
        for place, name in enumerate(node.input):
            while name in added:
                name = added[name]
            node.input[place] = name
    kept = [node for node in bare.graph.node if not added.keys() & set(node.output)]
    del bare.graph.node[:]
    bare.graph.node.extend(kept)
    return bare.view


def float_form(model: ModelSource) -> onnx.ModelProto | None:
    """A Q/DQ model in FP32 without its pairs, which one that is trained from it is compared with; None for a plain one.

    Raises:
        QdqError: its Q/DQ cannot be removed, or its FP32 results were changed; what can be done instead is named.
    """
    opened = open_model(model)
    if not opened.view.pairs:
        return None
    require_reference(opened, "--teacher")
    plain = _without_pairs(as_fp32(opened))[0]
    if plain is None:
        reason = "cannot be compared with its float model: its Q/DQ cannot be removed"
        raise QdqError(opened.name, reason, "leave --report out, and run qdqtool report --model FP32 afterwards")
    return plain.proto


def _without_pairs(wide: Model) -> tuple[Model | None, dict[str, Scale], tuple[str, ...]]:
    """A model in FP32 without its pairs, their scales, and why there are none where they cannot be taken out."""
    if not wide.view.pairs:
        return wide, {}, ()
    copy = wide.copy()
    try:
        peeled = peel_pairs(copy, on_conflict="max", on_asymmetric="widen")
    except QdqError as error:
        return None, {}, (f"scales of the Q/DQ pairs are not shown: {error.line()}",)
    return copy, peeled.scales, peeled.notes


def _parser(opened: Model, options: ReportOptions) -> ParserVerdict | str:
    """What NVIDIA's parser says; in words why it was not asked."""
    if options.parser is False:
        return "left out with --no-parser"
    library = require_library() if options.parser else find_library()
    if library is None:
        return f"TensorRT for RTX {how_to_install() or 'is left out'}"
    return parse_opened(opened, library=library)


def boxes_of(found: LookedModel) -> list[LayerBox]:
    """The predicted layers as boxes, with the reason for the type of each."""
    context = found.context
    reasons = reasons_of(found.view, found.plan, context.decisions, found.findings)
    return predicted_boxes(found.layers, reasons, context.typed.types)
