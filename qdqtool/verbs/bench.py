# SPDX-License-Identifier: Apache-2.0
"""The verb `bench`: models or engines to a table of latencies, measured side by side on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.errors import QdqError
from qdqtool.threads import usable_cores
from qdqtool.timing.latency import Latency, time_in_turn
from qdqtool.timing.options import Timing
from qdqtool.timing.subjects import Subject, made_up_feed, open_built, open_onnx
from qdqtool.verbs.bench_options import BenchOptions
from qdqtool.verbs.target_model import is_engine

if TYPE_CHECKING:
    from qdqtool.graph.io import ModelSource

_HEAD = ("model", "types", "batch", "runs", "mean ms", "50 %", "90 %", "95 %", "99 %", "samples/s", "speed")
_OF_RUNTIME = (
    "measured on this machine by onnxruntime, which is not TensorRT: these figures do not show "
    "which TensorRT engine is faster"
)
_OF_ENGINES = "measured on this machine's GPU by TensorRT, for engines of this machine"


@dataclass(frozen=True)
class BenchRun:
    """One model at one batch size."""

    model: int
    name: str
    kind: str
    runner: str
    batch: int
    latency: Latency

    def to_json(self) -> dict[str, Any]:
        """As `bench --json` prints it."""
        return {
            "model": self.model,
            "file": self.name,
            "types": self.kind,
            "runner": self.runner,
            "batch": self.batch,
            "runs": self.latency.runs,
            "latency_ms": self.latency.to_json(),
            "throughput": self.latency.throughput(self.batch),
        }


@dataclass(frozen=True, repr=False)
class BenchResult(Displayed):
    """Latencies of models, side by side.

    Attributes:
        runs: by batch size, then in the order of the models.
        machine: what they were measured on.
        how: who measured, and what follows from it.
    """

    runs: tuple[BenchRun, ...]
    machine: str
    how: str

    def headline(self) -> str:
        """The fastest run of the first batch size."""
        best = min((one for one in self.runs if one.batch == self.runs[0].batch), key=lambda one: one.latency.mean)
        return f"{best.name}: {best.latency.mean:.3f} ms at batch {best.batch} ({best.runner})"

    def rows(self) -> Cells:
        """A row for each run; the speed is beside the first model at the same batch size."""
        first = {one.batch: one.latency.mean for one in reversed(self.runs) if one.model == 0}
        return [_HEAD, *(_cells(one, first.get(one.batch)) for one in self.runs)]

    def summary(self) -> list[str]:
        """What `qdqtool bench` prints."""
        cells = self.rows()
        runners = dict.fromkeys(one.runner for one in self.runs)
        return [*table(cells[0], cells[1:]), "", *(f"by {runner}" for runner in runners), self.machine, self.how]

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool bench --json` prints."""
        return {
            "schema": 1,
            "machine": self.machine,
            "how": self.how,
            "runs": [one.to_json() for one in self.runs],
        }


def bench(
    models: Sequence[ModelSource] | ModelSource,
    options: BenchOptions | None = None,
    tell: Callable[[str], None] | None = None,
) -> BenchResult:
    """Time models or engines side by side: in turn, so that what else the machine does falls on all alike.

    Inputs are generated and seeded. Models run in onnxruntime as they would be deployed, all optimizations and integer
    kernels on; that is another way than figures of accuracy are computed.

    Args:
        models: paths, ModelProtos, gs.Graphs or callables; files that end in .plan, .engine or .trt are engines.
        options: batch sizes, shapes, provider, threads, times.
        tell: is given a line before each batch size.

    Raises:
        QdqError: a model that cannot be opened or run, a batch or shape that it does not take, no model.
        MissingPackageError: onnxruntime is not installed, or without the provider; TensorRT, for an engine.
    """
    options = options or BenchOptions()
    given = list(models) if isinstance(models, list | tuple) else [models]
    if not given:
        raise QdqError("bench", "no model is given", "give one or more")
    threads = options.threads or usable_cores()
    subjects = [_open(one, options, threads) for one in given]
    found: list[BenchRun] = []
    batches = options.batches or (_own_batch(subjects),)
    for batch in batches:  # a batch that a model does not take is refused before anything is measured
        for one in subjects:
            one.prepare(made_up_feed(one, batch, options.shapes))()
    for batch in batches:
        if tell is not None:
            tell(f"batch {batch}: {counted(len(subjects), 'model')}, {_duration(options.timing, len(subjects))}")
        runs = [one.prepare(made_up_feed(one, batch, options.shapes)) for one in subjects]
        timed = zip(subjects, time_in_turn(runs, options.timing), strict=True)
        found += [BenchRun(n, one.name, one.kind, one.runner, batch, times) for n, (one, times) in enumerate(timed)]
    engines = [is_engine(one) for one in given]
    how = _OF_ENGINES if all(engines) else f"{_OF_RUNTIME}; {_OF_ENGINES}" if any(engines) else _OF_RUNTIME
    return BenchResult(tuple(found), _machine(), how)


def _open(model: ModelSource, options: BenchOptions, threads: int) -> Subject:
    if is_engine(model):
        return open_built(Path(str(model)))
    return open_onnx(model, options.provider, threads)


def _own_batch(subjects: Sequence[Subject]) -> int:
    """The batch that the first model fixes; 1 where it does not."""
    firsts = (one.shape[0] for subject in subjects[:1] for one in subject.inputs[:1] if one.shape)
    return next((first for first in firsts if isinstance(first, int)), 1)


def _duration(timing: Timing, models: int) -> str:
    if timing.runs is not None:
        return f"{counted(timing.runs, 'run')} of each"
    return f"about {models * (timing.seconds + timing.warm_up):.0f} s"


def _cells(one: BenchRun, first: float | None) -> tuple[str, ...]:
    times = one.latency
    figures = (times.mean, times.p50, times.p90, times.p95, times.p99)
    speed = "-" if not first or not times.mean else f"{first / times.mean:.2f}x"
    name = os.fspath(one.name)
    counts = (str(one.batch), str(times.runs), *(f"{value:.3f}" for value in figures))
    return (name, one.kind, *counts, f"{times.throughput(one.batch):,.0f}", speed)


def _machine() -> str:
    """The processor's name and the cores at hand."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # no Linux: what Python knows must do
    return f"{name}, {counted(usable_cores(), 'core')} available"
