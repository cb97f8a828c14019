# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan` and `insert`: open, decide, place, hand back the kind that was given. No mechanics here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import clear_metadata
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.normalise import normalise
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.linting.importable import parser_warnings
from qdqtool.match.plan import Plan, PlanOptions, make_plan
from qdqtool.match.restrict import share_scales
from qdqtool.passes.fold_bn import fold_batch_norms
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.passes.peel import is_plain, peel_pairs
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.keeping import Keeping, choose_kept, is_measurable
from qdqtool.verbs.opening import (
    check_target,
    files_of,
    load_table,
    output_path,
    path_of,
    raise_ir,
    store_table,
    stored_table,
)
from qdqtool.verbs.placing import points_everywhere, refuse_empty, rounds_everywhere, with_fixed_ranges

if TYPE_CHECKING:
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.calibration.feed import Data, Feed, FeedOptions


_SHOWN = 8


@dataclass(frozen=True)
class InsertOptions:
    """How Q/DQ are inserted.

    Attributes:
        plan: target, version, heads, rules.
        calibration: method and provider, where data is given. Without a method: `auto`; `mse` for weights that
            `condition` edited (`default_method`).
        feed: how data is read.
        fold_bn: fold BatchNormalization into the weights first, where exact.
        requantize: take out the pairs that are there and begin anew.
        input_range: smallest and largest value of the network's input, for estimation without data.
        keep_float: how many operators accuracy may keep in float, or "auto": few, where the loss is concentrated. None
            is "auto" where pairs are placed in a plain model for the GPU by data, else 0; also 0 where `condition`
            has corrected biases already, which would be off in float.
        budget: the largest loss at the outputs (`calibration/loss.py`); the cheapest operators that bring it there are
            kept in float. Goes with no `keep_float` of its own.
        condition: edit weights first: "auto", or steps as `condition` takes them; "" for not at all.
        whole_table: whether every float tensor is calibrated, for the table in the metadata; False does the points
            alone, in about half the time, and `peel --target dla` then wants data.
        advise: whether a note says what conditioning is predicted to win, where it is much; takes a look at the data.
        allow_empty: whether a model in which nothing can be quantized is written all the same, without Q/DQ.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: CalibrationOptions | None = None
    feed: FeedOptions | None = None
    fold_bn: bool = False
    requantize: bool = False
    input_range: tuple[float, float] | None = None
    keep_float: int | Literal["auto"] | None = None
    budget: float | None = None
    condition: str = ""
    advise: bool = False
    whole_table: bool = True
    allow_empty: bool = False

    def keeping(self, *, by_default: bool) -> Keeping:
        """What may stay in float for accuracy; `by_default`: whether a model and its data allow it."""
        if self.keep_float is None:
            allowed = by_default and self.budget is None and self.plan.target == "gpu"
            return Keeping("auto" if allowed else 0, self.budget)
        return Keeping(self.keep_float, self.budget)


@dataclass(frozen=True)
class InsertResult:
    """A Q/DQ model, of the kind that was given (a path for a path), and how it came about.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was decided.
        inserted: what was added, what was there.
        table: the scales that were calibrated, given or estimated.
        notes: sentences on what was lifted, folded or guessed.
        warnings: sentences on operators that TensorRT's parser does not import.
    """

    model: Any
    plan: Plan
    inserted: Inserted
    table: ScaleTable
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def estimated(self) -> int:
        """How many points have a scale that no data was seen for."""
        return sum(scale.origin == "estimated" for scale in self.inserted.scales.values())


def plan(model: ModelSource, options: PlanOptions | None = None) -> Plan:
    """Where `insert` would place Q/DQ in a model, and where not; nothing is written.

    In a model that `insert` made, what was kept in float for accuracy is told too.

    Raises:
        QdqError: a model that cannot be opened or lifted to opset 13, or options that match nothing.
    """
    opened = open_model(model)
    proto = normalise(opened.proto, opened.folder).proto
    return _decide(proto, GraphView(proto.graph, opened.folder), options, stored_table(proto))


def insert(
    model: ModelSource,
    *,
    data: Data | Feed | None = None,
    scales: ScaleTable | str | Path | None = None,
    options: InsertOptions | None = None,
    output: str | Path | None = None,
) -> InsertResult:
    """Place Q/DQ where TensorRT fuses.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: calibrates every float tensor; the table is kept in the model's metadata.
        scales: a table or its file, in place of data. With neither, ranges are estimated from the model itself.
        options: see `InsertOptions`.
        output: file to write; for a path the default is `<name>.qdq.onnx` beside it.

    Raises:
        QdqError: nothing can be quantized, and `allow_empty` is not set; see `open_model`, `normalise`, `make_plan`,
            `calibrate_scales`, `insert_pairs`. Nothing is written then.
    """
    options = options or InsertOptions()
    if data is not None and scales is not None:
        raise QdqError("insert", "both data and scales are given", "give one of them")
    options.keeping(by_default=False).check(has_data=data is not None)
    opened = open_model(model)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [opened.path, *files_of(data), path_of(scales), options.plan.rules])
    notes: list[str] = []
    kept: Mapping[str, str] | None = None
    if options.condition:
        told, kept = _conditioned(opened, data, options)
        notes += told
    proto, view = _prepare(opened, options, notes)
    stored = stored_table(proto)
    table = _known(proto, view, data, scales, options)
    if options.fold_bn:
        view, folded = fold_batch_norms(view)
        notes.append(f"folded {len(folded)} BatchNormalization into the weights before them")
    decided = _decide(proto, view, options.plan, stored, table)
    advised: list[str] = []
    if data is not None:
        if not options.allow_empty:
            refuse_empty(view, decided, opened.name)  # before the data are run
        table, advised = _calibrated(proto, opened, decided, data, options, kept)
        decided = _decide(proto, view, options.plan, stored, table)
    if not options.allow_empty:
        refuse_empty(view, decided, opened.name)
    chosen: Mapping[str, Scale] = share_scales(decided, table.scales, table.all_zero)
    if scales is None and rounds_everywhere(options.plan):
        chosen = with_fixed_ranges(view, options.plan, chosen)
    done = insert_pairs(view, decided, chosen, given=scales is not None)
    if data is not None:
        store_table(proto, table)
    notes += [f"{one.site} stays in float: {one.reason}" for one in decided.refusals if one.rule == "keep-float"]
    notes += _without_scale(decided)
    if options.condition or data is not None:
        from qdqtool.verbs.conditioned import shifted_biases

        notes += shifted_biases(proto, [one.site for one in decided.refusals if one.rule == "keep-float"])
    notes += advised
    foreign = parser_warnings(proto, options.plan.trt_version)
    return InsertResult(give_back(proto, opened, target), decided, done, table, tuple(notes), foreign)


def _without_scale(decided: Plan) -> list[str]:
    """A sentence on what stays in float because no scale follows from the data."""
    left = [f"{one.site} ({one.reason})" for one in decided.refusals if one.rule == "no-scale"]
    if not left:
        return []
    more = f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else ""
    return [
        f"{len(left)} {'stay' if left[1:] else 'stays'} in float for want of a scale: {', '.join(left[:_SHOWN])}{more}"
    ]


def _prepare(opened: Opened, options: InsertOptions, notes: list[str]) -> tuple[onnx.ModelProto, GraphView]:
    """The model in a form in which Q/DQ can stand."""
    normalised = normalise(opened.proto, opened.folder)
    notes.extend(normalised.notes)
    proto = normalised.proto
    raise_ir(proto)
    view = GraphView(proto.graph, opened.folder)
    if options.requantize and view.pairs:
        view = peel_pairs(view, on_conflict="max", on_asymmetric="widen", opset=opset_of(proto)).view
        clear_metadata(proto)
    return proto, view


def _known(
    proto: onnx.ModelProto,
    view: GraphView,
    data: Data | Feed | None,
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
    from qdqtool.calibration.estimate import estimate_scales

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
    here = {name: reason for name, reason in kept.items() if name in view.producer}
    there = [name for name in cuts if name in view.producer]
    decided = make_plan(view, options, kept=here, cuts=there, all_zero=all_zero)
    if options is None or not rounds_everywhere(options):
        return decided
    return points_everywhere(proto, view, decided, options, tables)


def _conditioned(
    opened: Opened, data: Data | Feed | None, options: InsertOptions
) -> tuple[list[str], dict[str, str] | None]:
    from qdqtool.calibration.feed import Feed, inputs_of, open_feed
    from qdqtool.calibration.options import with_method
    from qdqtool.verbs.conditioned import condition_first

    if data is None:
        raise QdqError("--condition", "is decided by what the data give, and there is none", "give --data")
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(opened.proto.graph), options.feed)
    keeping = options.keeping(by_default=not feed.once and is_measurable(opened.proto, opened.folder))
    return condition_first(opened, feed, options.condition, options.plan, with_method(options.calibration), keeping)


def _calibrated(
    proto: onnx.ModelProto,
    opened: Opened,
    decided: Plan,
    data: Data | Feed,
    options: InsertOptions,
    kept: Mapping[str, str] | None,
) -> tuple[ScaleTable, list[str]]:
    """Scales of every float tensor of the plain model, in its facts what is to be kept in float; and advice.

    `kept` was chosen by conditioning, where that had to know.
    """
    from qdqtool.calibration.engine import calibrate_scales
    from qdqtool.calibration.feed import Feed, inputs_of, open_feed
    from qdqtool.calibration.options import default_method, with_method

    plain = proto
    if not is_plain(proto):
        if options.keeping(by_default=False):
            raise QdqError(opened.name, "has Q/DQ, which --keep-float would have to undo", "add --requantize")
        plain = onnx.ModelProto()
        plain.CopyFrom(proto)
        peel_pairs(GraphView(plain.graph, opened.folder), on_conflict="max")
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(plain.graph), options.feed)
    method = "mse" if options.condition else default_method(plain, once=feed.once)
    how = replace(with_method(options.calibration, method), where=opened.name)
    points = frozenset(point.tensor for point in decided.activations)
    wanted = None if options.whole_table else points
    table = calibrate_scales(plain, opened.folder, feed, how, wanted, points, options.plan)
    keeping = options.keeping(by_default=_may_keep(plain, proto, opened.folder, feed, decided, kept))
    if keeping:
        if kept is None:
            kept = choose_kept(keeping, plain, opened.folder, table, feed, how, options.plan)
        table = replace(table, facts={**table.facts, "kept": dict(kept)})
    if not options.advise or options.condition:
        return table, []
    from qdqtool.verbs.conditioned import advice_for

    return table, advice_for(plain, opened.folder, feed, options.plan)


def _may_keep(
    plain: onnx.ModelProto,
    proto: onnx.ModelProto,
    folder: Path | None,
    feed: Feed,
    decided: Plan,
    kept: Mapping[str, str] | None,
) -> bool:
    """Whether operators may stay in float for accuracy though nobody asked."""
    from qdqtool.verbs.conditioned import corrected

    if plain is not proto or feed.once or not is_measurable(plain, folder, decided):
        return False
    return kept is not None or not corrected(plain)
