# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan` and `insert`: open, decide, place, hand back the kind that was given. No mechanics here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import onnx

from qdqtool.conditioning.before_insert import shifted_biases
from qdqtool.display import counted
from qdqtool.emit.input_shapes import inputs_as_declared
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.edit import clear_metadata, edits_of
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.importable import parser_warnings
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.opset_lower import opset_warnings
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.attention import with_fixed_weights
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.restrict_plan import share_scales
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.match.target_points import refuse_empty, rounds_everywhere, with_fixed_ranges
from qdqtool.metadata import raise_ir, store_table, stored_table
from qdqtool.mixed_precision.keep_float import with_borrowed_scales
from qdqtool.mixed_precision.quantized_form import QuantizedForm
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.passes.dead_channels import refuse_unusable_scales, repair_dead_channels
from qdqtool.passes.fake_quantization import write_pairs
from qdqtool.passes.fold_bn import fold_batch_norms
from qdqtool.passes.fold_constants import fold_constants, unfolded_note
from qdqtool.passes.insert import Inserted, is_estimated
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.rewrites import apply_rewrites
from qdqtool.passes.stored_integers import store_integers
from qdqtool.passes.typed_pairs import PlannedModel, peel_model
from qdqtool.precision.rest import HALF, RestType, rest_type
from qdqtool.precision.widen import is_typed, refuse_typed
from qdqtool.scales import Scale, ScaleTable, load_table
from qdqtool.verbs.insert_costs import CostBuilder
from qdqtool.verbs.insert_decide import decide, estimate_points
from qdqtool.verbs.insert_float_costs import float_cost_notes
from qdqtool.verbs.insert_measure import (
    InsertMeasurement,
    judge_typed,
    keeping_of,
    measure_conditioned,
    measure_scales,
)
from qdqtool.verbs.insert_options import InsertOptions, InsertResult
from qdqtool.verbs.typed_rest import DataRun, choose_rest, data_run, give_typed

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

_NAMED = 6  # operators of a group that a note names
_SHOWN = 8


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
    opened = open_model(model)
    options, _ = _on(opened, options, data)
    if options.fold_constants:
        fold_constants(opened)
    if options.condition:
        measure_conditioned(opened, data, options)
    planned = _prepare(opened, options, [])
    if options.fold_bn:
        _fold(planned.base, [])
    proto, view = planned.base.proto, planned.view
    decided = decide(proto, view, options.plan, stored_table(proto), _table_of(scales))
    return with_second_pairs(view, decided, options.plan.rule_book())


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
    opened, target, options, said = _open(model, data, scales, options or InsertOptions(), output)
    version = None if options.opset_lowered_later else options.plan.trt_version
    too_high = opset_warnings(opened.proto, version)  # before it is lifted
    rest = _rest_of(opened, options, has_values=data is not None or scales is not None)
    builder = _cost_builder(opened, options) if options.build else None
    folded = [fold_constants(opened).note()] if options.fold_constants else []
    first = measure_conditioned(opened, data, options) if options.condition else InsertMeasurement()
    planned = _prepare(opened, options, notes := [*said, *folded, *first.notes])
    ready = _make_ready(planned, opened, data, scales, options, first, notes)
    if not options.allow_empty:
        refuse_empty(ready.view, ready.plan, opened.name)
    if builder is not None:
        builder.keep_plain(planned.base.proto, (ready.stored, ready.table))
    costly = _float_costs(planned, opened, ready, options) if data is not None else []
    decided, done = _place(planned, ready.plan, ready.table, options, given=scales is not None)
    proto, rules = planned.model.proto, options.plan.rule_book()
    _store(planned.model, options, ready.table if data is not None else None)
    notes += (fitted := apply_rewrites(planned.model, rules, half=rest.kind == HALF))
    measured = ready.measured
    fresh = any(scale.origin == "estimated" for scale in done.scales.values())
    overwrites = _better_there(target) if fresh else ""
    typed = choose_rest(proto, opened, rest, ready.known, _run_of(opened, data, options, measured, fitted=bool(fitted)))
    lost, costs = judge_typed(proto, opened, typed, QuantizedForm.of(decided, done.scales), measured, builder)
    notes += _kept_notes(proto, decided, chosen_now=bool(options.condition) or data is not None)
    notes += [*costly, *_without_scale(decided), *ready.advised, *(() if typed is None else typed.notes)]
    return InsertResult(
        model=give_typed(proto, opened, target, None if typed is None else typed.assignment),
        plan=decided,
        inserted=done,
        table=ready.table,
        notes=tuple(notes),
        output_loss=lost,
        search=measured.search,
        max_output_loss=options.max_output_loss,
        conditioned=bool(options.condition) or bool(edits_of(proto)),
        warnings=(*too_high, *parser_warnings(proto, options.plan.trt_version)),
        costs=costs,
        rest=typed,
        rest_note=rest.note,
        inputs=inputs_as_declared(proto),
        requantized=options.requantize,
        overwrites=overwrites,
        has_pairs=has_qdq(GraphView(proto.graph, opened.folder)),
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


def _run_of(
    opened: Model, data: Data | DataLoader | None, options: InsertOptions, measured: InsertMeasurement, *, fitted: bool
) -> DataRun | None:
    """The data that types are chosen by, and what is known from them; `fitted`: whether tensors were added since."""
    run = data_run(opened, data, options.data_options, options.calibration)
    known = None if fitted else measured.ranges
    return None if run is None else replace(run, ranges=known, judge=measured.yardstick)


def _store(model: Model, options: InsertOptions, table: ScaleTable | None) -> None:
    """Keep a table in the model's metadata; with `dq_only`, weights as integers."""
    if table is not None:
        store_table(model.proto, table)
    if options.dq_only:
        store_integers(model.view)


@dataclass(frozen=True, eq=False)
class _ReadyToInsert:
    """What is decided of a model before a pair is placed."""

    view: GraphView
    plan: Plan
    table: ScaleTable
    stored: ScaleTable | None
    known: ScaleTable
    measured: InsertMeasurement
    advised: tuple[str, ...] = ()


def _make_ready(
    planned: PlannedModel,
    opened: Model,
    data: Data | DataLoader | None,
    scales: ScaleTable | str | Path | None,
    options: InsertOptions,
    measured: InsertMeasurement,
    notes: list[str],
) -> _ReadyToInsert:
    """Decide where pairs stand and with which scales: measured, given, or estimated from the model itself."""
    proto, view = planned.base.proto, planned.view
    stored = stored_table(proto)
    table = _table_of(scales)
    estimated = data is None and scales is None
    if estimated:
        decided = decide(proto, view, options.plan)
        table = estimate_points(view, decided, options.input_range)
        table = replace(table, scales=with_fixed_weights(table.scales, decided.attentions))
    if options.fold_bn:
        _fold(planned.base, notes)
        view = planned.view
    if not estimated or options.fold_bn or stored is not None:
        decided = decide(proto, view, options.plan, stored, table)
    advised: tuple[str, ...] = ()
    if data is not None:
        if not options.allow_empty:
            refuse_empty(view, decided, opened.name)  # before the data are run
        table, measured = measure_scales(planned, opened, decided, data, options, measured)
        advised = measured.notes
        decided, table = _decide_again(proto, view, options, stored, table, measured)
    known = stored if estimated and stored is not None else table
    return _ReadyToInsert(view, decided, table, stored, known, measured, advised)


def _open(
    model: ModelSource,
    data: Data | DataLoader | None,
    scales: ScaleTable | str | Path | None,
    options: InsertOptions,
    output: str | Path | None,
) -> tuple[Model, Path | None, InsertOptions, tuple[str, ...]]:
    """The model, the place of the new one, options (see `_on`), and notes.

    Options that contradict each other are refused before the model is read.
    """
    if data is not None and scales is not None:
        raise QdqError("insert", "both data and scales are given", "give one of them")
    keeping_of(options, by_default=False).check(has_data=data is not None)
    opened = open_model(model)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [*opened.files, *files_of(data, scales), options.plan.rules])
    return opened, target, *_on(opened, options, data)


def _on(opened: Model, options: InsertOptions, data: Data | DataLoader | None) -> tuple[InsertOptions, tuple[str, ...]]:
    """The options for a model, and notes on fake quantization that became pairs and on repaired scales.

    Options that edit FP32 weights are refused for a typed model, `requantize` needs pairs, and images are preprocessed
    as the model's file says where the options do not.
    """
    require_finite(opened.view)
    asked = {"--condition": options.condition, "--fold-bn": options.fold_bn, "--dq-only": options.dq_only}
    edits = next((option for option, given in asked.items() if given), "")
    if edits:
        refuse_typed(opened, f"{edits} edits FP32 weights")
    said = write_pairs(opened)
    has_pairs = bool(opened.view.pairs)
    anew = options.requantize and has_pairs
    if not anew:
        said += repair_dead_channels(opened.view)
        refuse_unusable_scales(opened.view)
    options, known = with_known(replace(options, requantize=anew), opened, data, anew=anew or not has_pairs)
    return options, (*said, *known)


def _cost_builder(opened: Model, options: InsertOptions) -> CostBuilder:

    return CostBuilder(opened, options.plan)


def _rest_of(opened: Model, options: InsertOptions, *, has_values: bool) -> RestType:
    """The float type of what is not INT8; a model that has types of its own keeps them."""
    if is_typed(opened.proto):
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


def _fold(model: Model, notes: list[str]) -> None:
    """Fold BatchNormalization into the weights; a note says how many."""
    notes.append(f"folded {len(fold_batch_norms(model))} BatchNormalization into the weights before them")


def _decide_again(
    proto: onnx.ModelProto,
    view: GraphView,
    options: InsertOptions,
    stored: ScaleTable | None,
    table: ScaleTable,
    measured: InsertMeasurement,
) -> tuple[Plan, ScaleTable]:
    """The plan with what data decided, and the table with scales for it."""
    decided = decide(proto, view, options.plan, stored, table)
    if measured.float_layers or options.plan.keep_float:
        table = with_borrowed_scales(table, view, options.plan, decided)
    return decided, table


def _place(
    planned: PlannedModel, decided: Plan, table: ScaleTable, options: InsertOptions, *, given: bool
) -> tuple[Plan, Inserted]:
    """The plan with its second pairs, carried out; and what was put in."""
    decided = with_second_pairs(planned.view, decided, (options.plan or PlanOptions()).rule_book())
    chosen = _scales_of(planned.view, decided, table, options, given=given)
    return decided, planned.insert(decided, chosen, given=given)


def _scales_of(
    view: GraphView, decided: Plan, table: ScaleTable, options: InsertOptions, *, given: bool
) -> Mapping[str, Scale]:
    """The scale of every point: shared as planned, fixed where the target fixes a range and none was given."""
    chosen: Mapping[str, Scale] = share_scales(decided, table.scales, table.all_zero)
    if not given and rounds_everywhere(options.plan):
        chosen = with_fixed_ranges(view, options.plan, chosen)
    return chosen


def _float_costs(planned: PlannedModel, opened: Model, ready: _ReadyToInsert, options: InsertOptions) -> list[str]:
    """What operators in float cost, before pairs are placed."""
    if planned.typed:
        return []
    tables = ready.stored, ready.table
    scales = partial(_scales_of, table=ready.table, options=options, given=False)

    return float_cost_notes(planned.base, ready.plan, options.plan, tables, scales)


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


def _without_scale(decided: Plan) -> list[str]:
    """A sentence on what stays in float because no scale follows from the data."""
    left = [f"{one.site} ({one.reason})" for one in decided.refusals if one.rule == "no-scale"]
    if not left:
        return []
    more = f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else ""
    stay = "tensors without a scale stay" if left[1:] else "tensor without a scale stays"
    return [f"{len(left)} {stay} in float: {', '.join(left[:_SHOWN])}{more}"]


def _prepare(opened: Model, options: InsertOptions, notes: list[str]) -> PlannedModel:
    """The model in a form in which Q/DQ can stand."""
    notes.extend(normalize(opened).notes)
    raise_ir(opened.proto)
    if options.requantize:
        peel_model(opened, on_asymmetric="widen", opset=opset_of(opened.proto), drop_scales=True)
        clear_metadata(opened.proto)
    planned = PlannedModel.of(opened)
    notes.extend(unfolded_note(planned.view, options.plan.rule_book()))
    return planned
