# SPDX-License-Identifier: Apache-2.0
"""What is timed: a model in onnxruntime as it would be deployed, or an engine; made-up inputs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdqtool.building.run_engine import open_engine
from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, open_model, serialize
from qdqtool.graph.model import Model
from qdqtool.passes.peel import has_qdq
from qdqtool.precision.widen import mentioned_types
from qdqtool.runtime.installed import load_onnxruntime, one_line
from qdqtool.runtime.providers import open_session, provider_names

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_SEED = 7
_HALVES = {int(TensorProto.FLOAT16): "FP16", int(TensorProto.BFLOAT16): "BF16"}


@dataclass(frozen=True)
class Subject:
    """A model or engine that can be timed.

    Attributes:
        name: what the table calls it.
        kind: its types, such as `INT8 (Q/DQ)`.
        runner: what runs it, with its provider and threads.
        inputs: what it takes.
        prepare: from an array for each input, a run; it returns seconds where the runner has a clock of its own.
    """

    name: str
    kind: str
    runner: str
    inputs: tuple[Input, ...]
    prepare: Callable[[Mapping[str, Array]], Callable[[], float | None]]


def open_onnx(model: ModelSource, provider: str, threads: int) -> Subject:
    """A model in onnxruntime, with all its optimizations and its integer kernels: not as `evaluate` runs it.

    Raises:
        QdqError: the model cannot be opened, onnxruntime refuses it, the provider does not start.
        MissingPackageError: no onnxruntime, or one without the provider.
    """
    runtime = load_onnxruntime()
    providers = provider_names(runtime, provider)
    opened = open_model(model)
    session = _session(runtime, opened, providers, threads)
    on = (
        f"{threads} thread{'' if threads == 1 else 's'}"
        if provider == "cpu"
        else "this machine's GPU, copies to and from it included"
    )
    runner = f"onnxruntime {runtime.__version__}, {provider}, {on}"

    def prepare(feed: Mapping[str, Array]) -> Callable[[], None]:
        given = dict(feed)

        def run() -> None:
            try:
                session.run(None, given)
            except Exception as error:  # onnxruntime's exceptions share no base class but this
                raise QdqError(opened.name, f"onnxruntime cannot run it ({one_line(error)})", "--shapes") from error

        return run

    return Subject(opened.name, _kind(opened), runner, inputs_of(opened.proto.graph), prepare)


def open_built(path: Path) -> Subject:
    """An engine by the TensorRT that is installed; times are those of Polygraphy's runner, copies among them.

    Raises:
        QdqError: as `open_engine`.
        MissingPackageError: TensorRT is not installed.
    """
    engine = open_engine(path)

    def prepare(feed: Mapping[str, Array]) -> Callable[[], float]:
        def run() -> float:
            engine.run(feed)
            return engine.last_seconds

        return run

    runner = f"TensorRT {engine.version} by Polygraphy, copies to and from the GPU included"
    return Subject(str(path), "engine", runner, engine.inputs, prepare)


def made_up_feed(subject: Subject, batch: int, shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """Seeded values for each input, as `Input.made_up` makes them.

    Args:
        subject: whose inputs.
        batch: length of the first axis where that is free; where the first input fixes it, it must be that.
        shapes: whole shapes by input, before anything else; their first side too.

    Raises:
        QdqError: a batch that the model does not take, a side that is open, a shape that does not fit; what
            `Input.made_up` refuses.
    """
    draw = np.random.default_rng(_SEED)
    return {one.name: one.made_up(_shape(subject, one, batch, shapes), draw) for one in subject.inputs}


def _shape(subject: Subject, one: Input, batch: int, shapes: Mapping[str, Shape]) -> Shape:
    if one.name in shapes:
        if not one.fits(shapes[one.name]):
            given = "x".join(map(str, shapes[one.name]))
            raise QdqError("--shapes", f"{one.name!r} of {subject.name} takes {one.format_shape()}, not {given}")
        return shapes[one.name]
    sides = [] if one.shape is None else [batch if axis == 0 and not isinstance(s, int) else s
                                          for axis, s in enumerate(one.shape)]  # fmt: skip
    if one.shape is None or not all(isinstance(side, int) for side in sides):
        guess = "x".join(str(side if isinstance(side, int) else 224) for side in sides or (1, 3, None, None))
        reason = f"of {subject.name} is {one.format_shape()}"
        raise QdqError(one.name, reason, f"give the dynamic dimensions, such as --shapes {one.name}:{guess}")
    if one is subject.inputs[0] and one.first not in (None, batch):
        reason = f"{batch} cannot be: {one.name!r} of {subject.name} takes {one.format_shape()}"
        raise QdqError("--batch", reason, f"give --batch {one.shape[0]}")
    return tuple(int(side) for side in sides if side is not None)


def _session(runtime: Any, opened: Model, providers: list[str], threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    source = str(opened.path) if opened.path is not None else serialize(opened.proto)
    try:
        return open_session(runtime, source, options, providers)
    except QdqError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        raise QdqError(opened.name, f"onnxruntime refuses it ({one_line(error)})", "run onnx.checker on it") from error


def _kind(opened: Model) -> str:
    """`FP32`, `FP16`, `INT8 (Q/DQ)`, `INT8 (Q/DQ), FP16`."""
    mentioned = set(mentioned_types(opened.proto))
    halves = [name for code, name in _HALVES.items() if code in mentioned]
    if not has_qdq(opened.graph):
        return ", ".join(halves) or "FP32"
    return ", ".join(["INT8 (Q/DQ)", *halves])
