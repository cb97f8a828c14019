# SPDX-License-Identifier: Apache-2.0
"""The verb `graft`: a plain model and a calibration cache to a Q/DQ model, the road from old caches to TensorRT 11."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import onnx

from qdqtool.cache.check import is_made_up
from qdqtool.cache.text import Cache, read_cache
from qdqtool.display import Displayed, counted, model_name, named, written
from qdqtool.errors import QdqError
from qdqtool.graph.edit import clear_metadata
from qdqtool.graph.io import ModelSource, ModelT, Opened, open_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.restrict_plan import add_points, restrict
from qdqtool.metadata import raise_ir
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import TextOption
from qdqtool.output_paths import check_target, files_of, output_path, path_of
from qdqtool.passes.inline_functions import inline_quantized
from qdqtool.passes.insert import Inserted
from qdqtool.passes.peel import has_qdq
from qdqtool.passes.typed_pairs import PlannedModel, peel_model
from qdqtool.precision.rest import Rest, RestType, rest_type
from qdqtool.precision.widen import is_typed
from qdqtool.runtime.float_tensors import find_float_tensors
from qdqtool.scales import Scale, ScaleTable
from qdqtool.target_options import CACHE_TARGETS, require_target
from qdqtool.verbs.typed_rest import TypedRest, choose_rest, data_run, give_typed

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader, DataOptions

_NEAR_PAIRS = 200_000  # names compared in search of near misses, about 1.5 s
_NEAR_LENGTH = 256  # letters of a name that is compared


@dataclass(frozen=True)
class GraftOptions:
    """How a cache goes into a model.

    Attributes:
        plan: target, version, heads, rules. Heads with a scale are quantized unless `float_heads` says otherwise.
        everywhere: place every entry, also where the rules want no pair.
        requantize: take Q/DQ that the model has out first; their scales are dropped.
        rest: the float type of what is not INT8: "fp16", "bf16" or "fp32". None is "fp16" from TensorRT 11 on, else
            "fp32". Operators whose values FP16 does not hold stay FP32: by data, else by the cache's scales.
        calibration: provider and workers, where data choose the types.
        data_options: how data is read.
    """

    plan: PlanOptions = field(default_factory=lambda: PlanOptions(float_heads="none"))
    everywhere: bool = False
    requantize: bool = False
    rest: Rest | None = None
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None


@dataclass(frozen=True, repr=False)
class GraftResult(Displayed, Generic[ModelT]):
    """A Q/DQ model, of the kind that was given, and what became of each entry of the cache.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was placed, and what was left in float without a scale.
        inserted: what was added.
        unplaced: entry without a point -> why.
        unknown: entry whose tensor the model lacks -> the nearest names it has.
        made_up: entries whose names TensorRT makes up while it reads a model: no model has them.
        uncovered: float tensors of the model that the cache lacks.
        notes: sentences on what was lifted, and on entries that hold no scale.
        rest: which operators have which float type, where what is not INT8 is FP16 or BF16; else None.
    """

    model: ModelT
    plan: Plan
    inserted: Inserted
    unplaced: dict[str, str]
    unknown: dict[str, tuple[str, ...]]
    made_up: tuple[str, ...]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]
    rest: TypedRest | None = None

    def headline(self) -> str:
        """What was placed, what was not, what the model lacks."""
        phrases = [self._placed()]
        phrases += [f"{len(self.unplaced)} entries not used"] if self.unplaced else []
        phrases += [f"{len(self.unknown)} names that the model lacks"] if self.unknown else []
        return f"{model_name(self.model)}: {'; '.join(phrases)}"

    def summary(self) -> list[str]:
        """What `qdqtool graft` prints."""
        lines = [self._placed()]
        if self.unplaced:
            lines.append(f"{counted(len(self.unplaced), 'entry')} of the cache not used:".replace("entrys", "entries"))
            reasons: dict[str, list[str]] = {}
            for name, reason in self.unplaced.items():
                reasons.setdefault(reason.split(" of ")[0], []).append(name)
            lines += [f"  {len(names)} {reason}, such as {names[0]}" for reason, names in reasons.items()]
        if self.unknown:
            shown = [name + (f" (near: {', '.join(near)})" if near else "") for name, near in self.unknown.items()]
            lines.append(f"{counted(len(shown), 'name')} that the model lacks: {named(shown)}")
        if self.made_up:
            names = counted(len(self.made_up), "name")
            lines.append(f"{names} of TensorRT's own making, which no model has, such as {self.made_up[0]}")
        if self.uncovered:
            lacking = counted(len(self.uncovered), "float tensor")
            lines.append(f"{lacking} of the model not in the cache, such as {self.uncovered[0]}")
        starved = [r.site for r in self.plan.refusals if r.rule == "no-scale"]
        if starved:
            lines.append(f"{len(starved)} places have no scale and stay in float, such as {starved[0]}")
        if self.rest is not None:
            lines.append(self.rest.summary())
        return lines + written(self.model)

    def _placed(self) -> str:
        scales, weights = counted(len(self.plan.activations), "scale"), counted(len(self.plan.weights), "weight")
        return f"placed {scales} of the cache, and pairs on {weights}"


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
        data: calibrates the points that the cache lacks, and chooses the float types where what is not INT8 becomes
            FP16 or BF16; every other scale is the cache's.
        output: file to write; for a path the default is `<name>.qdq.onnx` beside it.

    Raises:
        QdqError: data that neither fill nor choose anything, a model with Q/DQ, a cache without an entry for any point,
            and what `insert` refuses.
    """
    options = options or GraftOptions()
    require_target(options.plan.target, CACHE_TARGETS)
    opened = open_model(model)
    rest = _rest_of(opened, options, data)
    inline_quantized(opened.proto)
    target = output_path(opened, output, ".qdq.onnx")
    check_target(target, [*opened.files, *files_of(data), path_of(cache), options.plan.rules])
    given = cache if isinstance(cache, Cache) else read_cache(cache)
    entries = given.entries
    planned, lifted = _prepare(opened, options)
    view = planned.view
    tensors = list(find_float_tensors(planned.base, opened.folder, view, scaled=entries.keys()).names)
    wanted = make_plan(view, options.plan)
    filled = _filled(planned, opened, wanted, entries, (data, options))
    decided = restrict(view, wanted, {**entries, **filled})
    if options.everywhere:
        decided = add_points(view, decided, [name for name in tensors if name in entries])
    scales = _scales_of(opened, decided, entries, filled)
    done = planned.insert(decided, scales, given=True)
    unplaced = _unplaced(view, decided, entries)
    made_up, unknown = _lacking(view, entries, tensors)
    uncovered = tuple(name for name in tensors if name not in entries)
    if data is not None and not filled and not rest.is_half:
        reason = "has nothing to do: the cache has every scale that is wanted, and the rest is FP32"
        raise QdqError("--data", reason, "leave it out, or add --rest fp16")
    notes = (*lifted, *_dropped(given), *_of_filled(filled), *([rest.note] if rest.note else []))
    typed = choose_rest(
        planned.proto,
        opened,
        rest,
        _table_of(entries),
        data_run(opened, data, options.data_options, options.calibration),
    )
    notes += () if typed is None else typed.notes
    made = give_typed(planned.proto, opened, target, None if typed is None else typed.assignment)
    return GraftResult(made, decided, done, unplaced, unknown, made_up, uncovered, notes, typed)


def _rest_of(opened: Opened, options: GraftOptions, data: object) -> RestType:
    """The float type of what is not INT8; a model that has types of its own keeps them."""
    if is_typed(opened.proto):
        if options.rest is not None or data is not None:
            option = "--rest" if options.rest is not None else "--data"
            reason = f"has FP16 or BF16 tensors, which keep their types, and {option} chooses some"
            raise QdqError(opened.name, reason, f"leave {option} out, or give the FP32 model")
        return RestType()
    rest = rest_type(options.rest, options.plan.target, options.plan.trt_version, has_values=True)
    return rest if options.rest is not None or options.plan.trt_version is not None else RestType()


def _prepare(opened: Opened, options: GraftOptions) -> tuple[PlannedModel, tuple[str, ...]]:
    """The model in a form in which Q/DQ can stand, without any; and what was lifted."""
    normalized = normalize(opened.proto, opened.folder)
    proto = normalized.proto
    raise_ir(proto)
    if has_qdq(GraphView(proto.graph, opened.folder)):
        if not options.requantize:
            raise QdqError(opened.name, "has Q/DQ already", "--requantize takes them out first, as qdqtool peel does")
        peel_model(proto, opened.folder, on_conflict="max", on_asymmetric="widen", ends=True, opset=opset_of(proto))
        clear_metadata(proto)
    return PlannedModel.of(proto, opened.folder), tuple(normalized.notes)


def _scales_of(
    opened: Opened, decided: Plan, entries: Mapping[str, np.float32], filled: Mapping[str, Scale]
) -> dict[str, Scale]:
    """The scale of each point: the cache's, which must have one of them, else that from data."""
    wanted = [point.tensor for point in decided.activations]
    if not {name for name in wanted if name not in filled}:
        reason = f"none of the cache's {len(entries)} entries is for a tensor that is quantized here"
        raise QdqError(opened.name, reason, "qdqtool cache check says which names differ")
    return {name: Scale.of(entries[name], method="cache") if name in entries else filled[name] for name in wanted}


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
    opened: Opened,
    wanted: Plan,
    entries: Mapping[str, np.float32],
    run: tuple[Data | DataLoader | None, GraftOptions],
) -> dict[str, Scale]:
    """Scales of points that the cache lacks, calibrated from data by `entropy` unless a method is asked for."""
    data, options = run
    lacking = frozenset(point.tensor for point in wanted.activations) - entries.keys()
    if data is None or not lacking:
        return {}
    from qdqtool.calibration.engine import calibrate_scales
    from qdqtool.data.loader import inputs_of, open_loader
    from qdqtool.observers.options import with_method

    loader = open_loader(data, inputs_of(planned.base.graph), options.data_options)
    how = replace(with_method(options.calibration, "entropy"), where=opened.name)
    table = calibrate_scales(planned.base, opened.folder, loader, how, lacking, lacking, options.plan)
    return {name: scale for name, scale in table.scales.items() if name in lacking}


def _of_filled(filled: Mapping[str, Scale]) -> list[str]:
    """What was calibrated beside the cache, in a sentence."""
    if not filled:
        return []
    name, scale = next(iter(filled.items()))
    many = f"{counted(len(filled), 'scale')} that the cache lacks"
    return [f"{many} {'is' if len(filled) == 1 else 'are'} from data by {scale.method}, such as that of {name}"]


def _table_of(entries: Mapping[str, np.float32]) -> ScaleTable:
    """What the cache tells of the values: clipping values, no more."""
    return ScaleTable({name: Scale.of(value, method="cache") for name, value in entries.items()})


def _dropped(cache: Cache) -> list[str]:
    """What the cache names without a usable scale, in a sentence."""
    if not cache.dropped:
        return []
    name, _, reason = cache.dropped[0]
    number = len(cache.dropped)
    return [f"{number} {'entry' if number == 1 else 'entries'} of the cache left out, such as {name}: {reason}"]


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
            reasons[name] = inside.get(name, "no INT8 operator reads it, or its pair stands across what commutes")
    return reasons


def _near_misses(unknown: list[str], known: list[str]) -> dict[str, tuple[str, ...]]:
    known = [name for name in known if len(name) <= _NEAR_LENGTH]
    looked_up = [name for name in unknown[: _NEAR_PAIRS // max(1, len(known))] if len(name) <= _NEAR_LENGTH]
    near = {name: tuple(difflib.get_close_matches(name, known, 2, 0.8)) for name in looked_up}
    return {name: near.get(name, ()) for name in unknown}
