# SPDX-License-Identifier: Apache-2.0
"""The verb `build`: a model to an engine and what is known of its layers, in two files or none."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtool.building.recipe import BuildFacts, decide
from qdqtool.building.tensorrt import EngineRequest, build_with_tensorrt
from qdqtool.cache.check import check
from qdqtool.cache.text import Cache, read_cache
from qdqtool.calibration.tensorrt.installed import load_tensorrt
from qdqtool.data.model_inputs import check_names, inputs_of
from qdqtool.display import Cells, Displayed, counted, short_table
from qdqtool.emit.precision_json import LayerPrecisions, read_precisions
from qdqtool.engine.built_info import layers_document
from qdqtool.engine.built_text import layer_rows
from qdqtool.engine.layer_info import LAYERS_ENDING, OURS, EngineInfo
from qdqtool.engine.read_info import info_in
from qdqtool.engine.totals import EngineTotals, totals_lines, totals_of
from qdqtool.errors import QdqError
from qdqtool.files import FileSet
from qdqtool.graph.io import ModelSource, open_model, serialize
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors
from qdqtool.output_paths import check_target, check_targets
from qdqtool.passes.peel import has_qdq
from qdqtool.tensorrt_rtx.build import BuiltEngine, RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.installed import NAME, require_library
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.build_options import BuildOptions, joined_shapes

PRECISIONS_ENDING = ".precision.json"


@dataclass(frozen=True, repr=False)
class BuildResult(Displayed):
    """A built engine.

    Attributes:
        engine: the file.
        layers_file: what was written of its layers beside it; None where the builder tells none.
        info: the layers; None likewise.
        built: what built it, for what, and whether it was run, one line.
        engine_bytes: its size.
        notes: what the user must know of the build, a sentence each.
        cpu_seconds: of parse and build, for rtx; None elsewhere.
        peak_bytes: the most memory of the process that built, for rtx; None elsewhere.
    """

    engine: Path
    layers_file: Path | None
    info: EngineInfo | None
    built: str
    engine_bytes: int
    notes: tuple[str, ...] = ()
    cpu_seconds: float | None = None
    peak_bytes: int | None = None

    @property
    def totals(self) -> EngineTotals | None:
        """What the layers come to."""
        return None if self.info is None else totals_of(self.info)

    def headline(self) -> str:
        """What was built, and how large it is."""
        layers = "" if self.totals is None else f", {counted(self.totals.layers, 'layer')}"
        return f"{self.engine}: {self.built}{layers}, {self.engine_bytes:,} bytes"

    def summary(self) -> list[str]:
        """What `qdqtool build` prints."""
        lines = [f"wrote {self.engine} ({self.engine_bytes:,} bytes): {self.built}"]
        if self.layers_file is not None:
            lines.append(f"wrote {self.layers_file}: its layers")
        return lines if self.totals is None else [*lines, *totals_lines(self.totals)]

    def rows(self) -> Cells:
        """One row for each layer."""
        return () if self.info is None else layer_rows(self.info)

    def table(self) -> list[str]:
        """The first layers."""
        return short_table(self.rows()) if self.info is not None else []


def build(model: ModelSource, output: str | Path, options: BuildOptions | None = None) -> BuildResult:
    """Build an engine, and write it with what is known of its layers: both files or none.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        output: the engine's file; its layers go to `<output>.layers.json`.
        options: see `BuildOptions`.

    Raises:
        MissingPackageError: TensorRT, or TensorRT for RTX, is not installed.
        QdqError: options that contradict each other or the model, a model or cache that cannot be read, one that the
            parser or the builder refuses, a library that crashed, files that cannot be written. Nothing is
            written then.
    """
    options, output = options or BuildOptions(), Path(output)
    opened = open_model(model)
    inputs = [*opened.files, *(Path(one) for one in (options.cache, options.layer_precisions) if one is not None)]
    options = _with_batches(opened, options)
    check_target(output, inputs)  # a folder has no layers beside it
    check_targets({"the engine": output, "its layers": layers_path(output)}, inputs)
    if options.target == "rtx":
        return _build_rtx(opened, output, options)
    return _build_gpu(opened, output, options, inputs)


def _with_batches(opened: Model, options: BuildOptions) -> BuildOptions:
    """The options with shapes from 1 to the largest batch for inputs whose first axis alone is free."""
    most = options.max_batch
    if most is None:
        return options
    shapes = dict(options.shapes)
    for one in inputs_of(opened.proto.graph):
        sides = one.shape or ()
        rest = tuple(side for side in sides[1:] if isinstance(side, int))
        if one.batched and sides and len(rest) == len(sides) - 1:
            shapes.setdefault(one.name, ((1, *rest), (most, *rest), (most, *rest)))
    if most > 1 and not any(low != high for low, _, high in shapes.values()):
        reason = "is for a model in which only the batch is dynamic"
        raise QdqError("--max-batch", reason, "leave it out, or give --shapes")
    return replace(options, shapes=shapes)


def layers_path(engine: Path) -> Path:
    """Where the layers of an engine are written."""
    return engine.with_name(engine.name + LAYERS_ENDING)


def built_layers(model: ModelSource, options: BuildOptions | None = None) -> EngineInfo:
    """Build with TensorRT for RTX and keep the layers alone; nothing is written but the cache of results.

    Raises:
        QdqError: as `build`.
    """
    opened, options = open_model(model), options or BuildOptions("rtx")
    return _rtx_info(build_opened(opened, _rtx_options(options, None)), Path(opened.name))


# ------------------------------------------------------------------------------------------------ TensorRT for RTX


def _build_rtx(opened: Model, output: Path, options: BuildOptions) -> BuildResult:
    _refuse_gpu_options(options)
    library = require_library()
    with FileSet(opened.files) as files:
        temporary = files.scratch(output.resolve().parent) / "engine"
        built = build_opened(opened, _rtx_options(options, temporary), library)
        info = _rtx_info(built, output)
        files.add(temporary, output)
        facts = {"model": Path(opened.name).name, "sm": list(built.sm), "shapes": joined_shapes(built.shapes)}
        with files.open(layers_path(output)) as file:
            file.write(layers_document(info, facts))
    return BuildResult(
        output,
        layers_path(output),
        info,
        info.built,
        built.engine_bytes,
        tuple(_rtx_notes(built, options)),
        built.cpu_seconds,
        built.peak_bytes,
    )


def _rtx_options(options: BuildOptions, engine: Path | None) -> RtxBuildOptions:
    return RtxBuildOptions(options.sm, options.shapes, engine, options.seconds)


def _rtx_info(built: BuiltEngine, path: Path) -> EngineInfo:
    return built.info(path)


def _rtx_notes(built: BuiltEngine, options: BuildOptions) -> list[str]:
    chosen = {name: three for name, three in built.shapes.items() if name not in options.shapes}
    sides = ", ".join(f"{name}:{'x'.join(map(str, best))}" for name, (_, best, _) in chosen.items())
    notes = [f"built at {sides}, since the model has dynamic dimensions: --shapes sets others"] if chosen else []
    return notes + [message.message for message in built.warnings]


def _refuse_gpu_options(options: BuildOptions) -> None:
    given = {
        "--cache": options.cache,
        "--layer-precisions": options.layer_precisions,
        "--precision": options.precision,
        "--dla-core": options.dla_core,
        "--workspace": options.workspace,
        "--timing-cache": options.timing_cache,
        "--trt-version": options.trt_version,
    }
    for option, value in given.items():
        if value is not None:
            raise QdqError(option, f"is for the TensorRT of a GPU machine, not for {NAME}", "leave it out")


# -------------------------------------------------------------------------------------------------------- TensorRT


def _build_gpu(opened: Model, output: Path, options: BuildOptions, inputs: list[Path]) -> BuildResult:

    if options.sm != BuildOptions().sm:
        raise QdqError("--sm", "is for --target rtx: TensorRT builds for the GPU that it runs on", "leave it out")
    module, text, version = load_tensorrt("build needs it; build --target rtx needs no GPU")
    if options.trt_version is not None and options.trt_version != version:
        reason = f"the installed TensorRT is {version.text}, and it builds engines for itself"
        raise QdqError(f"--trt-version {options.trt_version.text}", reason, "build where that version is")
    facts = _facts(opened, options)
    recipe = decide(version, facts, options.precision, options.dla_core)
    cache = None if options.cache is None else _cache(Path(options.cache), opened, version)
    if options.layer_precisions is not None and not version.has_caches:
        reason = f"TensorRT {version.text} takes every type from the model, and its layers have none of their own"
        raise QdqError("--layer-precisions", reason, "leave it out; qdqtool insert decides what stays in float")
    precisions, notes = _precisions(options)
    timed = None if options.timing_cache is None else Path(options.timing_cache)
    with FileSet(inputs) as files:
        request = EngineRequest(
            opened.name,
            recipe,
            opened.path,
            b"" if opened.path is not None else serialize(opened.proto),
            options.shapes,
            None if cache is None or options.cache is None else (Path(options.cache), cache),
            precisions,
            options.workspace,
            None if timed is None else _scratch_copy(timed, files),
        )
        engine = build_with_tensorrt(request, module)
        with files.open(output) as file:
            file.write(engine.data)
        if timed is not None and request.timing_cache is not None:
            files.add(request.timing_cache, timed)
        line = f"TensorRT {text}, built on this machine's GPU; not run"
        info = _write_layers(engine.layers, output, (version, line), files)
    where = None if info is None else layers_path(output)
    described = (*recipe.notes, *notes, *engine.notes)
    return BuildResult(output, where, info, line, len(engine.data), described)


def _facts(opened: Model, options: BuildOptions) -> BuildFacts:
    """What of the model decides; its shapes are checked here."""
    inputs = {one.name: one for one in inputs_of(opened.proto.graph)}
    for name, shapes in options.shapes.items():
        if name not in inputs:
            check_names("--shapes", [name], tuple(inputs.values()))
        for shape in shapes:
            if not inputs[name].fits(shape):
                given = "x".join(map(str, shape))
                wanted = inputs[name].format_shape()
                raise QdqError("--shapes", f"{name!r} takes {wanted}, not {given}", "give what it takes")
    ranged = {name for name, (low, _, high) in options.shapes.items() if low != high}
    free = [one for one in inputs.values() if one.shape is None or not all(isinstance(side, int) for side in one.shape)]
    lost = next((one for one in free if one.name not in options.shapes), None)
    if lost is not None:
        guess = "x".join(str(side if isinstance(side, int) else 1) for side in lost.shape or (1,))
        reason = f"is {lost.format_shape()}, and TensorRT would use 1 for dynamic dimensions"
        raise QdqError(lost.name, reason, f"give it, such as --shapes {lost.name}:{guess}")
    open_inputs = tuple(one.name for one in free if one.name in ranged)
    quantized = has_qdq(opened.graph)
    return BuildFacts(opened.name, quantized, options.cache is not None, open_inputs)


def _cache(path: Path, opened: Model, version: TrtVersion) -> Cache:
    """The cache, if it is one of this version and of this model."""
    cache = read_cache(path)
    if cache.version != version:
        todo = f"qdqtool cache retarget {path} --trt-version {version.text}"
        raise QdqError(path, f"has the header {cache.header}, and TensorRT {version.text} would calibrate again", todo)
    if not check(cache, float_tensors(opened), ()).matched:
        raise QdqError(path, f"names no float tensor of {opened.name}", "give the cache of this model")
    return cache


def _precisions(options: BuildOptions) -> tuple[LayerPrecisions, list[str]]:
    """The layers that must stay in float: of the file that is given, or of the one beside the cache."""
    if options.layer_precisions is not None:
        return read_precisions(Path(options.layer_precisions)), []
    if options.cache is None:
        return LayerPrecisions(), []
    cache = Path(options.cache)
    beside = cache.with_name(cache.stem + PRECISIONS_ENDING)
    if beside.is_file():
        return read_precisions(beside), [f"layers of {beside} stay in float"]
    return LayerPrecisions(), ["no layer is kept in float: qdqtool peel --emit json writes which should be"]


def _scratch_copy(path: Path, files: FileSet) -> Path:
    """A copy of the file that TensorRT may write to; the file itself changes with the others or not at all."""
    place = files.scratch(path.resolve().parent) / "timing"
    if path.exists():
        place.write_bytes(path.read_bytes())
    return place


def _write_layers(text: str, engine: Path, built: tuple[TrtVersion, str], files: FileSet) -> EngineInfo | None:
    """What TensorRT tells of the layers, as it tells it, and who built them; nothing where it tells nothing."""
    if not text:
        return None
    version, line = built
    document: dict[str, Any] = json.loads(text)
    document[OURS] = {"schema": 1, "built": line, "version": version.text}
    with files.open(layers_path(engine)) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode("ascii"))
    return info_in(layers_path(engine), document)
