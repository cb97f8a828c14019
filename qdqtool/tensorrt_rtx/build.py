# SPDX-License-Identifier: Apache-2.0
"""An engine built ahead of time by NVIDIA's compiler on a CPU, and what its log says of the engine's layers.

No layer was run: types, sizes and ONNX nodes are the compiler's own words; nothing here is a time on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from qdqtool.engine.built_info import built_line
from qdqtool.engine.built_layers import parse_layers
from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.engine.totals import EngineTotals, totals_of
from qdqtool.errors import QdqError
from qdqtool.files import FileSet
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.tensorrt_rtx.installed import NAME, RtxLibrary, require_library
from qdqtool.tensorrt_rtx.jobs import run_job
from qdqtool.tensorrt_rtx.parser import ParserMessage, verdict_of

SECONDS = 600.0
_TODO_SHAPES = "give an input's sides as min:opt:max, such as 1x3x320x320:1x3x640x640:4x3x640x640"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RtxBuildOptions:
    """How an engine is built.

    Attributes:
        sm: compute capabilities that it runs on, such as ("89", "120"). The log lists the layers of one of them.
        shapes: input -> lowest, best and highest shape, for inputs with free sides. An input that is not named gets a
            batch of 1 and free sides of 320, or of 64 where it has fewer than four.
        engine_path: file that the engine is written to; None where only its layers are wanted.
        seconds: how long it may take.
        memory_bytes: the most memory that the child process may have, on Linux; it is ended then. None for no limit.
    """

    sm: tuple[str, ...] = ("89",)
    shapes: Mapping[str, tuple[Shape, Shape, Shape]] = field(default_factory=dict)
    engine_path: str | PathLike[str] | None = None
    seconds: float = SECONDS
    memory_bytes: int | None = None


@dataclass(frozen=True)
class BuiltEngine:
    """A built engine as the compiler's log tells it.

    Attributes:
        sm: compute capabilities that it was built for.
        version: of the library.
        layers: in the order of execution, without those that only signal and wait.
        shapes: input -> lowest, best and highest shape, for inputs with free sides.
        warnings: of parser and compiler.
        engine_bytes: size of the engine.
        cpu_seconds: CPU time of parse and build in the child process.
        peak_bytes: the most memory that the child process had; 0 where it is not known.
    """

    sm: tuple[str, ...]
    version: str
    layers: tuple[EngineLayer, ...]
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]
    warnings: tuple[ParserMessage, ...]
    engine_bytes: int
    cpu_seconds: float
    peak_bytes: int

    @property
    def products(self) -> Mapping[str, int]:
        """How many products multiply each type, such as {"INT8": 106, "FP32": 7}."""
        return self.totals.products

    @property
    def bytes_moved(self) -> int:
        """Bytes that all layers read and write in one inference, weights included."""
        return self.totals.bytes_moved

    @property
    def totals(self) -> EngineTotals:
        """The sums over all layers."""
        return totals_of(self.info(Path()))

    def info(self, path: Path) -> EngineInfo:
        """Its layers as those of any engine; `path` is what messages call it."""
        line = built_line(NAME, self.version, self.sm)
        return EngineInfo(path, self.layers, "built", self.version, line)


def build_engine(source: ModelSource, options: RtxBuildOptions | None = None) -> BuiltEngine:
    """Build an engine in a child process, on a CPU.

    Raises:
        MissingPackageError: TensorRT for RTX is not installed.
        QdqError: the model cannot be read, the parser refuses it, the compiler cannot build it, the library crashed or
            took too long, or the engine cannot be written. Nothing is written then.
    """
    return build_opened(open_model(source), options or RtxBuildOptions())


def build_opened(opened: Model, options: RtxBuildOptions, library: RtxLibrary | None = None) -> BuiltEngine:
    """As `build_engine`, for a model that is open already."""
    job: dict[str, Any] = {"action": "build", "sm": _checked_sm(options.sm)}
    for name, (low, best, high) in options.shapes.items():
        ordered = all(1 <= a <= b <= c for a, b, c in zip(low, best, high, strict=False))
        if not len(low) == len(best) == len(high) or not ordered:
            raise QdqError(opened.name, f"the shapes of input {name} do not satisfy min <= opt <= max", _TODO_SHAPES)
    job["shapes"] = {name: [list(sides) for sides in three] for name, three in sorted(options.shapes.items())}
    if options.memory_bytes is not None:
        job["memory"] = options.memory_bytes
    library = library or require_library()
    if options.engine_path is None:
        return _built(opened, run_job(library, opened, job, options.seconds), options)
    with FileSet(opened.files) as files:
        with files.open(options.engine_path) as file:
            result = run_job(library, opened, {**job, "engine": str(file.name)}, options.seconds)
        return _built(opened, result, options)


def _built(opened: Model, result: Mapping[str, Any], options: RtxBuildOptions) -> BuiltEngine:
    verdict = verdict_of(result)
    if not verdict.accepted:
        refusal = verdict.refusals[0]
        place = f" at {refusal.operator} {refusal.node or refusal.tensor}" if refusal.operator else ""
        reason = f"is refused by the parser of {NAME} {verdict.version}{place}: {refusal.message}"
        raise QdqError(opened.name, reason, "run qdqtool lint --target rtx on it")
    build = result["build"]
    if "failed" in build:
        said = next((text for text in build["failed"] if "catchCudaError" not in text), "it gives no reason")
        names = ", ".join(f"SM{number}" for number in options.sm)
        raise QdqError(
            opened.name, f"is accepted by the parser, but {NAME} {verdict.version} builds no engine for {names}: {said}"
        )
    return BuiltEngine(
        sm=tuple(options.sm),
        version=verdict.version,
        layers=parse_layers(build["layers"]),
        shapes={name: _triple(sides) for name, sides in build["shapes"].items()},
        warnings=verdict.warnings,
        engine_bytes=int(build["engine_bytes"]),
        cpu_seconds=float(result["cpu_seconds"]),
        peak_bytes=int(result["peak_bytes"]),
    )


def _checked_sm(numbers: Sequence[str]) -> list[str]:
    if not numbers or any(not number.isdigit() for number in numbers):
        raise QdqError(
            "--sm",
            f"{','.join(numbers) or 'nothing'} is not a list of compute capabilities",
            "give --sm 89 or --sm 89,120",
        )
    return list(dict.fromkeys(numbers))


def _triple(sides: Sequence[Sequence[int]]) -> tuple[Shape, Shape, Shape]:
    low, best, high = (tuple(int(side) for side in one) for one in sides)
    return low, best, high
