# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan` and `insert`: prepare, plan, measure, place, fit to the target, choose types, write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import onnx

from qdqtool.conditioning.before_insert import shifted_biases
from qdqtool.deploying.board_ratios import pays_nowhere
from qdqtool.deploying.format_choice import choose_formats
from qdqtool.display import counted, named
from qdqtool.emit.input_shapes import inputs_as_declared
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.forecasting.boards import require_format
from qdqtool.forecasting.model_layers import predict_engine
from qdqtool.formats import MIXED, NumberFormat, formats_of
from qdqtool.graph.edit import edits_of
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.importable import parser_warnings
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.opset_lower import opset_warnings
from qdqtool.match.attention import with_fixed_weights
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.target_points import refuse_empty
from qdqtool.match.weight_points import blocks_notes
from qdqtool.measuring.keep_float import with_borrowed_scales
from qdqtool.measuring.sensitivity_runner import QuantizedForm
from qdqtool.metadata import store_table, stored_table
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.passes.dead_channels import refuse_unusable_scales, repair_dead_channels
from qdqtool.passes.fake_quantization import write_pairs
from qdqtool.passes.fold_bn import fold_batch_norms
from qdqtool.passes.fold_constants import fold_constants
from qdqtool.passes.insert import is_estimated
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.rewrites import rewritten_ranges
from qdqtool.passes.stored_integers import store_integers
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.precision.rest import HALF, RestType, rest_type
from qdqtool.precision.widen import is_typed, refuse_typed
from qdqtool.quantizing.place import fit, place
from qdqtool.quantizing.plan import estimate_points, plan_pairs, settle
from qdqtool.quantizing.prepare import prepare
from qdqtool.scales import ScaleTable, load_table
from qdqtool.verbs.insert_float_costs import bytes_in_codes, float_cost_notes
from qdqtool.verbs.insert_measure import (
    InsertMeasurement,
    check_float_inputs,
    judge_typed,
    keeping_of,
    measure_conditioned,
    measure_scales,
    measure_weights,
)
from qdqtool.verbs.insert_options import InsertOptions, InsertResult
from qdqtool.verbs.typed_file import give_typed

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

_NAMED = 6  # operators of a group that a note names
_SHOWN = 8
_FORECAST = 10_000  # nodes of a graph up to which its engines are predicted, in three times the time of the rest


def plan(model: ModelSource, options: PlanOptions | None = None) -> Plan:
    """Where `insert` would place Q/DQ in a model, and where not; nothing is written.

    In a model that `insert` made, what was kept in float for accuracy is listed too.

    Raises:
        QdqError: a model that cannot be opened or lifted to opset 13, or options that match nothing.
    """
    return plan_insert(model, InsertOptions(plan=options or PlanOptions()))


def plan_insert(
    model: ModelSource,
    options: InsertOptions,
    *,
    data: Data | DataLoader | None = None,
    scales: ScaleTable | str | Path | None = None,
) -> Plan:
    """The plan that `insert` carries out with these options; nothing is written.

    All that changes the graph before pairs are placed is done to a copy of it: `fold_constants`, `fold_bn`,
    `requantize`, and `condition`, which runs the data. What calibration decides is not in the plan: layers that stay in
    float for accuracy, attentions in INT8, requantize points, tensors that are all zero. Takes and raises what `insert`
    does.
    """
    rows = require_format(options.plan.format, options.plan.target, options.plan.trt_version)
    opened = _opened(model, options)
    options, _ = _clean(opened, options, data)
    _edit_weights(opened, data, options)
    planned = prepare(opened, options.plan, requantize=options.requantize).planned
    if options.fold_bn:
        fold_batch_norms(planned.base)
    table = _table_of(scales)
    if options.plan.format == MIXED and table.decisions.formats is None:
        chosen = choose_formats(planned.base, options.plan, rows)
        table = replace(table, decisions=replace(table.decisions, formats=chosen.formats))
    decided = plan_pairs(planned.base, options.plan, stored_table(planned.base.proto), table)
    return settle(planned.base.view, decided, options.plan.rule_book())[0]


@overload
def insert(
    model: onnx.ModelProto,
    *,
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: InsertOptions | None = ...,
    output: str | Path | None = ...,
) -> InsertResult[onnx.ModelProto]: ...


@overload
def insert(
    model: str | os.PathLike[str],
    *,
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: InsertOptions | None = ...,
    output: str | Path | None = ...,
) -> InsertResult[Path]: ...


@overload
def insert(
    model: ModelSource,
    *,
    data: Data | DataLoader | None = ...,
    scales: ScaleTable | str | Path | None = ...,
    options: InsertOptions | None = ...,
    output: str | Path | None = ...,
) -> InsertResult[Any]: ...


def insert(
    model: ModelSource,
    *,
    data: Data | DataLoader | None = None,
    scales: ScaleTable | str | Path | None = None,
    options: InsertOptions | None = None,
    output: str | Path | None = None,
) -> InsertResult[Any]:
    """Place Q/DQ where TensorRT fuses.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: calibrates every float tensor; the table is kept in the model's metadata.
        scales: a table or its file, in place of data. With neither, ranges are estimated from the model itself.
        options: see `InsertOptions`.
        output: file to write; for a path the default is `<name>.qdq.onnx` beside it.

    Raises:
        QdqError: nothing can be quantized, and `allow_empty` is not set; or as its steps. Nothing is written then.
    """
    options, given = options or InsertOptions(), scales is not None
    if data is not None and given:
        raise QdqError("insert", "both data and scales are given", "give one of them")
    rows = require_format(options.plan.format, options.plan.target, options.plan.trt_version)
    keeping_of(options, by_default=False).check(has_data=data is not None)
    opened = _opened(model, options)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [*opened.files, *files_of(data, scales), options.plan.rules])
    options, said = _clean(opened, options, data)
    too_high = opset_warnings(opened.proto, None if options.opset_lowered_later else options.plan.trt_version)
    rest = _rest_of(opened, options, has_values=data is not None or given)
    builder = None
    if options.build:
        from qdqtool.verbs.insert_costs import CostBuilder

        builder = CostBuilder(opened, options.plan)

    edited = _edit_weights(opened, data, options)
    prepared = prepare(opened, options.plan, requantize=options.requantize)
    planned = prepared.planned
    if data is not None:
        check_float_inputs(prepared.inputs, planned.base, data, options.data_options)
    scaled = _plan_and_scales(planned, opened, options, data, _table_of(scales) if given else None, edited, rows)
    if not options.allow_empty:
        refuse_empty(planned.base.view, scaled.plan, opened.name)
    if builder is not None:
        builder.keep_plain(planned.base, (scaled.stored, scaled.table))
    costly, in_codes, in_fp16, slow = list[str](), list[int | None](), None, ""
    for_dla, nodes = options.plan.target == "dla", len(planned.base.view.nodes)
    if nodes <= _FORECAST and not for_dla:
        in_fp16 = predict_engine(planned.base, options.plan.trt_version, options.plan.target, rest="fp16")
        if data is not None and not planned.typed:
            in_codes = bytes_in_codes(planned.base, scaled.plan, options.plan, (scaled.stored, scaled.table))
    elif not for_dla and not rows[1:] and "activation" in rows[0].roles:
        slow = f"insert makes no forecast for a graph of {nodes:,} nodes; qdqtool forecast does"
    table = replace(scaled.table, scales={**scaled.table.scales, **scaled.measured.weights})
    if for_dla:
        from qdqtool.dla.assignment import fixable_nodes, on_dla

        fixable = fixable_nodes(planned.base, options.plan)
    placed = place(planned, scaled.plan, table, options.plan, given=given)
    proto = placed.model.proto
    if data is not None and scaled.table.scales:
        store_table(proto, scaled.table)
    if options.dq_only:
        store_integers(placed.model.view)
    quantized = fit(placed, options.plan, half=rest.kind == HALF)
    if in_fp16 is not None:
        made = predict_engine(quantized.model, options.plan.trt_version, options.plan.target, rest="fp16")
        if not rows[1:]:
            slow = pays_nowhere(in_fp16.work, made.work, options.plan.trt_version, rows[0], options.plan.target)
        if in_codes:
            costly = float_cost_notes(made.forecast().bytes_moved, in_codes, scaled.plan, options.plan.format)

    fresh = any(scale.origin == "estimated" for scale in quantized.inserted.scales.values())
    overwrites = _better_there(target) if fresh else ""
    measured = scaled.measured
    typed = None
    if rest.is_half:
        from qdqtool.verbs.typed_rest import choose_rest, data_run

        run = data_run(opened, data, options.data_options, options.calibration)
        if run is not None:
            known = None if measured.ranges is None else rewritten_ranges(quantized.model.view, measured.ranges)
            run = replace(run, ranges=known, reference=measured.reference)
        typed = choose_rest(quantized.model, rest, scaled.known, run)
    form = QuantizedForm.of(quantized.plan, quantized.inserted.scales)
    limited = options.max_output_loss is not None
    lost, costs = judge_typed(quantized.model, typed, form, measured, builder, limited=limited)
    float32 = None if typed is None else typed.assignment.float32
    dla = on_dla(quantized.model, quantized.plan, options.plan, fixable, float32) if for_dla else None
    return InsertResult(
        model=give_typed(
            proto,
            opened,
            target,
            None if typed is None else typed.assignment,
            typed=None if typed is None or typed.forms is None else typed.forms[0],
        ),
        plan=quantized.plan,
        inserted=quantized.inserted,
        table=scaled.table,
        notes=(
            *(*said, *edited.notes, *prepared.notes, *scaled.notes, *quantized.notes),
            *blocks_notes(scaled.plan),
            *_kept_notes(proto, quantized.plan, chosen_now=bool(options.condition) or data is not None),
            *(
                *costly,
                *filter(None, (slow,)),
                *_without_scale(quantized.plan),
                *_float_attentions(quantized.plan, options.plan),
                *scaled.advised,
                *(() if typed is None else typed.notes),
            ),
        ),
        output_loss=lost,
        search=measured.search,
        max_output_loss=options.max_output_loss,
        conditioned=bool(options.condition) or bool(edits_of(proto)),
        build_warnings=(
            *too_high,
            *parser_warnings(proto, options.plan.trt_version),
            *([] if dla is None else dla.overflow()),
        ),
        dla=dla,
        costs=costs,
        rest=typed,
        rest_note=rest.note,
        inputs=inputs_as_declared(proto),
        requantized=options.requantize,
        overwrites=overwrites,
        has_pairs=has_qdq(placed.model.graph),
    )


def _better_there(target: Path | None) -> str:
    """What a file that is about to be replaced holds, where its scales come from data or training; "" where not."""
    if target is None or not target.is_file():
        return ""
    try:
        there = open_model(target)
    except QdqError:
        return ""
    pairs = there.view.pairs
    if not pairs or any(is_estimated(pair) for held in pairs.values() for pair in held):
        return ""
    table = stored_table(there.proto)
    if table is None:
        return "scales that were not estimated"
    samples = table.provenance.samples
    return f"scales calibrated with {table.provenance.method} on {counted(samples, 'sample')}"


@dataclass(frozen=True, eq=False)
class _Scaled:
    """A plan and scales for it: measured, given, or estimated from the model itself.

    `known` are the scales that the types of the rest go by, `stored` is the table in the model's metadata.
    """

    plan: Plan
    table: ScaleTable
    stored: ScaleTable | None
    known: ScaleTable
    measured: InsertMeasurement
    notes: tuple[str, ...] = ()
    advised: tuple[str, ...] = ()


def _plan_and_scales(
    planned: PlannedModel,
    opened: Model,
    options: InsertOptions,
    data: Data | DataLoader | None,
    given: ScaleTable | None,
    measured: InsertMeasurement,
    rows: Sequence[NumberFormat],
) -> _Scaled:
    """Decide where pairs stand and with which scales; BatchNormalization is folded where that is wanted."""
    base, placing = planned.base, options.plan
    stored, table = stored_table(base.proto), given or ScaleTable()
    mixed = placing.format == MIXED and table.decisions.formats is None
    chosen = choose_formats(base, placing, rows) if mixed else None
    if chosen is not None and not options.allow_empty and not any(name for name, _ in chosen.formats.values()):
        raise QdqError(f"--format {MIXED}", f"no format pays for any operator, by {chosen.note}", "name one format")
    if chosen is not None:
        table = replace(table, decisions=replace(table.decisions, formats=chosen.formats))
    formats = table.decisions.formats
    estimated = data is None and given is None
    if estimated:
        decided = plan_pairs(base, placing, table)
        estimate = estimate_points(base.view, decided, options.input_range)
        table = replace(estimate, decisions=replace(estimate.decisions, formats=formats))
        table = replace(table, scales=with_fixed_weights(table.scales, decided.attentions))
    folded = fold_batch_norms(base) if options.fold_bn else []
    notes: tuple[str, ...] = ()
    if folded:
        notes += (f"folded {len(folded)} BatchNormalization into the weights before them",)
    if chosen is not None:
        notes += (f"{chosen.note}; --explain NAME says why an operator has its format",)
    if not estimated or options.fold_bn or stored is not None:
        decided = plan_pairs(base, placing, stored, table)
    advised: tuple[str, ...] = ()
    if data is not None:
        if not options.allow_empty:
            refuse_empty(base.view, decided, opened.name)  # before the data are run
        if all(row.blocks for row in rows):
            table, measured = measure_weights(planned, opened, decided, data, options, measured)
            return _Scaled(decided, table, stored, table, measured, notes)
        table, measured = measure_scales(planned, opened, decided, data, options, measured, formats)
        advised = measured.notes
        decided = plan_pairs(base, placing, stored, table)
        if measured.float_layers or placing.keep_float:
            table = with_borrowed_scales(table, base.view, placing, decided)
    known = stored if estimated and stored is not None else table
    return _Scaled(decided, table, stored, known, measured, notes, advised)


def _opened(model: ModelSource, options: InsertOptions) -> Model:
    """The model; where its weights are edited, large ones go into a temporary file."""
    opened = open_model(model)
    return opened.with_store() if options.condition else opened


def _edit_weights(opened: Model, data: Data | DataLoader | None, options: InsertOptions) -> InsertMeasurement:
    """Fold constants and condition the weights, where that is wanted; what the data showed on the way."""
    folded = (fold_constants(opened).note(),) if options.fold_constants else ()
    measured = measure_conditioned(opened, data, options) if options.condition else InsertMeasurement()
    return replace(measured, notes=(*folded, *measured.notes))


def _clean(
    opened: Model, options: InsertOptions, data: Data | DataLoader | None
) -> tuple[InsertOptions, tuple[str, ...]]:
    """The options for a model, and notes on fake quantization that became pairs and on repaired scales.

    Options that edit FP32 weights are refused for a typed model, `requantize` needs pairs, and images are preprocessed
    as the model's file says where the options do not.
    """
    require_finite(opened.view)
    asked = {"--condition": options.condition, "--fold-bn": options.fold_bn, "--dq-only": options.dq_only}
    if options.condition and options.plan.format == MIXED:
        raise QdqError("--condition", f"edits weights for one format, and --format {MIXED} has several", "leave it out")
    edits = next((option for option, given in asked.items() if given), "")
    if edits:
        refuse_typed(opened, f"{edits} edits FP32 weights")
    said = write_pairs(opened)
    has_pairs = bool(opened.view.pairs)
    if any(row.blocks for row in formats_of(options.plan.format)) and (data is not None or not has_pairs):
        refuse_typed(opened, f"--format {options.plan.format} stores the codes of FP32 weights")
    anew = options.requantize and has_pairs
    if has_pairs and not anew and options.plan.format == MIXED:
        raise QdqError(opened.name, f"has Q/DQ, beside which --format {MIXED} chooses none", "add --requantize")
    if not anew:
        said += repair_dead_channels(opened.view)
        refuse_unusable_scales(opened.view)
    options, known = with_known(replace(options, requantize=anew), opened, data, anew=anew or not has_pairs)
    return options, (*said, *known)


def _rest_of(opened: Model, options: InsertOptions, *, has_values: bool) -> RestType:
    """The float type of what is not INT8; a model that has types of its own keeps them."""
    if is_typed(opened):
        if options.rest is not None:
            reason = "has FP16 or BF16 tensors, which keep their types"
            raise QdqError(opened.name, reason, "leave --rest out, or give the FP32 model")
        return RestType()
    stored = not options.requantize and stored_table(opened.proto) is not None
    return rest_type(options.rest, options.plan.target, options.plan.trt_version, has_values=has_values or stored)


def _table_of(scales: ScaleTable | str | Path | None) -> ScaleTable:
    """The table that was given, read where it is a file; an empty one where none was."""
    if scales is None:
        return ScaleTable()
    return scales if isinstance(scales, ScaleTable) else load_table(scales)


def _kept_notes(proto: onnx.ModelProto, decided: Plan, *, chosen_now: bool) -> list[str]:
    """A sentence for each reason that operators stay in float for accuracy; the members of a group share one."""
    sites: dict[str, list[str]] = {}
    for one in decided.refusals:
        if one.rule == "keep-float":
            sites.setdefault(one.reason, []).append(one.site)
    notes = []
    for reason, names in sites.items():
        few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
        notes.append(f"{few} {'stay' if names[1:] else 'stays'} in float: {reason}")
    kept = [name for names in sites.values() for name in names]
    return notes + (shifted_biases(proto, kept) if chosen_now else [])


def _float_attentions(decided: Plan, options: PlanOptions) -> list[str]:
    """A sentence on the attentions that `--attention int8` cannot quantize."""
    if options.attention != "int8":
        return []
    if not decided.attentions:
        return ["--attention int8: no attention was found that is built as one kernel"]
    reasons: dict[str, list[str]] = {}
    for one in decided.attentions:
        if not one.int8:
            reasons.setdefault(one.reason, []).append(one.name or one.key)
    every = counted(len(decided.attentions), "attention")
    said = [f"{len(names)} of {every} in float ({named(names, 2)}): {why}" for why, names in reasons.items()]
    return [f"--attention int8: {'; '.join(said)}"] if said else []


def _without_scale(decided: Plan) -> list[str]:
    """A sentence on what stays in float because no scale follows from the data."""
    left = [f"{one.site} ({one.reason})" for one in decided.refusals if one.rule == "no-scale"]
    if not left:
        return []
    more = f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else ""
    stay = "tensors without a scale stay" if left[1:] else "tensor without a scale stays"
    return [f"{len(left)} {stay} in float: {', '.join(left[:_SHOWN])}{more}"]
