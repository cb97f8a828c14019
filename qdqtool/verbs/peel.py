# SPDX-License-Identifier: Apache-2.0
"""The verb `peel`: a Q/DQ model to the clean model and TensorRT's calibration cache. No mechanics here, no printing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import onnx
from onnx import TensorProto

from qdqtool.cache.sidecar import check_place, sidecar_path, tensor_facts, write_with_sidecar
from qdqtool.cache.text import Cache, format_cache
from qdqtool.dla.assignment import DlaReport, dla_findings
from qdqtool.emit.write_files import CacheJob, check_kinds, emit_places, emitted_texts, float_layers, write_emitted
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.files import FileSet
from qdqtool.graph.edit import edits_of
from qdqtool.graph.inline_functions import inline_products, inline_quantized
from qdqtool.graph.io import ModelSource, copy_of, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.opset_lower import HIGHEST, LOWEST, lower, opset_beyond
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.propagate_scales import check_coverage, spread_scales, with_cached_scales
from qdqtool.metadata import restore_header, stored_table
from qdqtool.output_paths import check_targets, files_of, output_path
from qdqtool.passes.bake_weights import Baked, bake_weights
from qdqtool.passes.dead_channels import repair_dead_channels
from qdqtool.passes.fake_quantization import find_fake_quantization, write_pairs
from qdqtool.passes.peel import Peeled, has_qdq
from qdqtool.passes.quant_params import OnAsymmetric
from qdqtool.passes.relu6 import replay_cuts
from qdqtool.passes.replay_conditioning import replay_additions
from qdqtool.passes.restore_weights import restore_source
from qdqtool.passes.typed_pairs import peel_model
from qdqtool.passes.unsupported_quant_ops import refuse_outsiders
from qdqtool.precision.assignment import PrecisionRecord, rest_name
from qdqtool.precision.casts import take_out_types, types_over_pairs
from qdqtool.precision.widen import Widened, is_typed, refuse_typed, widen_named
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion, require_cache_for
from qdqtool.verbs.dla_range_notes import notes_of_two_ranges
from qdqtool.verbs.fill_scales import fill_every_tensor
from qdqtool.verbs.peel_options import PeelOptions, PeelResult
from qdqtool.verbs.typed_file import give_typed

OWN_SCALES = "a scale for each channel"  # of a note that warns of nothing


@dataclass(frozen=True)
class _Covered:
    """What goes into the cache, and what is said of it."""

    scales: dict[str, Scale]
    own: dict[str, Scale] = field(default_factory=dict)
    shared_scales: dict[str, str] = field(default_factory=dict)
    float_outputs: tuple[str, ...] = ()
    unscaled: dict[str, str] = field(default_factory=dict)

    def origins(self) -> dict[str, int]:
        """How many scales come from where."""
        return dict(Counter(self.own.get(name, scale).origin for name, scale in self.scales.items()))


@overload
def peel(
    model: onnx.ModelProto, options: PeelOptions, *, output: str | Path | None = ..., cache: str | Path | None = ...
) -> PeelResult[onnx.ModelProto]: ...


@overload
def peel(
    model: str | os.PathLike[str],
    options: PeelOptions,
    *,
    output: str | Path | None = ...,
    cache: str | Path | None = ...,
) -> PeelResult[Path]: ...


@overload
def peel(
    model: ModelSource, options: PeelOptions, *, output: str | Path | None = ..., cache: str | Path | None = ...
) -> PeelResult[Any]: ...


def peel(
    model: ModelSource,
    options: PeelOptions,
    *,
    output: str | Path | None = None,
    cache: str | Path | None = None,
) -> PeelResult[Any]:
    """Take the Q/DQ out again: the clean model and TensorRT's calibration cache.

    Args:
        model: a Q/DQ model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: see `PeelOptions`.
        output: file for the clean model; for a path the default is `<name>.peeled.onnx` beside it.
        cache: file for the cache; for a path the default is `<name>.cache` beside it. What stands in it and why goes
            into `<cache>.json`. Without one here, pairs of a format that no cache holds are taken out and none is
            written.

    Raises:
        QdqError: a version without caches, estimated scales that were not allowed, a tensor without a scale, and what
            `peel_pairs`, `replay_cuts`, `replay_additions`, `restore_source`, `emit` refuse. Nothing is written then.
    """
    as_it_is = ("build the Q/DQ model as it is, with trtexec",) if options.target == "gpu" else ()
    require_cache_for(options.trt_version, options.target, *as_it_is)
    check_kinds(options)
    opened = open_model(model)
    target, cache_path, places = _checked_places(opened, options, output, cache)
    options, said = with_known(options, opened, options.data, anew=options.force_ptq)
    opened, record = _without_types(opened)
    wants_cache = cache is not None or options.target == "dla" or bool(options.emit)
    peeled, table, notes = _take_out(opened, options, wants_cache=wants_cache)
    clean = _clean_model(opened, options, record, notes, codes=peeled.uncached is not None)
    if options.lower_opset:
        notes += _lowered(clean, options.trt_version)
    notes[:0] = [*said, *_warnings(clean, options)]
    if peeled.uncached is not None:
        _, row = peeled.uncached
        notes.append(f"no cache is written: none holds {row.title}")
        if options.source is None and row.stored == "codes":
            notes.append(f"weights are the values of their {row.title} codes; --source gives them as they were before")
        given = give_typed(clean.proto, replace(clean, kind=opened.kind, path=opened.path), target, None)
        kept = ScaleTable(peeled.scales)
        return PeelResult(
            given, None, kept, (), {}, dict(Counter(one.origin for one in kept.scales.values())), tuple(notes), Baked()
        )
    flat = _inlined(clean, notes)
    wide = widen_named(flat) if is_typed(flat) else Widened(flat)
    found, covered, baked = _decide(opened, wide.model, peeled, table, options)
    if flat is not clean:
        restore_source(clean, flat)  # weights that were baked
    notes += [*notes_of_weights(baked, baking=options.bake_weights), *_more_points(found.plan, covered.scales, options)]
    texts, emit_notes = emitted_texts(found, options, target, cache_path)
    notes += emit_notes
    layers = tuple(float_layers(found))
    _take_names(flat.proto, wide)
    if not options.emit:  # then no file tells a builder of them
        notes += notes_of_two_ranges(found.view, found.rules, found.cache.entries, options.trt_version)
    text = format_cache(found.cache).encode()
    replaced = cache is None and cache_path is not None and _holds_other(cache_path, text)
    with FileSet((*opened.files, *clean.files)) as files:
        given = give_typed(clean.proto, replace(clean, kind=opened.kind, path=opened.path), target, None, files)
        if cache_path is not None:
            facts = _facts(opened, found.cache, covered, options)
            if table.provenance.data:
                facts["data"] = table.provenance.data
            write_with_sidecar(cache_path, text, facts, files)
        emitted = write_emitted(texts, places, files)
    if replaced:
        notes.append(f"{cache_path} replaced another cache; --cache writes another file")
    barred = files.not_executable.items()
    notes += [f"{path} could not be made executable ({reason}): run it with sh" for path, reason in barred]
    return PeelResult(
        model=given,
        cache=found.cache,
        table=ScaleTable(covered.scales, covered.unscaled),
        float_outputs=covered.float_outputs,
        shared_scales=covered.shared_scales,
        origins=covered.origins(),
        notes=tuple(notes),
        emitted=emitted,
        weights=baked,
        target=options.target,
        path=cache_path if cache is None else cache,
        data=table.provenance.data,
        layers=layers,
        dla=_dla_report(found.view, found.plan, options),
    )


def _holds_other(place: Path, text: bytes) -> bool:
    """Whether a file is there that holds something else."""
    return place.is_file() and (place.stat().st_size != len(text) or place.read_bytes() != text)


def _decide(
    opened: Model, plain: Model, peeled: Peeled, table: ScaleTable, options: PeelOptions
) -> tuple[CacheJob, _Covered, Baked]:
    """What goes into the cache of the clean model in FP32; weights that are to be baked are written into that model."""
    view = plain.view
    rules, int8 = options.rule_book(), set(peeled.int8_nodes)
    floats = frozenset(node.key for node in view.nodes if node.key not in int8)
    placing = PlanOptions(options.target, options.trt_version)
    decided = plan_pairs(plain, placing, floats=floats, everywhere=False)
    points = _points_of(view, peeled, plain)
    if not points and not options.force_ptq:
        todo = "give TensorRT the Q/DQ model itself, or quantize activations, too"
        raise QdqError(opened.name, "has Q/DQ on constants alone, so a cache would hold no scale", todo)
    baked = bake_weights(view, decided.weights, peeled.codes, rules.policy.weight_rounding, write=options.bake_weights)
    if rules.policy.rounds_everything:
        complete = fill_every_tensor(plain, rules, decided, points, table, options)
        unscaled = {name: complete.exempt.get(name, "no scale was found") for name in complete.left}
        covered = _Covered(complete.scales, complete.own, complete.shared_scales, (), unscaled)
    else:
        coverage = spread_scales(view, rules, points)
        outputs = check_coverage(view, decided.groups, coverage, peeled.int8_nodes)
        covered = _Covered(with_cached_scales(coverage, table), float_outputs=tuple(outputs))
    made = Cache.of(options.trt_version, {name: np.float32(scale.bits) for name, scale in covered.scales.items()})
    return CacheJob(plain, rules, decided, frozenset(peeled.int8_nodes), made, table), covered, baked


def _dla_report(view: GraphView, decided: Plan, options: PeelOptions) -> DlaReport | None:
    """What the DLA will run of the clean model; None for a GPU."""
    if options.target != "dla":
        return None
    weighted = {node.key for node in view.nodes if weight_index(view, node) is not None}
    return dla_findings(view, options.trt_version, floats=weighted & set(decided.float_nodes))


def _take_names(clean: onnx.ModelProto, wide: Widened) -> None:
    """Give nodes of a typed model the names that builders are told, which its form in FP32 got."""
    if wide.model.proto is not clean:
        named = {node.output[0]: node.name for node in wide.model.graph.node if node.name}
        for node in clean.graph.node:
            key = wide.names.get(node.output[0], node.output[0])
            if not node.name and key in named and node.output[0] not in wide.casts:
                node.name = named[key]


def _checked_places(
    opened: Model, options: PeelOptions, output: str | Path | None, cache: str | Path | None
) -> tuple[Path | None, Path | None, Mapping[str, Path]]:
    """Where the model, the cache and the emitted files go; places that would do harm are refused before anything."""
    target, cache_path = output_path(opened, output, ".peeled.onnx"), output_path(opened, cache, ".cache")
    emitted = emit_places(options, cache_path)
    inputs = [*opened.files, *files_of(options.source, options.data, options.names)]
    outputs: dict[str, Path | None] = {"the model": target, "the cache": cache_path}
    if cache_path is not None:
        outputs["the cache's details"] = sidecar_path(cache_path)
    check_targets({**outputs, **{f"--emit {kind}": path for kind, path in emitted.items()}}, inputs)
    if cache_path is not None:
        check_place(cache_path, inputs)
    return target, cache_path, emitted


def _without_types(opened: Model) -> tuple[Model, PrecisionRecord | None]:
    """The model in FP32, where `insert` or `amp` gave it its types after its pairs; and what they were."""
    record = types_over_pairs(opened.proto)
    if record is None:
        return opened, None
    return take_out_types(opened, record), record


def _take_out(opened: Model, options: PeelOptions, *, wants_cache: bool) -> tuple[Peeled, ScaleTable, list[str]]:
    """The pairs' scales, the table that calibration left in the metadata, and notes; the model is plain after it."""
    inlined = inline_quantized(opened)
    paired = write_pairs(opened, lift=False)
    repair_dead_channels(opened.view)  # their scales go nowhere
    refuse_outsiders(opened.view)
    if options.bake_weights:
        refuse_typed(opened, "--bake-weights writes FP32 weights")
    if not has_qdq(opened.graph):
        reason = "; ".join(("has no Q/DQ to take out", *paired))
        raise QdqError(opened.name, reason, "qdqtool insert places them, qdqtool ptq needs none")
    widen: OnAsymmetric = "widen" if options.force_ptq else options.on_asymmetric
    opset = opset_of(opened.proto)
    peeled = peel_model(
        opened,
        on_conflict=options.on_conflict,
        on_asymmetric=widen,
        ends=True,
        opset=opset,
        drop_scales=options.force_ptq,
    )
    if wants_cache and (
        not options.force_ptq or options.target != "dla"
    ):  # for a GPU, scales of pairs are taken anyway
        peeled.refuse_other_formats()
    if peeled.uncached is None and peeled.estimated and not options.allow_estimated and not options.force_ptq:
        part = f"{len(peeled.estimated)} of {len(peeled.scales)} scales"
        reason = f"{part} were estimated without data, such as that of {peeled.estimated[0]}"
        raise QdqError(opened.name, reason, "insert --data calibrates; --allow-estimated writes them anyway")
    table = stored_table(opened.proto) or ScaleTable()
    restore_header(opened.proto)
    notes = [*paired, *peeled.notes]
    if inlined:
        notes.append(f"inlined local functions with Q/DQ: {', '.join(inlined)}")
    return peeled, table, notes


def _clean_model(
    opened: Model, options: PeelOptions, record: PrecisionRecord | None, notes: list[str], *, codes: bool
) -> Model:
    """The peeled model, or the source with the weights that changed since, where one is given.

    Weights that are stored as `codes` cannot be written into the source, and without them no other change fits it.
    """
    rest = TensorProto.FLOAT if record is None else record.assignment.rest
    if options.source is None:
        if record is not None:
            notes.append(
                f"the model is FP32 again, and its constants keep the rounding of {rest_name(rest).upper()}:"
                " --source restores the original ones"
            )
        return opened
    source = open_model(options.source)
    if has_qdq(source.graph) or any(chain.kind for chain in find_fake_quantization(source.view)):
        raise QdqError(f"--source {source.name}", "has Q/DQ itself", "give the model that Q/DQ were inserted into")
    if codes:
        if edits_of(opened.proto):
            notes.append("the source is given as it is: edits of condition are in the codes, and not in its weights")
        return source
    if edits_of(opened.proto):
        inline_products(source)  # as condition did
    cut = replay_cuts(source, opened.proto)
    if cut:
        notes.append(f"{len(cut)} Relu are limited to 6 in the source, too, as condition did, such as {cut[0]}")
    added = replay_additions(source, opened)
    if added:
        notes.append(f"{len(added)} constants and Mul of condition were added to the source, too, such as {added[0]}")
    changed = restore_source(source, opened, rest)
    if changed:
        notes.append(f"{len(changed)} weights differ from the source and were written into it, such as {changed[0]}")
    return source


def _inlined(clean: Model, notes: list[str]) -> Model:
    """The clean model with its local functions inlined as `insert` did, by whose tensors scales are decided."""
    if not clean.proto.functions:
        return clean
    flat = replace(clean, proto=copy_of(clean.proto))
    names = inline_products(flat)
    if not names:
        return clean
    notes.append(
        f"the cache names the tensors inside of local functions ({', '.join(names)}) as in the inlined model, which"
        " peel writes without --source; a builder that reads the source may name them otherwise"
    )
    return flat


def _lowered(clean: Model, version: TrtVersion) -> list[str]:
    """Lower the clean model to what the parser of a version reads; a sentence on what was done."""
    highest = opset_beyond(clean.proto, version)
    done = None if highest is None else lower(clean, highest, clean.name)
    return [] if done is None else [done.note]


def _points_of(view: GraphView, peeled: Peeled, clean: Model) -> dict[str, Scale]:
    """The points' scales, all of whose tensors the clean model has, made by the same weighted operators."""
    todo = "give the model that Q/DQ were inserted into"
    absent = [name for name in peeled.scales if name not in view.producers and name not in view.inputs]
    lifted = _made_by_lifting(clean) if absent else frozenset()
    for name in absent:
        if name not in lifted:
            raise QdqError(name, f"has a scale, but {clean.name} has no such tensor", todo)
    bare = peeled.model.view
    for node in bare.nodes:
        if weight_index(bare, node) is not None:
            there = view.producers.get(node.key)
            if there is None or there.op != node.op:
                other = "nothing" if there is None else there.op
                reason = (
                    f"is made by {node.op}, but by {other} in {clean.name}: the weights were folded or edited since"
                )
                raise QdqError(node.key, reason, f"{todo}, or peel without --source")
    return {name: scale for name, scale in peeled.scales.items() if name not in lifted}


def _made_by_lifting(clean: Model) -> frozenset[str]:
    """Tensors that a model has only once it is lifted to the opset of Q/DQ: the old parser will not make them."""
    before = {name for node in clean.proto.graph.node for name in node.output}
    lifted = clean.copy()
    normalize(lifted)
    return frozenset(name for node in lifted.graph.node for name in node.output if name not in before)


def _warnings(clean: Model, options: PeelOptions) -> list[str]:
    version = options.trt_version
    notes = [version.warning] if version.warning else []
    opset, highest = opset_of(clean.proto) or 0, version.max_opset
    if highest is not None and opset > highest:
        todo = f"export it with opset {highest}"
        if options.source is None:
            todo += ", or give the file it was made from with --source"
        if opset <= HIGHEST and highest >= LOWEST:
            todo += ", or add --lower-opset, where it can be lowered exactly"
        notes.append(f"the model has opset {opset}, TensorRT {version.text} reads up to {highest}: {todo}")
    return notes


def _more_points(decided: Plan, scales: dict[str, Scale], options: PeelOptions) -> list[str]:
    more = [point.tensor for point in decided.activations if point.tensor not in scales]
    if not more:
        return []
    version, todo = options.trt_version, f"insert --trt-version {options.trt_version.header_number}"
    return [f"TensorRT {version.text} takes INT8 at {len(more)} more tensors, such as {more[0]}: {todo}"]


def _facts(opened: Model, cache: Cache, covered: _Covered, options: PeelOptions) -> dict[str, Any]:
    """What stands beside the cache."""
    asked = {"target": options.target, "trt_version": options.trt_version.text, "on_conflict": options.on_conflict}
    if options.on_asymmetric != "error":
        asked["on_asymmetric"] = options.on_asymmetric
    if options.bake_weights:
        asked["bake_weights"] = "True"
    if options.lower_opset:
        asked["lower_opset"] = "True"
    if options.target == "dla":
        asked |= {"fill": options.fill, "ties": str(options.shared_scales), "force_ptq": str(options.force_ptq)}
    before = {name: np.float32(scale.bits) for name, scale in covered.own.items()}
    return {
        "verb": "peel",
        "header": cache.header,
        "model": {"sha256": opened.sha256},
        "options": asked,
        "tensors": tensor_facts(covered.scales, before),
    }


def notes_of_weights(baked: Baked, *, baking: bool) -> list[str]:
    """What is to be said of weights that TensorRT quantizes to other integers than their pairs did."""
    other, notes = baked.agreeing + baked.nearest, []
    if other and other == baked.coarse and not baking:
        channels = f"{other} of {baked.channels} weight channels"
        notes.append(f"TensorRT quantizes {channels} by {OWN_SCALES}; their Q/DQ have one scale for a whole weight")
    elif other:
        note = (
            f"TensorRT would quantize {other} of {baked.channels} weight channels to other integers than their Q/DQ"
            f"{_why_other(baked, other)}"
        )
        if baked.weights and not baking:
            note += f"; with --bake-weights {baked.agreeing} of them get the integers of their Q/DQ"
        elif baked.weights:
            change = f"by at most {baked.largest_change:.3g} steps"
            note += f": {len(baked.weights)} weights are written as they were, {change}, and {baked.agreeing} agree"
        if baked.nearest:
            note += f"; {baked.nearest} cannot, for their largest integer is not 127: TensorRT rounds to its own steps"
        notes.append(note)
    if baked.unread:
        name, reason = next(iter(baked.unread.items()))
        notes.append(f"weights that were not compared with their Q/DQ: {len(baked.unread)}, such as {name}: {reason}")
    return notes


def _why_other(baked: Baked, other: int) -> str:
    """Where other integers come from: ties, by one step each, or another range."""
    ties = "rounding ties: values half way between two integers, which Q/DQ rounds to even and TensorRT does not"
    range_ = "range was clipped, learned, or that of the whole tensor"
    if not baked.ties:
        return f", whose {range_}"
    if baked.ties == other:
        return f" by {ties}"
    return f": {baked.ties} by {ties}; of the {other - baked.ties} others the {range_}"
