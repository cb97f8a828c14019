# SPDX-License-Identifier: Apache-2.0
"""What a judge runs: a model as written, what a cache makes of it, or an engine. Not how its outputs are judged."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.building.run_engine import open_engine
from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import KnownPreprocess, known_preprocess
from qdqtool.graph.io import ModelSource
from qdqtool.graph.model import Model
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor, RunsBatches
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions

AS_WRITTEN = "computed by onnxruntime as the graph is written, Q/DQ in float; nothing was measured on TensorRT"
ENGINE_ENDINGS = (".plan", ".engine", ".trt")


@dataclass(frozen=True)
class Int8Request:
    """Whose INT8 is judged; nothing of it for a model as it is written.

    Attributes:
        cache: a calibration cache of a plain model, or its file.
        target: "gpu" or "dla"; None for gpu beside a cache.
        trt_version: None for that of the cache.
    """

    cache: Any = None
    target: str | None = None
    trt_version: TrtVersion | None = None

    @property
    def is_asked(self) -> bool:
        """Whether INT8 is computed for a target."""
        return self.cache is not None or self.target is not None or self.trt_version is not None


@dataclass(frozen=True)
class JudgedModel:
    """One model, opened.

    Attributes:
        name: what messages call it.
        path: its file; None for a model in memory.
        inputs: what it takes.
        start: makes what runs it.
        how: who computes its figures, and that it is no measurement of TensorRT where it is none.
        known: what is known of its preprocessing.
    """

    name: str
    path: Path | None
    inputs: tuple[Input, ...]
    start: Callable[[], RunsBatches]
    how: str = AS_WRITTEN
    known: KnownPreprocess | None = None


def is_engine(source: object) -> bool:
    """Whether a path is that of a built engine, by its name."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(ENGINE_ENDINGS)


def open_judged(source: ModelSource, provider: str = "cpu", int8: Int8Request | None = None) -> JudgedModel:
    """Open what is judged.

    Args:
        source: a model, or the file of an engine of the TensorRT that is installed.
        provider: of onnxruntime.
        int8: whose INT8 is computed.

    Raises:
        QdqError: what `open_model`, `simulated_model` and `open_engine` refuse; an engine beside a cache.
        MissingPackageError: TensorRT is not installed, for an engine.
    """
    int8 = int8 or Int8Request()
    if is_engine(source):
        return _engine(Path(str(source)), int8)
    if int8.is_asked:
        return _for_target(source, provider, int8)
    opened = open_to_run(source)
    return JudgedModel(
        opened.name,
        opened.path,
        inputs_of(opened.proto.graph),
        lambda: Executor(opened, None, opened.name, provider),
        known=known_preprocess(opened.proto),
    )


def _engine(path: Path, int8: Int8Request) -> JudgedModel:

    if int8.is_asked:
        raise QdqError(path, "is an engine, which has its scales and its target", "leave --cache and --target out")
    engine = open_engine(path)
    return JudgedModel(str(path), path, engine.inputs, lambda: engine, f"run by TensorRT {engine.version}: {path.name}")


def _for_target(source: ModelSource, provider: str, int8: Int8Request) -> JudgedModel:

    target = int8.target or "gpu"
    made = simulated_model(source, SimulateOptions(target, int8.trt_version, int8.cache))
    opened = open_to_run(source)
    version = f"TensorRT {int8.trt_version.text}" if int8.trt_version is not None else "TensorRT"
    cache = f" with {Path(int8.cache).name}" if isinstance(int8.cache, str | os.PathLike) else ""
    how = f"INT8 of {version} on a {target.upper()}{cache}, simulated by onnxruntime; nothing was measured on TensorRT"
    return JudgedModel(
        opened.name,
        opened.path,
        inputs_of(made.model.graph),
        lambda: Executor(Model(made.model, made.folder), None, made.name, provider),
        how,
        known_preprocess(opened.proto, int8.cache),
    )
