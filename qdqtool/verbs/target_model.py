# SPDX-License-Identifier: Apache-2.0
"""A model as its target computes it: as written, with simulated INT8, or an engine. How it is judged: judge.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtool.building.run_engine import RunningEngine, open_engine
from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import KnownPreprocess, known_preprocess
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor, RunsBatches
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions

AS_WRITTEN = "computed by onnxruntime as the graph is written, Q/DQ in float; nothing was measured on TensorRT"
ENGINE_ENDINGS = (".plan", ".engine", ".trt")


@dataclass(frozen=True)
class TargetModel:
    """A model that runs here as its target would run it."""

    model: Model | RunningEngine
    name: str
    notes: tuple[str, ...] = ()
    source: ModelSource | None = None
    on: SimulateOptions | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it takes."""
        return self.model.inputs if isinstance(self.model, RunningEngine) else inputs_of(self.model.proto.graph)

    @property
    def known(self) -> KnownPreprocess | None:
        """What is known of its preprocessing."""
        if isinstance(self.model, RunningEngine):
            return None
        if self.on is None or self.source is None:
            return known_preprocess(self.model.proto)
        return known_preprocess(open_model(self.source).proto, self.on.cache)

    @property
    def how(self) -> str:
        """Who computes its figures, and that it is no measurement of TensorRT where it is none."""
        if isinstance(self.model, RunningEngine):
            return f"run by TensorRT {self.model.version}: {Path(self.name).name}"
        if self.on is None:
            return AS_WRITTEN
        version = f"TensorRT {self.on.trt_version.text}" if self.on.trt_version is not None else "TensorRT"
        cache = f" with {Path(self.on.cache).name}" if isinstance(self.on.cache, str | os.PathLike) else ""
        where = f"{version} on a {self.on.target.upper()}{cache}"
        return f"INT8 of {where}, simulated by onnxruntime; nothing was measured on TensorRT"

    def start(self, outputs: Sequence[str] | None = None, provider: str = "cpu") -> RunsBatches:
        """What runs it, and gives these tensors; None for the outputs. An engine gives its outputs."""
        if isinstance(self.model, RunningEngine):
            return self.model
        return Executor(self.model, outputs, self.name, provider)


def is_engine(source: object) -> bool:
    """Whether a path is that of a built engine, by its name."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(ENGINE_ENDINGS)


def target_model(source: ModelSource, on: SimulateOptions | None = None, name: str | None = None) -> TargetModel:
    """Make the model that runs here as the target would.

    Args:
        source: a model, or the file of an engine of the TensorRT that is installed.
        on: whose INT8 is simulated; None for the model as it is written.
        name: what messages call it; None for its own name.

    Raises:
        QdqError: what `open_model`, `simulated_model` and `open_engine` refuse; an engine beside a cache.
        MissingPackageError: TensorRT is not installed, for an engine.
    """
    if is_engine(source):
        path = Path(str(source))
        if on is not None:
            raise QdqError(path, "is an engine, which has its scales and its target", "leave --cache and --target out")
        return TargetModel(open_engine(path), str(path))
    if on is None:
        opened = open_to_run(source)
        return TargetModel(opened, name or opened.name)
    made = simulated_model(source, on)
    return TargetModel(Model(made.model, made.folder), name or made.name, made.notes, source, on)
