# SPDX-License-Identifier: Apache-2.0
"""Data through a model, each float32 tensor into a histogram, each histogram to a scale. Nothing is kept per sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx

from qdqtool.amax.method_table import parse_method
from qdqtool.data.loader import Batch, Data, DataLoader, DataOptions, inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.formats import INT8, NumberFormat
from qdqtool.graph.edit import CONDITIONED, get_metadata
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.io import ModelSource
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.auto_scales import auto_table, filed_histograms, source_of
from qdqtool.observers.collect import count_batches, tasks_of
from qdqtool.observers.observer_state import mergeable_of
from qdqtool.observers.options import CalibrationOptions, with_method
from qdqtool.observers.state_file import State
from qdqtool.observers.table import read_ranges, read_table
from qdqtool.precision.value_ranges import ValueRanges
from qdqtool.precision.widen import open_fp32
from qdqtool.runtime.activations import ObservableModel, observable
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.measuring.scale_choice import ChoiceSource

__all__ = ["CalibrationOptions", "calibrate", "calibrate_scales", "observe_ranges"]


def default_method(proto: onnx.ModelProto, *, once: bool = False, number_format: NumberFormat = INT8) -> str:
    """`auto`; `mse` for a model that `condition` edited, and for data that can be walked only `once`.

    A number format of which rules/formats.toml names another method has that.

    Measured on labeled models (tests/bench/README.md): `auto` is nowhere worse than `mse` beyond the interval of the
    difference, and far better where `mse` fails; after `condition`, which leaves little to choose, it is worse on two.
    """
    if number_format.method != "auto":
        return number_format.method
    return "mse" if once or get_metadata(proto, CONDITIONED) else "auto"


def calibrate(
    model: ModelSource,
    data: Data | DataLoader,
    options: CalibrationOptions | None = None,
    data_options: DataOptions | None = None,
) -> ScaleTable:
    """Run data through a model and give every float32 activation its scale.

    Args:
        model: a path, an onnx.ModelProto, a gs.Graph or a callable returning one; any opset, never changed.
        data: what to feed; see `open_loader`.
        options: method (default: see `default_method`), provider, workers, checkpoint.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: what `open_model`, `open_loader` and `calibrate_scales` refuse.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    if options is not None and options.method:
        parse_method(options.method)  # a slip here is reported before a large model is read
    opened = open_fp32(model)
    digest = opened.sha256 or ""
    require_finite(opened.view)
    known = [known_preprocess(opened.proto)]
    reading, _ = apply_known(opened.name, data, data_options or DataOptions(), known, anew=True)
    loader = open_loader(data, inputs_of(opened.proto.graph), reading)
    options = replace(with_method(options, default_method(opened.proto, once=loader.once)), where=opened.name)
    table = calibrate_scales(opened, loader, options)
    release_freed_memory()
    return replace(table, provenance=replace(table.provenance, model_sha256=digest))


@dataclass(frozen=True)
class WantedScales:
    """Which tensors get a scale, and what chooses it.

    Attributes:
        tensors: to observe; None for every float32 one of the main graph.
        points: tensors that must get a scale, unless they are made by the model and all zero; for others the table says
            why they have none.
        placing: where pairs will stand, for `auto`; None for insert's defaults with every head in INT8.
        picked: the samples that `auto` chooses by, where they were picked already.
        seen: gets what was counted, before it is given up.
    """

    tensors: Collection[str] | None = None
    points: Collection[str] = ()
    placing: PlanOptions | None = None
    picked: ChoiceSource | None = None
    seen: Callable[[State], object] | None = None


EVERY_TENSOR = WantedScales()


def calibrate_scales(
    model: Model | ObservableModel,
    loader: Iterable[Batch],
    options: CalibrationOptions | None = None,
    wanted: WantedScales = EVERY_TENSOR,
) -> ScaleTable:
    """Scales of a model's float32 activations, from data that is open already.

    Args:
        model: external data not loaded; made ready for onnxruntime, or not.
        loader: the batches; a `DataLoader` also says what they are. Walked once, more often only with `max_memory`.
        options: method (default mse), provider, workers, checkpoint.
        wanted: see `WantedScales`.

    Raises:
        QdqError: no samples; NaN in any tensor; Inf in one of `points`, or no elements; an input among
            them that is all zero; what `OrtActivations` refuses; a checkpoint that is in the way or of another
            calibration.
        KeyboardInterrupt: interrupted; with a checkpoint, the work is in it.
    """
    options = with_method(options)
    method = parse_method(options.method)
    ready = observable(model, options.provider, options.where)
    state = count_batches(ready, loader, options, wanted.tensors, points=wanted.points)
    if not state.observation.samples:
        raise QdqError("data", "gives no samples", "calibration needs data")
    if wanted.seen is not None:
        wanted.seen(state)
    table = read_table(state, method.alone, beside=options.beside, points=wanted.points)
    _refuse_zero_inputs(ready.model.graph, table, wanted.points)
    if not method.row.by_consumers:
        return table

    histograms = filed_histograms(mergeable_of(state.observation.of_all(state.plan)))
    del state
    release_freed_memory()  # of the session that gave every tensor
    picked = wanted.picked or source_of(ready, loader)
    source = replace(picked, histograms=histograms, counted=table.provenance.samples)
    return auto_table(source, table, wanted.placing, candidates=options.candidates)


def observe_ranges(model: Model, feed: Iterable[Batch], options: CalibrationOptions | None = None) -> ValueRanges:
    """The range of every float32 activation of a model, from data that is open already.

    Raises:
        QdqError: no samples; NaN in any tensor; what `OrtActivations` refuses.
    """
    walked_once = isinstance(feed, DataLoader) and feed.once
    first = None if walked_once else next(tasks_of(feed), None)
    shapes = {} if first is None else {name: array.shape for name, array in first.load().items()}
    state = count_batches(model, feed, replace(options or CalibrationOptions(), method="max"))
    if not state.observation.samples:
        raise QdqError("data", "gives no samples", "ranges need data")
    return read_ranges(state, shapes)


def _refuse_zero_inputs(graph: onnx.GraphProto, table: ScaleTable, points: Collection[str]) -> None:
    """Refuse data that are all zero: a dead activation is the model's own, a dead input is no data."""
    for value in graph.input:
        if value.name in points and value.name in table.all_zero:
            reason = f"is quantized, but {table.unscaled[value.name]} in {table.provenance.samples} samples of the data"
            raise QdqError(value.name, reason, "give other data, or keep its operators in float")
