# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan` and `insert`: open, decide, place, hand back the kind that was given. No mechanics here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import clear_metadata
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.normalise import normalise
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, make_plan
from qdqtool.passes.fold_bn import fold_batch_norms
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.passes.peel import is_plain, peel_pairs
from qdqtool.scales import ScaleTable
from qdqtool.verbs.opening import check_target, files_of, load_table, output_path, path_of, raise_ir, store_table

if TYPE_CHECKING:
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.calibration.feed import Data, Feed, FeedOptions


@dataclass(frozen=True)
class InsertOptions:
    """How Q/DQ are inserted.

    Attributes:
        plan: target, version, heads, rules.
        calibration: method and provider, where data is given.
        feed: how data is read.
        fold_bn: fold BatchNormalization into the weights first, where exact.
        requantize: take out the pairs that are there and begin anew.
        input_range: smallest and largest value of the network's input, for estimation without data.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: CalibrationOptions | None = None
    feed: FeedOptions | None = None
    fold_bn: bool = False
    requantize: bool = False
    input_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class InsertResult:
    """A Q/DQ model, of the kind that was given (a path for a path), and how it came about.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was decided.
        inserted: what was added, what was there.
        table: the scales that were calibrated, given or estimated.
        notes: sentences on what was lifted, folded or guessed.
    """

    model: Any
    plan: Plan
    inserted: Inserted
    table: ScaleTable
    notes: tuple[str, ...]

    @property
    def estimated(self) -> int:
        """How many points have a scale that no data was seen for."""
        return sum(scale.origin == "estimated" for scale in self.inserted.scales.values())


def plan(model: ModelSource, options: PlanOptions | None = None) -> Plan:
    """Where `insert` would place Q/DQ in a model, and where not; nothing is written.

    Raises:
        QdqError: a model that cannot be opened or lifted to opset 13, or options that match nothing.
    """
    opened = open_model(model)
    proto = normalise(opened.proto, opened.folder).proto
    return make_plan(GraphView(proto.graph, opened.folder), options)


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
        QdqError: see `open_model`, `normalise`, `make_plan`, `calibrate_scales`, `insert_pairs`. Nothing is written
        then.
    """
    options = options or InsertOptions()
    if data is not None and scales is not None:
        raise QdqError("insert", "both data and scales are given", "give one of them")
    opened = open_model(model)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [opened.path, *files_of(data), path_of(scales), options.plan.rules])
    notes: list[str] = []
    proto, view = _prepare(opened, options, notes)
    table = _known(view, data, scales, options)
    if options.fold_bn:
        view, folded = fold_batch_norms(view)
        notes.append(f"folded {len(folded)} BatchNormalization into the weights before them")
    decided = make_plan(view, options.plan)
    if data is not None:
        table = _calibrated(proto, opened, decided, data, options)
    done = insert_pairs(view, decided, table.scales, given=scales is not None)
    if data is not None:
        store_table(proto, table)
    return InsertResult(give_back(proto, opened, target), decided, done, table, tuple(notes))


def _prepare(opened: Opened, options: InsertOptions, notes: list[str]) -> tuple[onnx.ModelProto, GraphView]:
    """The model in a form in which Q/DQ can stand."""
    normalised = normalise(opened.proto, opened.folder)
    notes.extend(normalised.notes)
    proto = normalised.proto
    raise_ir(proto)
    view = GraphView(proto.graph, opened.folder)
    if options.requantize and view.pairs:
        view = peel_pairs(view, on_conflict="max").view
        clear_metadata(proto)
    return proto, view


def _known(
    view: GraphView, data: Data | Feed | None, scales: ScaleTable | str | Path | None, options: InsertOptions
) -> ScaleTable:
    """The scales that need no data: given ones, or estimates from BatchNormalization, before that is folded away."""
    if scales is not None:
        return scales if isinstance(scales, ScaleTable) else load_table(scales)
    if data is not None:
        return ScaleTable()
    points = make_plan(view, options.plan).activations
    missing = [point.tensor for point in points if point.tensor not in view.pairs]
    if not missing:
        return ScaleTable()
    from qdqtool.calibration.estimate import estimate_scales

    return estimate_scales(view, missing, options.input_range)


def _calibrated(
    proto: onnx.ModelProto, opened: Opened, decided: Plan, data: Data | Feed, options: InsertOptions
) -> ScaleTable:
    """Scales of every float tensor of the plain model."""
    from qdqtool.calibration.engine import CalibrationOptions, calibrate_scales
    from qdqtool.calibration.feed import Feed, inputs_of, open_feed

    plain = proto
    if not is_plain(proto):
        plain = onnx.ModelProto()
        plain.CopyFrom(proto)
        peel_pairs(GraphView(plain.graph, opened.folder), on_conflict="max")
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(plain.graph), options.feed)
    how = replace(options.calibration or CalibrationOptions(), where=opened.name)
    points = frozenset(point.tensor for point in decided.activations)
    return calibrate_scales(plain, opened.folder, feed, how, points=points)
