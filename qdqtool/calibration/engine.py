# SPDX-License-Identifier: Apache-2.0
"""Data through a model, each float32 tensor into a histogram, each histogram to a scale. Nothing is kept per sample."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from qdqtool.calibration.backends.ort import OrtActivations
from qdqtool.calibration.feed import Batch, Data, Feed, FeedOptions, inputs_of, open_feed
from qdqtool.calibration.histogram import Histogram
from qdqtool.calibration.methods import (
    Method,
    choose_amax,
    needs_entropy_histogram,
    parse_method,
    predicted_sqnr,
    scale_from_amax,
)
from qdqtool.calibration.trt_entropy import EntropyHistogram
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.scales import Scale, ScaleTable

AnyHistogram = Histogram | EntropyHistogram


@dataclass(frozen=True)
class CalibrationOptions:
    """How scales are found.

    Attributes:
        method: mse, max, percentile[=99.99], entropy (TensorRT's) or entropy-stable.
        provider: what onnxruntime runs on: cpu, cuda or tensorrt.
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
        where: what messages call the model.
        beside: another method, whose predicted loss the table tells beside the chosen one's; not `entropy`.
    """

    method: str = "mse"
    provider: str = "cpu"
    progress: bool | None = None
    where: str = "model"
    beside: str = ""


def calibrate(
    model: ModelSource,
    data: Data | Feed,
    options: CalibrationOptions | None = None,
    feed_options: FeedOptions | None = None,
) -> ScaleTable:
    """Run data through a model and give every float32 activation its scale.

    Args:
        model: a path, an onnx.ModelProto, a gs.Graph or a callable returning one; any opset, never changed.
        data: what to feed; see `open_feed`.
        options: method and provider.
        feed_options: batch, limit, preprocessing.

    Raises:
        QdqError: what `open_model`, `open_feed` and `calibrate_scales` refuse.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    options = options or CalibrationOptions()
    parse_method(options.method)  # a slip here is told before a large model is read
    opened = open_model(model)
    options = replace(options, where=opened.name)
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(opened.proto.graph), feed_options)
    table = calibrate_scales(opened.proto, opened.folder, feed, options)
    return replace(table, facts={**table.facts, "model_sha256": opened.sha256}) if opened.sha256 else table


def calibrate_scales(
    proto: onnx.ModelProto,
    folder: Path | None,
    feed: Iterable[Batch],
    options: CalibrationOptions | None = None,
    wanted: Iterable[str] | None = None,
    points: Collection[str] = (),
) -> ScaleTable:
    """Scales of a model's float32 activations, from data that is open already.

    Args:
        proto: the model, external data not loaded.
        folder: where its external data lie.
        feed: the batches, walked once; a `Feed` also says what they are.
        options: method and provider.
        wanted: tensors to observe; None for every float32 one of the main graph.
        points: tensors that must get a scale; for others the table says why they have none.

    Returns:
        Scales in graph order with origin "ptq"; `unscaled` names what holds Inf or only zeros or cannot be run; `facts`
        holds method, samples and what the data was, nothing that differs between two equal runs.

    Raises:
        QdqError: no samples; NaN in any tensor; Inf or only zeros in one of `points`; what `OrtActivations` refuses.
    """
    options = options or CalibrationOptions()
    method = parse_method(options.method)
    activations = OrtActivations(proto, folder, wanted, options.provider, options.where)
    histograms, samples, spectra = _observe(activations, feed, method, options)
    unscaled = {
        name: f"behind {operator}, which onnxruntime cannot run" for name, operator in activations.behind.items()
    }
    unscaled.update((name, reason) for name, one in histograms.items() if (reason := _fault(one)))
    for name in histograms:
        if name in unscaled and name in points:
            reason = f"is quantised, but {unscaled[name]} in {samples} samples of the data"
            raise QdqError(name, reason, "give other data, or keep its operators in float")
    scales = {
        name: Scale.of(scale_from_amax(_amax(method, one), name), origin="ptq", method=str(method), samples=samples)
        for name, one in histograms.items()
        if name not in unscaled
    }
    facts: dict[str, Any] = {"method": str(method), "samples": samples}
    if activations.behind:
        facts["behind"] = list(activations.behind)
    if options.beside:
        facts["predicted"] = _predicted(parse_method(options.beside), scales, spectra)
    if isinstance(feed, Feed):
        facts["data"] = feed.description
    return ScaleTable(scales, unscaled, facts)


def _observe(
    activations: OrtActivations, feed: Iterable[Batch], method: Method, options: CalibrationOptions
) -> tuple[dict[str, AnyHistogram], int, dict[str, Histogram]]:
    """One histogram per tensor, the number of samples, and mergeable histograms where a loss is to be predicted."""
    kind = EntropyHistogram if needs_entropy_histogram(method) else Histogram
    histograms: dict[str, AnyHistogram] = {name: kind() for name in activations.names}
    spectra = {name: Histogram() for name in activations.names} if options.beside else {}
    samples = 0
    for batch in _shown(feed, options):
        for name, array in activations.run(batch):
            histograms[name].add(array)
            if spectra:
                spectra[name].add(array)
            if histograms[name].has_nan:
                raise QdqError(
                    name, f"holds NaN (batch from sample {samples} on)", "mend the model or leave the sample out"
                )
        samples += feed.count(batch) if isinstance(feed, Feed) else _leading(batch)
    if not samples:
        raise QdqError("data", "gives no samples", "calibration needs data")
    return histograms, samples, spectra


def _predicted(beside: Method, scales: dict[str, Scale], spectra: dict[str, Histogram]) -> dict[str, Any]:
    """Signal to noise, in dB, that rounding to int8 leaves each tensor: [with its scale, with the other method's]."""
    decibel = {
        name: [
            _finite(predicted_sqnr(spectra[name], float(scale.bits) * 127)),
            _finite(predicted_sqnr(spectra[name], choose_amax(beside, spectra[name]))),
        ]
        for name, scale in scales.items()
    }
    return {"beside": str(beside), "decibel": decibel}


def _finite(decibel: float) -> float:
    return round(min(decibel, 999.0), 2)


def _leading(batch: Batch) -> int:
    first = next(iter(batch.values()))
    return first.shape[0] if first.ndim else 1


def _shown(feed: Iterable[Batch], options: CalibrationOptions) -> Iterator[Batch]:
    """The batches, with a bar on stderr while they pass."""
    if options.progress is False or not (options.progress or sys.stderr.isatty()):
        yield from feed
        return
    from tqdm import tqdm

    total = feed.batches if isinstance(feed, Feed) else None
    yield from tqdm(feed, desc="calibrate", total=total, unit="batch", file=sys.stderr, leave=False)


def _fault(histogram: AnyHistogram) -> str:
    """Why no scale follows from a histogram, "" where one does."""
    if histogram.has_inf:
        return "holds Inf"
    if histogram.is_empty:
        return "has no elements"
    return "is all zero" if histogram.all_zero else ""


def _amax(method: Method, histogram: AnyHistogram) -> Any:
    return histogram.search() if isinstance(histogram, EntropyHistogram) else choose_amax(method, histogram)
