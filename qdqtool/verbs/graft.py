# SPDX-License-Identifier: Apache-2.0
"""The verb `graft`: a plain model and a calibration cache to a Q/DQ model, the road from old caches to TensorRT 11."""

from __future__ import annotations

import difflib
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import onnx

from qdqtool.cache.check import is_made_up, near_misses
from qdqtool.cache.sidecar import read_sidecar
from qdqtool.cache.text import Cache, read_cache
from qdqtool.calibration.engine import WantedScales, calibrate_scales, default_method
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.decisions import Provenance
from qdqtool.dla.assignment import fixable_nodes, on_dla
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.inline_functions import inline_products, inline_quantized
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.propagate_scales import equal_entries
from qdqtool.match.restrict_plan import add_points, restrict
from qdqtool.measuring.keep_float import LossMeter, samples_of
from qdqtool.measuring.sensitivity_runner import QuantizedForm
from qdqtool.metadata import store_table
from qdqtool.observers.options import with_method
from qdqtool.output_paths import check_target, files_of, output_path, path_of
from qdqtool.passes.fake_quantization import write_pairs
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.precision.rest import RestType, rest_type
from qdqtool.precision.widen import is_typed
from qdqtool.quantizing.plan import plan_pairs, settle
from qdqtool.quantizing.prepare import prepare
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.float_tensors import find_float_tensors
from qdqtool.scales import CACHE, Scale, ScaleTable
from qdqtool.target_options import CACHE_TARGETS, require_target
from qdqtool.trtversion import require_typed_dla
from qdqtool.verbs.export_evidence import export_evidence
from qdqtool.verbs.graft_notes import (
    of_dropped,
    of_filled,
    of_float_products,
    of_silent_floats,
    of_starved,
    of_types,
    starved_products,
)
from qdqtool.verbs.graft_options import GraftOptions, GraftResult
from qdqtool.verbs.insert_measure import InsertMeasurement, judge_typed
from qdqtool.verbs.typed_file import give_typed
from qdqtool.verbs.typed_rest import choose_rest, data_run

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

_NEAR_PAIRS = 200_000  # names compared in search of near misses, about 1.5 s
_NEAR_LENGTH = 256  # letters of a name that is compared


@overload
def graft(
    model: onnx.ModelProto,
    cache: Cache | str | Path,
    options: GraftOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> GraftResult[onnx.ModelProto]: ...


@overload
def graft(
    model: str | os.PathLike[str],
    cache: Cache | str | Path,
    options: GraftOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> GraftResult[Path]: ...


@overload
def graft(
    model: ModelSource,
    cache: Cache | str | Path,
    options: GraftOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> GraftResult[Any]: ...


def graft(
    model: ModelSource,
    cache: Cache | str | Path,
    options: GraftOptions | None = None,
    *,
    data: Data | DataLoader | None = None,
    output: str | Path | None = None,
) -> GraftResult[Any]:
    """Put the scales of a cache into a model as Q/DQ at the points of the plan, bit for bit.

    Weights get scales of their own, abs-max / 127 per channel: a cache has none for them.

    Args:
        model: a plain model, or with `requantize` any; a path, ModelProto, gs.Graph or a callable; never changed.
        cache: a calibration cache, or its file.
        options: see `GraftOptions`.
        data: calibrates points that the cache lacks, chooses the float types of the rest (see `GraftOptions.rest`), and
            shows what is lost.
        output: file to write; for a path the default is `<name>.qdq.onnx` beside it.

    Raises:
        QdqError: data without use, a model with Q/DQ, a cache of another export or none of its tensors, see `insert`.
    """
    options = options or GraftOptions()
    require_target(options.plan.target, CACHE_TARGETS)
    if options.plan.target == "dla":
        require_typed_dla(options.plan.trt_version)
    opened = open_model(model)
    require_finite(opened.view)
    rest = _rest_of(opened, options, data)
    inline_quantized(opened)
    inline_products(opened)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [*opened.files, *files_of(data, cache), options.plan.rules])
    given, doubts = _read(opened, cache, force=options.force)
    own = {*opened.view.inputs, *opened.view.producers}  # before a conversion of the opset adds tensors
    planned, lifted = _prepare(opened, options)
    view = planned.base.view  # before pairs are placed
    fixable = fixable_nodes(planned.base, options.plan)
    tensors = list(find_float_tensors(planned.base, scaled=given.entries.keys()).names)
    if data is None:
        feed, facts, said = None, _facts_of(path_of(cache)), tuple[str, ...]()
    else:
        options, said = with_known(options, opened, data, cache=path_of(cache))
        feed = open_loader(data, inputs_of(planned.base.graph), options.data_options)
        facts = feed.facts()
    placed = _place(planned, opened, given.entries, tensors, (feed, options, rest))
    meter = None  # of the model before it gets pairs
    if feed is not None:
        provider = with_method(options.calibration).provider
        meter = LossMeter.of(samples_of(ObservableModel(planned.base, provider, opened.name), feed))
    done = planned.insert(placed.plan, placed.scales, given=True)
    table = _table_of(placed, tensors, facts)
    run = data_run(opened, feed, options.data_options, options.calibration)
    typed = choose_rest(planned.model, rest, table, run)
    form, measured = QuantizedForm.of(placed.plan, done.scales), InsertMeasurement(meter=meter)
    lost, _ = judge_typed(planned.model, typed, form, measured, None)
    float32 = None if typed is None else typed.assignment.float32
    dla = on_dla(planned.model, placed.plan, options.plan, fixable, float32)
    store_table(planned.model.proto, table)
    notes = [
        *doubts,
        *said,
        *lifted,
        *of_dropped(given),
        *of_filled(placed.filled),
        *placed.notes,
        *of_types(rest, typed),
    ]
    if options.plan.target == "gpu":
        notes += of_silent_floats(planned.base, options.plan)
    made_up, unknown = _lacking(view, given.entries, tensors)
    return GraftResult(
        plan=placed.plan,
        inserted=done,
        unplaced=_unplaced(view, placed.plan, [name for name in given.entries if name not in placed.lent.values()]),
        unknown=unknown,
        made_up=made_up,
        uncovered=tuple(name for name in tensors if name in own and name not in given.entries),
        notes=tuple(notes),
        rest=typed,
        filled=tuple(placed.filled),
        lent=placed.lent,
        data=None if feed is None else feed.facts(),
        warnings=(
            *(() if feed is None else feed.notes),
            *of_starved(placed.starved),
            *([] if dla is None else dla.overflow()),
        ),
        dla=dla,
        starved=placed.starved,
        output_loss=lost,
        model=give_typed(planned.model.proto, opened, target, None if typed is None else typed.assignment),
    )


@dataclass(frozen=True, eq=False)
class _Placement:
    """Where scales go."""

    plan: Plan
    scales: dict[str, Scale]
    known: Mapping[str, np.float32]
    filled: dict[str, Scale]
    lent: dict[str, str]
    starved: dict[str, tuple[str, ...]]
    notes: list[str]


def _place(
    planned: PlannedModel,
    opened: Model,
    entries: Mapping[str, np.float32],
    tensors: Iterable[str],
    run: tuple[DataLoader | None, GraftOptions, RestType],
) -> _Placement:
    """The points that have a scale: of the cache, of a tensor with the same values, or from data."""
    view, options = planned.base.view, run[1]
    wanted = plan_pairs(planned.base, options.plan)
    lent = equal_entries(view, options.plan.rule_book(), entries, [point.tensor for point in wanted.activations])
    known = {**entries, **{name: entries[lender] for name, lender in lent.items()}}
    filled = _filled(planned, opened, wanted, known, (run[0], options))
    _check_use(run[0], filled, run[2])
    decided = restrict(view, wanted, {**known, **filled})
    if options.everywhere:
        decided = add_points(view, decided, [name for name in tensors if name in entries])
    starved = starved_products(view, wanted, decided)
    decided = _with_second_pairs(view, decided, options.plan, entries, {**known, **_bits(filled)})
    floats = of_float_products(view, decided, options.plan.rule_book(), entries)
    scales = _scales_of(opened, decided, known, filled)
    lent = {name: one for name, one in lent.items() if name in scales}
    return _Placement(decided, scales, known, filled, lent, starved, floats)


def _read(opened: Model, source: Cache | str | Path, *, force: bool) -> tuple[Cache, list[str]]:
    """The cache, and what speaks against it where that is no proof or it is wanted all the same; a proof is refused."""
    cache, path = source if isinstance(source, Cache) else read_cache(source), path_of(source)
    evidence = export_evidence(opened, cache)
    if not evidence:
        return cache, []
    where, said = str(path or "the cache"), "; ".join(evidence.sentences())
    todo = "give the cache of this export"
    if evidence.shift:
        old, new = path or "CACHE", path.with_suffix(".shifted.cache") if path else "NEW"
        todo = f"qdqtool cache convert {old} --to trt --shift-names {evidence.shift} -o {new} renames its entries"
    if evidence.is_proof and not force:
        raise QdqError(where, f"is of another export than {opened.name}: {said}", f"{todo}; --force takes it as it is")
    return cache, [f"{where} may be of another export than {opened.name}: {said}; {todo}"]


def _rest_of(opened: Model, options: GraftOptions, data: object) -> RestType:
    """The float type of what is not INT8; a model that has types of its own keeps them."""
    if is_typed(opened):
        if options.rest is not None or data is not None:
            option = "--rest" if options.rest is not None else "--data"
            reason = f"has FP16 or BF16 tensors, which keep their types, and {option} chooses some"
            raise QdqError(opened.name, reason, f"leave {option} out, or give the FP32 model")
        return RestType()
    return rest_type(options.rest, options.plan.target, options.plan.trt_version, has_values=True)


def _prepare(opened: Model, options: GraftOptions) -> tuple[PlannedModel, tuple[str, ...]]:
    """The model in a form in which Q/DQ can stand, without any; and what was lifted."""
    paired = write_pairs(opened)
    has_pairs = has_qdq(opened.graph)
    if has_pairs and not options.requantize:
        raise QdqError(opened.name, "has Q/DQ already", "--requantize takes them out first, as qdqtool peel does")
    prepared = prepare(opened, options.plan, requantize=has_pairs)
    return prepared.planned, (*prepared.notes, *paired)


def _scales_of(
    opened: Model, decided: Plan, entries: Mapping[str, np.float32], filled: Mapping[str, Scale]
) -> dict[str, Scale]:
    """The scale of each point: the cache's, which must have one of them, else that from data.

    A second pair whose tensor the cache lacks has none here: it takes that of the pair before it.
    """
    wanted = [point.tensor for point in decided.activations if not point.repeats]
    if not {name for name in wanted if name not in filled}:
        reason = f"none of the cache's {len(entries)} entries is for a tensor that is quantized in this model"
        raise QdqError(opened.name, reason, "qdqtool cache check says which names differ")
    return {name: Scale.of(entries[name], method=CACHE) if name in entries else filled[name] for name in wanted}


def _with_second_pairs(
    view: GraphView,
    decided: Plan,
    options: PlanOptions,
    entries: Container[str],
    given: Mapping[str, np.float32],
) -> Plan:
    """The plan with its second pairs, each with the scale that the cache has for its tensor, where it has one."""
    doubled, _ = settle(view, decided, options.rule_book(), given=given)
    own = (
        replace(point, shared_scale=point.tensor, repeats=(), raised=False)
        if point.repeats and point.tensor in entries
        else point
        for point in doubled.points
    )
    return replace(doubled, points=tuple(own))


def _bits(filled: Mapping[str, Scale]) -> dict[str, np.float32]:
    return {name: np.float32(scale.bits) for name, scale in filled.items()}


def _lacking(
    view: GraphView, entries: Iterable[str], tensors: list[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Entries whose tensors the model lacks: those that TensorRT makes up, and the others with their near misses."""
    known = {*view.producers, *view.inputs, *view.initializers}
    lacking = [name for name in entries if name not in known]
    constants = known.difference(tensors)
    made_up = {name: None for name in lacking if is_made_up(name, constants)}
    return tuple(made_up), _near_misses([name for name in lacking if name not in made_up], tensors)


def _filled(
    planned: PlannedModel,
    opened: Model,
    wanted: Plan,
    entries: Mapping[str, np.float32],
    run: tuple[DataLoader | None, GraftOptions],
) -> dict[str, Scale]:
    """Scales of points that the cache lacks, calibrated from data as `insert` does it."""
    loader, options = run
    lacking = frozenset(point.tensor for point in wanted.activations) - entries.keys()
    if loader is None or not lacking:
        return {}

    method = default_method(opened.proto, once=loader.once)
    how = replace(with_method(options.calibration, method), where=opened.name)
    table = calibrate_scales(planned.base, loader, how, WantedScales(lacking, lacking, options.plan))
    return {name: scale for name, scale in table.scales.items() if name in lacking}


def _check_use(loader: DataLoader | None, filled: Mapping[str, Scale], rest: RestType) -> None:
    """Refuse data that neither fill nor choose anything."""
    if loader is not None and not filled and not rest.is_half:
        reason = "has no effect: the cache has every scale that is needed, and nothing is written as FP16"
        raise QdqError("--data", reason, "leave it out, or add --rest fp16")


def _table_of(placed: _Placement, tensors: list[str], data: Mapping[str, Any] | None) -> ScaleTable:
    """What the cache and data tell of the model's tensors: clipping values, no more; and which data."""
    own = {name: Scale.of(placed.known[name], method=CACHE) for name in tensors if name in placed.known}
    return ScaleTable({**own, **placed.filled}, provenance=Provenance(data=data))


def _unplaced(view: GraphView, decided: Plan, entries: Iterable[str]) -> dict[str, str]:
    """Why an entry whose tensor the model has was not placed."""
    placed = {point.tensor for point in decided.activations}
    inside = {
        name: f"inside the fused group of {group.start.name}"
        for group in decided.groups
        for node in group.nodes
        for name in node.outputs
        if name != group.output
    }
    reasons: dict[str, str] = {}
    for name in entries:
        if name in placed or not (name in view.producers or name in view.inputs or name in view.initializers):
            continue
        if view.is_constant(name):
            reasons[name] = "a constant"
        else:
            reasons[name] = inside.get(
                name, "no INT8 operator reads it, or an equivalent pair is placed at a neighboring tensor"
            )
    return reasons


def _near_misses(unknown: list[str], known: list[str]) -> dict[str, tuple[str, ...]]:
    known = [name for name in known if len(name) <= _NEAR_LENGTH]
    looked_up = [name for name in unknown[: _NEAR_PAIRS // max(1, len(known))] if len(name) <= _NEAR_LENGTH]
    near = {name: tuple(difflib.get_close_matches(name, known, 2, 0.8)) for name in looked_up}
    parts = dict(near_misses([name for name in looked_up if not near[name]], known))
    return {name: near.get(name, ()) or ((parts[name],) if name in parts else ()) for name in unknown}


def _facts_of(cache: Path | None) -> dict[str, Any] | None:
    """The sidecar's account of the data of a cache, for metadata; None without their preprocessing."""
    sidecar = None if cache is None else read_sidecar(cache)
    if sidecar is None or not sidecar.fresh or not sidecar.data.get("preprocess"):
        return None
    return {key: sidecar.data[key] for key in ("kind", "name", "preprocess") if key in sidecar.data}
