# SPDX-License-Identifier: Apache-2.0
"""The verb `ptq`: a plain model and data to a cache over all tensors, what TensorRT's own calibrator gives. No Q/DQ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.amax.method_table import REFERENCE, parse_method
from qdqtool.cache.sidecar import check_place, sidecar_path, tensor_facts, write_with_sidecar
from qdqtool.cache.text import Cache, format_cache
from qdqtool.calibration.engine import calibrate_scales
from qdqtool.calibration.tensorrt.backend import BACKENDS, Calibrated, Request
from qdqtool.calibration.tensorrt.calibrator import TensorrtBackend
from qdqtool.calibration.tensorrt.input_shapes import fix_inputs
from qdqtool.data.loader import DataLoader, inputs_of, open_loader
from qdqtool.dla.assignment import dla_findings
from qdqtool.emit.write_files import CacheJob, check_kinds, emit_places, emitted_texts, float_layers, write_emitted
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.files import FileSet, replacing
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.importable import parser_warnings
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import size_of
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.match.shared_scales import take_shared_scales
from qdqtool.measuring.answers import MOST_BYTES
from qdqtool.measuring.keep_float import LossMeter, OutputLoss, samples_of
from qdqtool.observers.options import CalibrationOptions
from qdqtool.output_paths import check_targets, files_of, output_path
from qdqtool.precision.widen import as_fp32
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.rulebook import RuleBook
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.float_tensors import check_all_in_reach
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import require_cache_for
from qdqtool.verbs.dla_range_notes import notes_of_two_ranges
from qdqtool.verbs.ptq_options import PtqOptions, PtqResult
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions

if TYPE_CHECKING:
    from qdqtool.calibration.tensorrt.backend import Backend
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.trtversion import TrtVersion


def ptq(
    model: ModelSource, data: Data | DataLoader, options: PtqOptions, *, cache: str | Path | None = None
) -> PtqResult:
    """Calibrate every float tensor of a plain model into a cache.

    Args:
        model: any opset; a path, ModelProto, gs.Graph or a callable returning one; never changed, never lifted.
        data: what to feed, batch by batch in order; see `open_loader`.
        options: see `PtqOptions`.
        cache: file to write; for a path the default is `<name>.cache` beside it. One that exists is replaced when all
            is done, and never read.

    Raises:
        QdqError: a version without caches or INT8 DLA, a model with Q/DQ, a cache that cannot be written, and what the
            back end refuses.
        MissingPackageError: the back end is not installed.
    """
    _check_embedded_alone(options)
    check_kinds(options)
    job = open_job(model, options)
    options, said = with_known(options, job.opened, data, anew=True)
    job = replace(job, options=options)
    target = output_path(job.opened, cache, ".cache")
    if target is not None:
        outputs: dict[str, Path | None] = {"the cache": target, "the cache's details": sidecar_path(target)}
        outputs |= {f"--emit {kind}": path for kind, path in emit_places(options, target).items()}
        check_targets(outputs, [*job.opened.files, *files_of(data, options.names)])
        check_place(target, files_of(data))
        _check_writable(target)
    loader = open_data(job, data)
    made = run_job(job, loader)
    loss = _loss(job, made, loader)
    rules = options.rule_book()
    planned = _with_float_heads(job, made, rules)
    texts, emit_notes = emitted_texts(planned, options, job.opened.path, target)
    with FileSet(job.opened.files) as files:
        if target is not None:
            write_with_sidecar(target, made.written or format_cache(made.cache).encode(), _facts(job, made), files)
        emitted = write_emitted(texts, emit_places(options, target), files)
    notes = list(said)
    if not options.emit:
        notes += notes_of_two_ranges(job.view, rules, made.cache.entries, options.trt_version)
    notes += emit_notes
    foreign = parser_warnings(job.opened.proto, options.trt_version)
    layers = tuple(float_layers(planned))
    weighted = frozenset(node.key for node in job.view.nodes if weight_index(job.view, node) is not None)
    report = None
    if options.target == "dla":
        report = dla_findings(job.view, options.trt_version, floats=weighted - frozenset(planned.int8_nodes))
    told = (tuple(notes), foreign, layers, emitted, report, loss)
    return PtqResult(made.cache, made.table, made.shared_scales, target, options.backend, *told)


def _loss(job: PtqJob, made: Made, loader: DataLoader) -> OutputLoss | None:
    """What the cache loses at the outputs."""
    options = job.options
    if options.backend != "embedded":
        return None
    provider = options.calibration.provider if options.calibration else "cpu"
    return cache_loss(job.opened, made.cache, (options.target, options.trt_version), loader, provider)


def _with_float_heads(job: PtqJob, made: Made, rules: RuleBook) -> CacheJob:
    """The model with its cache; its heads stay in float as `insert` leaves them, everything else may be INT8."""
    plan = plan_pairs(job.opened, PlanOptions(job.options.target, job.options.trt_version), everywhere=False)
    weighted = (node.key for node in job.view.nodes if weight_index(job.view, node) is not None)
    int8 = frozenset(weighted) - frozenset(plan.float_nodes)
    return CacheJob(job.opened, rules, plan, int8, made.cache, made.table)


@dataclass(frozen=True)
class PtqJob:
    """A model that may be calibrated, and the back end that does it.

    Attributes:
        opened: the model.
        sha256: of its file, which may be another once the work is done; None where there is none.
        options: of the verb.
        request: what the back end is asked for.
        backend: of scales.
    """

    opened: Model
    sha256: str | None
    options: PtqOptions
    request: Request
    backend: Backend

    @property
    def view(self) -> GraphView:
        """The graph of the model."""
        return self.opened.view


@dataclass(frozen=True)
class Made:
    """A cache and its scales; `before` holds scales that shared ones replaced, `written` a back end's own bytes."""

    cache: Cache
    table: ScaleTable
    shared_scales: dict[str, str]
    before: dict[str, np.float32]
    written: bytes = b""


def open_job(model: ModelSource, options: PtqOptions) -> PtqJob:
    """Open a model and say no before any data is read; see `ptq`."""
    require_cache_for(options.trt_version, options.target)
    opened = open_model(model)
    require_finite(opened.view)
    if options.backend != "tensorrt":  # which reads the file itself
        opened = as_fp32(opened)
    view = opened.view
    if view.pairs:
        raise QdqError(
            opened.name, "already has Q/DQ, and calibration needs a model without", "qdqtool peel takes out the scales"
        )
    method = options.calibration.method if options.calibration else "entropy"
    request = Request(opened, opened.name, method)
    backend = _backend(options, method)
    backend.check(request)
    if options.target == "dla" and options.backend == "embedded":
        check_all_in_reach(opened, opened.name)
    return PtqJob(opened, opened.sha256, options, request, backend)


def open_data(job: PtqJob, data: Data | DataLoader) -> DataLoader:
    """The data as batches for the model, its open shapes fixed where that was asked for."""
    if isinstance(data, DataLoader):
        return data
    inputs = fix_inputs(inputs_of(job.opened.proto.graph), job.options.shapes or {})
    return open_loader(data, inputs, job.options.data_options)


def run_job(job: PtqJob, loader: DataLoader) -> Made:
    """Calibrate; TensorRT shares scales itself, for the embedded back end the rules of the target do."""
    found = job.backend.calibrate(job.request, loader)
    if found.cache is not None:
        return Made(found.cache, found.table, {}, {}, found.written)
    table, options = found.table, job.options
    rules = options.rule_book()
    scales, taken = take_shared_scales(job.view, rules, table.scales) if options.shared_scales else (table.scales, {})
    made = Cache.of(options.trt_version, {name: np.float32(scale.bits) for name, scale in scales.items()})
    before = {name: np.float32(table[name].bits) for name in taken}
    return Made(made, replace(table, scales=scales), taken, before)


def _backend(options: PtqOptions, method: str) -> Backend:

    how = options.calibration or CalibrationOptions(method=method)
    if options.backend == "embedded":
        return EmbeddedBackend(replace(how, beside="" if method == REFERENCE else REFERENCE))
    if options.backend != "tensorrt":
        raise QdqError(f"--backend {options.backend}", "is not one", f"choose one of {', '.join(BACKENDS)}")

    return TensorrtBackend(options.trt_version, options.target, options.cuda, options.shapes)


def _check_embedded_alone(options: PtqOptions) -> None:
    """Refuse, beside TensorRT, what would do nothing there."""
    if options.backend != "tensorrt":
        return
    if not options.shared_scales:
        raise QdqError("--no-shared-scales", "TensorRT shares scales itself", "leave it out, or --backend tensorrt")
    plain, how = CalibrationOptions(), options.calibration or CalibrationOptions()
    for name in ("provider", "workers", "max_memory", "checkpoint"):
        if getattr(how, name) != getattr(plain, name):
            option = f"--{name.replace('_', '-')}"
            raise QdqError(option, "is for onnxruntime, which --backend tensorrt does not use", "leave one of them out")


class _UnwrittenError(Exception):
    """Ends a write before it takes the place of anything."""


def _check_writable(target: Path) -> None:
    """Refuse a place that cannot be written, before hours of work: by the way it will be written, then undone."""
    with contextlib.suppress(_UnwrittenError), replacing(target):
        raise _UnwrittenError


def _facts(job: PtqJob, made: Made) -> dict[str, Any]:
    """What stands beside the cache."""
    options, run = job.options, made.table.provenance
    asked: dict[str, Any] = {
        "target": options.target,
        "trt_version": options.trt_version.text,
        "ties": options.shared_scales,
    }
    if made.written:
        asked.update(backend=run.backend, tensorrt=run.tensorrt, cuda=options.cuda)
    return {
        "verb": "ptq",
        "header": made.cache.header,
        "model": {"sha256": job.sha256},
        "data": run.data,
        "options": {**asked, "method": run.method, "samples": run.samples},
        "tensors": tensor_facts(made.table.scales, made.before),
    }


@dataclass(frozen=True)
class EmbeddedBackend:
    """Keeps `contract.Backend`; see `calibrate_scales`.

    Attributes:
        options: provider, progress and whatever else the engine takes; the request's method and name go before its own.
    """

    options: CalibrationOptions = field(default_factory=CalibrationOptions)
    name: str = "embedded"

    def check(self, request: Request) -> None:
        """Say no to a method that there is not.

        Raises:
            QdqError: see `parse_method`.
        """
        parse_method(request.method)

    def calibrate(self, request: Request, batches: Iterable[Mapping[str, Any]]) -> Calibrated:
        """Scales as `calibrate_scales` finds them, each of its own tensor as TensorRT does; it writes no cache."""
        options = replace(self.options, method=request.method, where=request.where, inner=False)
        loader: Any = batches
        return Calibrated(calibrate_scales(request.model, loader, options))


def cache_loss(
    opened: Model, cache: Cache, on: tuple[str, TrtVersion], loader: DataLoader, provider: str = "cpu"
) -> OutputLoss:
    """The loss at the outputs of a plain model with its cache, every layer with a scale in INT8."""
    if loader.once:
        return OutputLoss(None, reason="the data can be read once only")
    if size_of(opened.proto) > MOST_BYTES or len(opened.files) > 1:
        return OutputLoss(None, reason="the model is large")
    try:
        simulated = simulated_model(opened.proto, SimulateOptions(on[0], on[1], cache=cache))
        plain, judged = (Model(one, simulated.folder) for one in (simulated.plain, simulated.model))
        meter = LossMeter.of(samples_of(ObservableModel(plain, provider, opened.name), loader))
    except QdqError as error:
        return OutputLoss(None, reason=error.reason)
    return meter.measure(judged)
