# SPDX-License-Identifier: Apache-2.0
"""The public verbs: each opens, decides, does, and hands back the kind it was given. No mechanics here, no printing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.cache.text import Cache, write_cache
from qdqtool.errors import QdqError
from qdqtool.files import refuse_overwrite
from qdqtool.graph.edit import clear_metadata, get_metadata, set_metadata
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.normalise import normalise
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, make_plan
from qdqtool.match.spread import Coverage, check_coverage, spread_scales
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.passes.peel import OnConflict, Peeled, is_plain, peel_pairs
from qdqtool.passes.restore import restore_source
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion, require_caches

if TYPE_CHECKING:
    from qdqtool.calibrate.engine import CalibrationOptions
    from qdqtool.calibrate.feed import Data, Feed, FeedOptions

_TABLE, _IR = "scales", "ir_version"


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


@dataclass(frozen=True)
class PeelOptions:
    """How Q/DQ are taken out.

    Attributes:
        target: whose cache is written; "gpu".
        trt_version: whose cache is written.
        on_conflict: what to do where one tensor has several scales.
        allow_estimated: write scales that no data was seen for.
        source: the model that Q/DQ were inserted into, to be given back as it was.
    """

    trt_version: TrtVersion
    target: str = "gpu"
    on_conflict: OnConflict = "error"
    allow_estimated: bool = False
    source: ModelSource | None = None


@dataclass(frozen=True)
class PeelResult:
    """The clean model, of the kind that was given, its cache, and where each scale comes from.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        cache: what TensorRT reads.
        table: the same scales with their origin.
        float_outputs: outputs of INT8 groups without a scale: they stay in float.
        notes: warnings, a sentence each.
    """

    model: Any
    cache: Cache
    table: ScaleTable
    float_outputs: tuple[str, ...]
    notes: tuple[str, ...]


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
    target = _output_path(opened, output, ".qdq.onnx")
    notes: list[str] = []
    proto, view = _prepare(opened, options, notes)
    decided = make_plan(view, options.plan)
    table = _scales(proto, view, decided, opened, data, scales, options)
    done = insert_pairs(view, decided, table.scales, given=scales is not None)
    if data is not None:
        set_metadata(proto, _TABLE, table.to_json(indent=None))
    return InsertResult(give_back(proto, opened, target), decided, done, table, tuple(notes))


def peel(
    model: ModelSource,
    options: PeelOptions,
    *,
    output: str | Path | None = None,
    cache: str | Path | None = None,
) -> PeelResult:
    """Take the Q/DQ out again: the clean model and TensorRT's calibration cache.

    Args:
        model: a Q/DQ model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: see `PeelOptions`.
        output: file for the clean model; for a path the default is `<name>.peeled.onnx` beside it.
        cache: file for the cache; for a path the default is `<name>.cache` beside it.

    Raises:
        QdqError: a version without caches, estimated scales that were not allowed, and what `peel_pairs`,
        `check_coverage`
            and `restore_source` refuse. Nothing is written then.
    """
    require_caches(options.trt_version)
    opened = open_model(model)
    target, cache_path = _output_path(opened, output, ".peeled.onnx"), _output_path(opened, cache, ".cache")
    proto = opened.proto
    before = GraphView(proto.graph, opened.folder)
    if not before.pairs:
        raise QdqError(opened.name, "has no Q/DQ to take out", "qdqtool insert places them, qdqtool ptq needs none")
    peeled = peel_pairs(before, on_conflict=options.on_conflict)
    _refuse_estimated(opened, peeled, options)
    _restore_header(proto)
    rules = load_rules(options.target, options.trt_version)
    coverage = spread_scales(peeled.view, rules, peeled.scales)
    decided = make_plan(peeled.view, PlanOptions(options.target, options.trt_version), floats=_float_nodes(peeled))
    float_outputs = check_coverage(peeled.view, decided.groups, coverage, peeled.int8_nodes)
    notes = _peel_notes(proto, decided, coverage, options)
    proto, folder, coverage = _with_source(proto, opened, coverage, options, notes)
    result_cache = Cache.of(
        options.trt_version, {name: np.float32(scale.bits) for name, scale in coverage.scales.items()}
    )
    source_path = _source_path(options)
    for path in (target, cache_path):
        if path is not None:
            refuse_overwrite(path, [p for p in (opened.path, source_path) if p is not None])
    given = give_back(proto, replace(opened, folder=folder), target)
    if cache_path is not None:
        write_cache(result_cache, cache_path)
    return PeelResult(given, result_cache, ScaleTable(coverage.scales), tuple(float_outputs), tuple(notes))


def stored_table(proto: onnx.ModelProto) -> ScaleTable | None:
    """The table of every tensor that `insert` with data left in a model's metadata; None where there is none."""
    text = get_metadata(proto, _TABLE)
    return None if text is None else ScaleTable.from_json(text, "metadata qdqtool.scales")


def load_table(path: str | Path) -> ScaleTable:
    """The scale table of a file that `calibrate` wrote.

    Raises:
        QdqError: missing, unreadable, or not such a table.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QdqError(path, f"cannot be read ({error})", "give the file that calibrate -o wrote") from None
    return ScaleTable.from_json(text, path)


def _output_path(opened: Opened, output: str | Path | None, ending: str) -> Path | None:
    if output is not None:
        return Path(output)
    return None if opened.path is None else opened.path.with_name(opened.path.stem + ending)


def _prepare(opened: Opened, options: InsertOptions, notes: list[str]) -> tuple[onnx.ModelProto, GraphView]:
    """The model in a form in which Q/DQ can stand."""
    normalised = normalise(opened.proto, opened.folder)
    notes.extend(normalised.notes)
    proto = normalised.proto
    if proto.ir_version < 4:  # an initialiser that is no graph input needs IR 4
        set_metadata(proto, _IR, str(proto.ir_version))
        proto.ir_version = 7
    view = GraphView(proto.graph, opened.folder)
    if options.requantize and view.pairs:
        view = peel_pairs(view, on_conflict="max").view
        clear_metadata(proto)
    if options.fold_bn:
        from qdqtool.passes.fold_bn import fold_batch_norms

        view, folded = fold_batch_norms(view)
        notes.append(f"folded {len(folded)} BatchNormalization into the weights before them")
    return proto, view


def _scales(
    proto: onnx.ModelProto,
    view: GraphView,
    decided: Plan,
    opened: Opened,
    data: Data | Feed | None,
    scales: ScaleTable | str | Path | None,
    options: InsertOptions,
) -> ScaleTable:
    if scales is not None:
        return scales if isinstance(scales, ScaleTable) else load_table(scales)
    missing = [point.tensor for point in decided.activations if point.tensor not in view.pairs]
    if data is not None:
        return _calibrated(proto, opened, decided, data, options)
    if not missing:
        return ScaleTable()
    from qdqtool.calibrate.estimate import estimate_scales

    return estimate_scales(view, missing, options.input_range)


def _calibrated(
    proto: onnx.ModelProto, opened: Opened, decided: Plan, data: Data | Feed, options: InsertOptions
) -> ScaleTable:
    """Scales of every float tensor of the plain model."""
    from qdqtool.calibrate.engine import CalibrationOptions, calibrate_scales
    from qdqtool.calibrate.feed import Feed, inputs_of, open_feed

    plain = proto
    if not is_plain(proto):
        plain = onnx.ModelProto()
        plain.CopyFrom(proto)
        peel_pairs(GraphView(plain.graph, opened.folder), on_conflict="max")
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(plain.graph), options.feed)
    how = replace(options.calibration or CalibrationOptions(), where=opened.name)
    points = frozenset(point.tensor for point in decided.activations)
    return calibrate_scales(plain, opened.folder, feed, how, points=points)


def _refuse_estimated(opened: Opened, peeled: Peeled, options: PeelOptions) -> None:
    if peeled.estimated and not options.allow_estimated:
        part = f"{len(peeled.estimated)} of {len(peeled.scales)} scales"
        reason = f"{part} were estimated without data, such as that of {peeled.estimated[0]}"
        raise QdqError(opened.name, reason, "insert --data calibrates; --allow-estimated writes them all the same")


def _restore_header(proto: onnx.ModelProto) -> None:
    version = get_metadata(proto, _IR)
    if version is not None and version.isdigit():
        proto.ir_version = int(version)
    clear_metadata(proto)


def _float_nodes(peeled: Peeled) -> frozenset[str]:
    int8 = set(peeled.int8_nodes)
    return frozenset(node.key for node in peeled.view.nodes if node.key not in int8)


def _peel_notes(proto: onnx.ModelProto, decided: Plan, coverage: Coverage, options: PeelOptions) -> list[str]:
    version = options.trt_version
    notes = [version.warning] if version.warning else []
    opset, highest = opset_of(proto) or 0, version.max_opset
    if options.source is None and highest is not None and opset > highest:
        todo = "give the file it was made from with --source"
        notes.append(f"the model has opset {opset}, TensorRT {version.text} reads up to {highest}: {todo}")
    more = [point.tensor for point in decided.activations if point.tensor not in coverage.scales]
    if more:
        todo = f"insert --trt-version {version.header_number}"
        notes.append(f"TensorRT {version.text} takes INT8 at {len(more)} more tensors, such as {more[0]}: {todo}")
    return notes


def _with_source(
    proto: onnx.ModelProto, opened: Opened, coverage: Coverage, options: PeelOptions, notes: list[str]
) -> tuple[onnx.ModelProto, Path | None, Coverage]:
    """The source model with the weights that changed, where one is given; the cache then names its tensors only."""
    if options.source is None:
        return proto, opened.folder, coverage
    source = open_model(options.source)
    changed = restore_source(source.proto, source.folder, proto, opened.folder)
    if changed:
        notes.append(f"{len(changed)} weights differ from the source and were written into it, such as {changed[0]}")
    view = GraphView(source.proto.graph, source.folder)
    names = {*view.producer, *view.inputs}
    lost = [name for name in coverage.scales if name not in names]
    points = [name for name in lost if name not in coverage.spread]
    if points:
        raise QdqError(
            points[0],
            f"has a scale, but {source.name} has no such tensor",
            "give the model that Q/DQ were inserted into",
        )
    kept: Mapping[str, Scale] = {name: scale for name, scale in coverage.scales.items() if name in names}
    return source.proto, source.folder, Coverage(dict(kept), coverage.spread)


def _source_path(options: PeelOptions) -> Path | None:
    return Path(options.source) if isinstance(options.source, (str, Path)) else None
