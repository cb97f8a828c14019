# SPDX-License-Identifier: Apache-2.0
"""The verb `report`: a model, and whatever is known of it, to one HTML file that needs no network."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtool import __version__
from qdqtool.cache.check import CacheCheck, check
from qdqtool.cache.text import Cache, read_cache
from qdqtool.conditioning.edits import require_reference
from qdqtool.engine.compare import compare_layers, node_ops
from qdqtool.engine.cost import layers_in_kernels
from qdqtool.engine.read_info import read_layer_info
from qdqtool.engine.totals import EngineTotals, totals_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.file_digest import file_sha256
from qdqtool.files import replacing
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.limited_reading import FileKind, parse_json, read_text
from qdqtool.linting.check_formats import formats_in
from qdqtool.output_paths import check_target, files_of, output_path, path_of
from qdqtool.precision.widen import as_fp32, is_typed
from qdqtool.reporting import sections
from qdqtool.reporting.boxes import Drawn, draw_graph
from qdqtool.reporting.forecast_tables import opportunities_section
from qdqtool.reporting.layer_boxes import built_boxes, product_counts
from qdqtool.reporting.page import Section, render_page
from qdqtool.reporting.reasons import reasons_of
from qdqtool.reporting.tensor_rows import TensorRow, tensor_rows, weight_rows
from qdqtool.reporting.training_curves import curves_section
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.training.log import read_events
from qdqtool.verbs.export_evidence import export_evidence, tensor_names
from qdqtool.workflows.report_differences import differences
from qdqtool.workflows.report_forecast import forecast_of, opportunities, target_words
from qdqtool.workflows.report_look import LookedModel, boxes_of, look_at
from qdqtool.workflows.report_measure import MeasuredReport, measure_report, stored_histograms
from qdqtool.workflows.report_options import ReportOptions, ReportResult
from qdqtool.workflows.report_verdict import VerdictFacts, verdict_cards, verdict_sentence

_SENSITIVITY = FileKind("a table of sensitivity", 64 << 20, "give what qdqtool sensitivity --json printed")
_PACKAGES = ("onnx", "numpy", "onnxruntime")
ENDING = ".report.html"


def report(model: ModelSource, output: str | Path | None = None, options: ReportOptions | None = None) -> ReportResult:
    """Write what is known of a model into one HTML file: no network, no date, the same bytes for the same input.

    Without data the model is only looked at. With data it is run in onnxruntime beside its float model: histograms,
    signal to noise, the loss of the task with its interval, the worst images.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        output: the file to write; None for the model's name with .report.html, beside it.
        options: see `ReportOptions`.

    Raises:
        QdqError: a file that cannot be read or does not fit the model; nothing is written then.
        MissingPackageError: onnxruntime (or Pillow, for images), with data; TensorRT for RTX, where its parser is asked
            for.
    """
    options = options or ReportOptions()
    opened = open_model(model)
    path = output_path(opened, output, ENDING)
    if path is None:
        raise QdqError(opened.name, "is a model without a file, so that its report has no place", "name one")
    check_target(path, [*opened.files, *_inputs(options)])
    if path.suffix.lower() == ".onnx":
        raise QdqError(path, "is the name of a model, and a report is a page", "name a file that ends with .html")
    inline_products(opened, pairs=False)
    options, said = with_known(options, opened, options.data, cache=options.cache)
    found = look_at(opened, options)
    measured = _measured(opened, found, options)
    drawn, totals = _draw(found, options)
    rows = tensor_rows(found.view, found.pairs, found.table, found.context.plan, measured.histograms, measured.measures)
    cache = _cache(opened, options)
    facts = _verdict(found, measured, rows, totals, cache)
    parts = _sections(opened, found, measured, drawn, rows, facts, cache, options)
    title = _name(opened)
    page = render_page(title, verdict_sentence(facts), parts, sections.graph_data(found.view, drawn, rows))
    data = page.encode("utf-8", "backslashreplace")  # a file name may be no UTF-8
    with replacing(path) as file:
        file.write(data)
    notes = (*said, *found.notes, *measured.notes)
    return ReportResult(path, len(data), verdict_sentence(facts), tuple(one.title for one in parts), notes)


def _measured(opened: Model, found: LookedModel, options: ReportOptions) -> MeasuredReport:
    if options.data is not None:
        if options.reference is not None:
            plain = as_fp32(open_model(options.reference))
        elif found.plain is not None:
            require_reference(opened, "--model")
            plain = found.plain
        else:
            raise QdqError(opened.name, "cannot be compared: its Q/DQ cannot be removed", "give --model FP32")
        source: ModelSource = opened.path if opened.path is not None else opened.proto
        return measure_report(source, plain, options, plain=not found.view.pairs and options.reference is None)
    for option, given in (("--labels", options.labels), ("--names", options.names)):
        if given is not None:
            raise QdqError(option, "is for --data, which is not given", "add --data, or leave it out")
    return MeasuredReport({} if options.state is None else stored_histograms(options.state))


def _draw(found: LookedModel, options: ReportOptions) -> tuple[Drawn, EngineTotals | None]:
    """The boxes of built layers where they are given, else of predicted ones."""
    view, context = found.view, found.context
    predicted = boxes_of(found)
    if options.layers is None:
        return draw_graph(view, predicted, found.layers), None
    info, known = read_layer_info(Path(options.layers)), node_ops(view)
    reasons = reasons_of(view, found.plan, context.decisions, found.findings)
    boxes = built_boxes(info, known, compare_layers(found.layers, info, known), reasons)
    return draw_graph(view, boxes, found.layers), totals_of(info)


@dataclass(frozen=True)
class _HeldCache:
    """A cache, and how it fits the model."""

    name: str
    cache: Cache
    found: CacheCheck


def _cache(opened: Model, options: ReportOptions) -> _HeldCache | None:
    if options.cache is None:
        return None
    cache = read_cache(options.cache)
    return _HeldCache(
        Path(options.cache).name, cache, check(cache, *tensor_names(opened), export_evidence(opened, cache))
    )


def _verdict(
    found: LookedModel,
    measured: MeasuredReport,
    rows: Sequence[TensorRow],
    totals: EngineTotals | None,
    cache: _HeldCache | None,
) -> VerdictFacts:
    predicted = boxes_of(found)
    kept = {box.title for box in predicted if box.look == "kept"}
    return VerdictFacts(
        product_counts(found.view, predicted, found.context.typed.types, found.context.file_view),
        sum(layer.name in kept for layer in found.layers if layer.kind in ("convolution", "product")),
        found.forecast,
        found.bare,
        found.findings,
        None if isinstance(found.parser, str) else found.parser,
        found.parser if isinstance(found.parser, str) else "",
        rows,
        measured,
        totals,
        None if cache is None else cache.found,
        found.ratios,
        [row.title for row in formats_in(found.view)],
        found.row.title,
    )


def _sections(
    opened: Model,
    found: LookedModel,
    measured: MeasuredReport,
    drawn: Drawn,
    rows: Sequence[TensorRow],
    facts: VerdictFacts,
    cache: _HeldCache | None,
    options: ReportOptions,
) -> list[Section]:
    """All sections that there is something for, in their order."""
    built = options.layers is not None
    predicted = layers_in_kernels(found.forecast.layers, found.forecast.kernels)
    note = (
        "Boxes are the layers of the built engine."
        if built
        else f"Boxes are what the rules predict, {predicted}; nothing was built."
    )
    parts = [sections.verdict_section(verdict_cards(facts))]
    parts.append(opportunities_section(opportunities(found, measured.causes, options)))
    parts.append(sections.graph_section(found.view, drawn, note))
    forecast = forecast_of(found)
    parts += [] if forecast is None else [forecast]
    if rows:
        parts.append(sections.tensors_section(rows, _tensor_note(measured)))
    if weights := weight_rows(found.view):
        parts.append(sections.weights_section(weights))
    if options.sensitivity is not None:
        parts.append(_sensitivity(options.sensitivity))
    name = _name(opened)
    parts.append(sections.findings_section(found.findings, _repair(opened, options)))
    if measured.images:
        parts.append(sections.pictures_section(measured.images, measured.drawn))
    if cache is not None:
        parts.append(sections.cache_section(cache.cache, cache.found, cache.name))
    if options.diff is not None:
        other = open_model(options.diff)
        parts.append(differences(found, look_at(other, replace(options, parser=False)), (name, _name(other))))
    if options.log is not None:
        parts.append(_curves(options.log))
    return [*parts, sections.made_section(_made(opened, found, measured, options))]


def _repair(opened: Model, options: ReportOptions) -> str:
    """The command that repairs what was found, as it was looked for; "" for a typed model, which lint does not edit."""
    if is_typed(opened):
        return ""
    name = _name(opened)
    return shlex.join(["qdqtool", "lint", name, *target_words(options), "-o", f"{Path(name).stem}.fixed.onnx"])


def _name(opened: Model) -> str:
    return opened.path.name if opened.path is not None else opened.name


def _tensor_note(measured: MeasuredReport) -> str:
    if measured.samples:
        return f"Values of {measured.samples} samples in the float model."
    return (
        "Histograms of a calibration state."
        if measured.histograms
        else "No data was run: --data adds histograms, clipped shares and SQNR."
    )


def _sensitivity(path: str | Path) -> Section:
    document = parse_json(read_text(path, _SENSITIVITY), path, _SENSITIVITY)
    try:
        return sections.sensitivity_section(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise QdqError(
            path, f"is not a sensitivity table ({type(error).__name__}: {error})", _SENSITIVITY.todo
        ) from None


def _curves(path: str | Path) -> Section:
    events = read_events(Path(path))
    if not events:
        raise QdqError(path, "has no training steps", "give what finetune --log wrote")
    return curves_section(events, Path(path).name)


def _made(opened: Model, found: LookedModel, measured: MeasuredReport, options: ReportOptions) -> dict[str, str]:
    """What the report was made from and with: nothing that differs between two equal runs."""
    facts = {"command": options.command, "qdqtool": __version__}
    facts |= {name: _version(name) for name in _PACKAGES if name != "onnxruntime" or measured.samples}
    facts["model, SHA-256"] = opened.sha256 or "in memory"
    for label, source in (
        ("FP32 model", options.reference),
        ("other model", options.diff),
        ("cache", options.cache),
        ("engine's layers", options.layers),
    ):
        if (path := path_of(source)) is not None:
            facts[f"{label}, SHA-256"] = file_sha256(path, "give a file")
    run = found.table.provenance
    if run.method:
        facts["calibration"] = (
            f"method {run.method}, {run.samples} samples, {_words(run.data or {}) or 'data not recorded'}"
        )
    if measured.data:
        facts["data"] = f"{measured.samples} samples, {_words(measured.data)}"
    version = options.trt_version or found.context.version
    facts["rules"] = f"target {options.target}" + ("" if options.target == RTX_TARGET else f", TensorRT {version.text}")
    facts["executor"] = (
        "onnxruntime with ORT_ENABLE_BASIC and session.disable_quant_qdq=1; not TensorRT" if measured.samples else ""
    )
    for number, note in enumerate((*found.notes, *measured.notes), 1):
        facts[f"note {number}"] = note
    return {key: value for key, value in facts.items() if value}


def _words(facts: Mapping[str, Any]) -> str:
    """What is recorded of data, as `name value` with commas between."""
    return ", ".join(
        f"{key} {value if isinstance(value, (str, int)) else json.dumps(value)}" for key, value in facts.items()
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not recorded"


def _inputs(options: ReportOptions) -> list[Path]:
    """Every file that is read, so that none is overwritten."""
    judged_by = options.data, options.labels, options.names, options.postprocess
    shown = options.cache, options.state, options.layers, options.sensitivity, options.log
    return files_of(options.reference, options.diff, *judged_by, *shown)
