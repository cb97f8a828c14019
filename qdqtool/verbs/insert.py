# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan` and `insert`: open, decide, place, hand back the kind that was given. No mechanics here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import onnx

from qdqtool.artifacts import (
    check_target,
    files_of,
    load_table,
    output_path,
    path_of,
    raise_ir,
    store_table,
    stored_table,
)
from qdqtool.errors import QdqError
from qdqtool.graph.edit import clear_metadata, edits_of
from qdqtool.graph.importable import parser_warnings
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.restrict import share_scales
from qdqtool.match.target_points import points_everywhere, refuse_empty, rounds_everywhere, with_fixed_ranges
from qdqtool.mixed_precision.keep_float import (
    LossMeter,
    choose_kept,
    is_measurable,
    samples_of,
    with_borrowed_scales,
)
from qdqtool.passes.fold_bn import fold_batch_norms
from qdqtool.passes.insert import insert_pairs
from qdqtool.passes.peel import is_plain, peel_pairs
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.insert_options import InsertOptions, InsertResult

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.mixed_precision.float_search import SearchResult

_NAMED = 6  # operators of a group that a note names


_SHOWN = 8


def plan(model: ModelSource, options: PlanOptions | None = None) -> Plan:
    """Where `insert` would place Q/DQ in a model, and where not; nothing is written.

    In a model that `insert` made, what was kept in float for accuracy is told too.

    Raises:
        QdqError: a model that cannot be opened or lifted to opset 13, or options that match nothing.
    """
    opened = open_model(model)
    proto = normalize(opened.proto, opened.folder).proto
    return _decide(proto, GraphView(proto.graph, opened.folder), options, stored_table(proto))


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
        QdqError: nothing can be quantized, and `allow_empty` is not set; see `open_model`, `normalize`, `make_plan`,
            `calibrate_scales`, `insert_pairs`. Nothing is written then.
    """
    options = options or InsertOptions()
    if data is not None and scales is not None:
        raise QdqError("insert", "both data and scales are given", "give one of them")
    options.keeping(by_default=False).check(has_data=data is not None)
    opened = open_model(model)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [*opened.files, *files_of(data), path_of(scales), options.plan.rules])
    notes: list[str] = []
    measured = _conditioned(opened, data, options) if options.condition else _Measured()
    notes += measured.notes
    proto, view = _prepare(opened, options, notes)
    stored = stored_table(proto)
    table = _known(proto, view, data, scales, options)
    if options.fold_bn:
        view, folded = fold_batch_norms(view)
        notes.append(f"folded {len(folded)} BatchNormalization into the weights before them")
    decided = _decide(proto, view, options.plan, stored, table)
    advised: tuple[str, ...] = ()
    if data is not None:
        if not options.allow_empty:
            refuse_empty(view, decided, opened.name)  # before the data are run
        table, measured = _calibrated(proto, opened, decided, data, options, measured)
        advised = measured.notes
        decided = _decide(proto, view, options.plan, stored, table)
        if measured.kept:
            table = with_borrowed_scales(table, view, options.plan, decided)
    if not options.allow_empty:
        refuse_empty(view, decided, opened.name)
    chosen: Mapping[str, Scale] = share_scales(decided, table.scales, table.all_zero)
    if scales is None and rounds_everywhere(options.plan):
        chosen = with_fixed_ranges(view, options.plan, chosen)
    done = insert_pairs(view, decided, chosen, given=scales is not None)
    lost = measured.reference.measure(proto, opened.folder) if measured.reference is not None else None
    if data is not None:
        store_table(proto, table)
    notes += _told_kept(proto, decided, chosen_now=bool(options.condition) or data is not None)
    notes += _without_scale(decided)
    notes += advised
    model = give_back(proto, opened, target)
    conditioned = bool(options.condition) or bool(edits_of(proto))
    foreign = parser_warnings(proto, options.plan.trt_version)
    return InsertResult(
        model, decided, done, table, tuple(notes), lost, measured.search, options.max_output_loss, conditioned, foreign
    )


def _told_kept(proto: onnx.ModelProto, decided: Plan, *, chosen_now: bool) -> list[str]:
    """A sentence for each reason that operators stay in float for accuracy; the members of a group share one."""
    from qdqtool.conditioning.before_insert import shifted_biases

    sites: dict[str, list[str]] = {}
    for one in decided.refusals:
        if one.rule == "keep-float":
            sites.setdefault(one.reason, []).append(one.site)
    told = []
    for reason, names in sites.items():
        few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
        told.append(f"{few} {'stay' if names[1:] else 'stays'} in float: {reason}")
    kept = [name for names in sites.values() for name in names]
    return told + (shifted_biases(proto, kept) if chosen_now else [])


def _without_scale(decided: Plan) -> list[str]:
    """A sentence on what stays in float because no scale follows from the data."""
    left = [f"{one.site} ({one.reason})" for one in decided.refusals if one.rule == "no-scale"]
    if not left:
        return []
    more = f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else ""
    return [
        f"{len(left)} {'stay' if left[1:] else 'stays'} in float for want of a scale: {', '.join(left[:_SHOWN])}{more}"
    ]


@dataclass(frozen=True)
class _Measured:
    """What was found out about a model by running data: by conditioning first, then by calibrating.

    Attributes:
        notes: sentences.
        search: what was tried in float; None where that was not asked for.
        reference: the outputs of the float model as it was given.
    """

    notes: tuple[str, ...] = ()
    search: SearchResult | None = None
    reference: LossMeter | None = None

    @property
    def kept(self) -> dict[str, str]:
        return self.search.reasons if self.search is not None else {}


def _prepare(opened: Opened, options: InsertOptions, notes: list[str]) -> tuple[onnx.ModelProto, GraphView]:
    """The model in a form in which Q/DQ can stand."""
    normalized = normalize(opened.proto, opened.folder)
    notes.extend(normalized.notes)
    proto = normalized.proto
    raise_ir(proto)
    view = GraphView(proto.graph, opened.folder)
    if options.requantize and view.pairs:
        view = peel_pairs(view, on_conflict="max", on_asymmetric="widen", opset=opset_of(proto)).view
        clear_metadata(proto)
    return proto, view


def _known(
    proto: onnx.ModelProto,
    view: GraphView,
    data: Data | DataLoader | None,
    scales: ScaleTable | str | Path | None,
    options: InsertOptions,
) -> ScaleTable:
    """The scales that need no data: given ones, or estimates from BatchNormalization, before that is folded away."""
    if scales is not None:
        return scales if isinstance(scales, ScaleTable) else load_table(scales)
    if data is not None:
        return ScaleTable()
    points = _decide(proto, view, options.plan).activations
    missing = [point.tensor for point in points if point.tensor not in view.pairs]
    if not missing:
        return ScaleTable()
    from qdqtool.datafree.estimate import estimate_scales

    return estimate_scales(view, missing, options.input_range)


def _decide(proto: onnx.ModelProto, view: GraphView, options: PlanOptions | None, *tables: ScaleTable | None) -> Plan:
    """The plan, with what earlier choices say: tensors to cut at, operators that accuracy keeps in float."""
    cuts: dict[str, None] = {}
    kept: dict[str, str] = {}
    all_zero: set[str] = set()
    for table in tables:
        if table is not None:
            cuts.update(dict.fromkeys(table.facts.get("cuts", ())))
            kept.update(table.facts.get("kept", {}))
            all_zero = (all_zero - table.scales.keys()) | table.all_zero
    here = {name: reason for name, reason in kept.items() if name in view.producers}
    there = [name for name in cuts if name in view.producers]
    decided = make_plan(view, options, kept=here, cuts=there, all_zero=all_zero)
    if options is None or not rounds_everywhere(options):
        return decided
    return points_everywhere(proto, view, decided, options, tables)


def _conditioned(opened: Opened, data: Data | DataLoader | None, options: InsertOptions) -> _Measured:
    from qdqtool.conditioning.before_insert import condition_first
    from qdqtool.data.loader import DataLoader, inputs_of, open_feed
    from qdqtool.observers.options import with_method

    if data is None:
        raise QdqError("--condition", "is decided by what the data give, and there is none", "give --data")
    feed = data if isinstance(data, DataLoader) else open_feed(data, inputs_of(opened.proto.graph), options.feed)
    how = replace(with_method(options.calibration), where=opened.name)
    keeping = options.keeping(by_default=not feed.once and is_measurable(opened.proto, opened.folder))
    reference = None
    if is_plain(opened.proto):
        reference = LossMeter.of(opened.proto, opened.folder, samples_of(opened.proto, opened.folder, feed, how))
    notes, search = condition_first(opened, feed, options.condition, options.plan, how, keeping)
    return _Measured(tuple(notes), search, reference)


def _calibrated(
    proto: onnx.ModelProto,
    opened: Opened,
    decided: Plan,
    data: Data | DataLoader,
    options: InsertOptions,
    first: _Measured,
) -> tuple[ScaleTable, _Measured]:
    """Scales of every float tensor of the plain model, in its facts what is to be kept in float; and advice.

    `first` is what conditioning found out; what it chose stays in float.
    """
    from qdqtool.calibration.engine import calibrate_scales
    from qdqtool.conditioning.before_insert import advice_for
    from qdqtool.data.loader import DataLoader, inputs_of, open_feed
    from qdqtool.observers.options import default_method, with_method

    plain = proto
    if not is_plain(proto):
        asked = options.keeping(by_default=False)
        if asked:
            raise QdqError(opened.name, f"has Q/DQ, which {asked.option} would have to undo", "add --requantize")
        plain = onnx.ModelProto()
        plain.CopyFrom(proto)
        peel_pairs(GraphView(plain.graph, opened.folder), on_conflict="max")
    feed = data if isinstance(data, DataLoader) else open_feed(data, inputs_of(plain.graph), options.feed)
    options.keeping(by_default=False).check_data(feed)
    method = "mse" if options.condition else default_method(plain, once=feed.once)
    how = replace(with_method(options.calibration, method), where=opened.name)
    points = frozenset(point.tensor for point in decided.activations)
    wanted = None if options.whole_table else points
    table = calibrate_scales(plain, opened.folder, feed, how, wanted, points, options.plan)
    source = samples_of(plain, opened.folder, feed, how)
    reference = first.reference or LossMeter.of(plain, opened.folder, source)
    keeping = options.keeping(by_default=_may_keep(plain, proto, opened.folder, feed, decided, first))
    search = first.search
    if keeping and source is not None:
        if search is None and decided.weights:
            search = choose_kept(keeping, source, table, options.plan)
        table = replace(table, facts={**table.facts, "kept": search.reasons if search is not None else {}})
    wants_advice = options.advise and not options.condition
    advised = advice_for(plain, opened.folder, feed, options.plan) if wants_advice else []
    return table, _Measured(tuple(advised), search, reference)


def _may_keep(
    plain: onnx.ModelProto,
    proto: onnx.ModelProto,
    folder: Path | None,
    feed: DataLoader,
    decided: Plan,
    first: _Measured,
) -> bool:
    """Whether operators may stay in float for accuracy though nobody asked."""
    from qdqtool.conditioning.before_insert import corrected

    if plain is not proto or feed.once or not is_measurable(plain, folder, decided):
        return False
    return first.search is not None or not corrected(plain)
