# SPDX-License-Identifier: Apache-2.0
"""The verb `peel`: a Q/DQ model to the clean model and TensorRT's calibration cache. No mechanics here, no printing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdqtool.cache.text import Cache, write_cache
from qdqtool.errors import QdqError
from qdqtool.files import refuse_overwrite
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, make_plan
from qdqtool.match.spread import Coverage, check_coverage, spread_scales
from qdqtool.passes.peel import OnConflict, Peeled, peel_pairs
from qdqtool.passes.restore import restore_source
from qdqtool.rulebook import load_rules
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import TrtVersion, require_caches
from qdqtool.verbs.opening import output_path, restore_header, source_path


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
    target, cache_path = output_path(opened, output, ".peeled.onnx"), output_path(opened, cache, ".cache")
    proto = opened.proto
    before = GraphView(proto.graph, opened.folder)
    if not before.pairs:
        raise QdqError(opened.name, "has no Q/DQ to take out", "qdqtool insert places them, qdqtool ptq needs none")
    peeled = peel_pairs(before, on_conflict=options.on_conflict)
    _refuse_estimated(opened, peeled, options)
    restore_header(proto)
    rules = load_rules(options.target, options.trt_version)
    coverage = spread_scales(peeled.view, rules, peeled.scales)
    decided = make_plan(peeled.view, PlanOptions(options.target, options.trt_version), floats=_float_nodes(peeled))
    float_outputs = check_coverage(peeled.view, decided.groups, coverage, peeled.int8_nodes)
    notes = _peel_notes(proto, decided, coverage, options)
    proto, folder, coverage = _with_source(proto, opened, coverage, options, notes)
    result_cache = Cache.of(
        options.trt_version, {name: np.float32(scale.bits) for name, scale in coverage.scales.items()}
    )
    origin = source_path(options.source)
    for path in (target, cache_path):
        if path is not None:
            refuse_overwrite(path, [p for p in (opened.path, origin) if p is not None])
    given = give_back(proto, replace(opened, folder=folder), target)
    if cache_path is not None:
        write_cache(result_cache, cache_path)
    return PeelResult(given, result_cache, ScaleTable(coverage.scales), tuple(float_outputs), tuple(notes))


def _refuse_estimated(opened: Opened, peeled: Peeled, options: PeelOptions) -> None:
    if peeled.estimated and not options.allow_estimated:
        part = f"{len(peeled.estimated)} of {len(peeled.scales)} scales"
        reason = f"{part} were estimated without data, such as that of {peeled.estimated[0]}"
        raise QdqError(opened.name, reason, "insert --data calibrates; --allow-estimated writes them all the same")


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
    kept = {name: scale for name, scale in coverage.scales.items() if name in names}
    return source.proto, source.folder, Coverage(kept, coverage.spread)
