# SPDX-License-Identifier: Apache-2.0
"""What `report` learns by running data: histograms, how far tensors lie apart, the task's loss, the worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtool.amax.histogram import Histogram
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.diagnosis.cause import LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, causes_of, look
from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import Figure
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.measures import Measure
from qdqtool.observers.collect import count_batches
from qdqtool.observers.observer_state import mergeable_of
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import read_state
from qdqtool.reporting.sections import DrawnImage
from qdqtool.verbs.compare import CompareOptions, compare
from qdqtool.verbs.evaluate import evaluate
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.evaluation_result import Evaluation
from qdqtool.verbs.measured_remedy import with_brought
from qdqtool.workflows.report_options import ReportOptions
from qdqtool.workflows.report_pictures import worst_boxes, worst_classes


@dataclass(frozen=True)
class MeasuredReport:
    """What was measured on data.

    Attributes:
        histograms: tensor -> its values in the float model.
        measures: tensor -> how far it lies from the float model.
        outputs: those of the outputs.
        causes: of the loss; None where they were not looked for.
        evaluation: the task's figures; None where the model has no task metric here.
        images: the worst ones, drawn.
        drawn: one sentence on them.
        data: what the data is, as JSON values.
        samples: how many were run.
        notes: what could not be measured, and why.
    """

    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    measures: Mapping[str, Measure] = field(default_factory=dict)
    outputs: tuple[Measure, ...] = ()
    causes: LossCauses | None = None
    evaluation: Evaluation | None = None
    images: Sequence[DrawnImage] = ()
    drawn: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 0
    notes: tuple[str, ...] = ()


def stored_histograms(path: str | Path) -> dict[str, Histogram]:
    """The histograms of a state that `calibrate --checkpoint` wrote.

    Raises:
        QdqError: it is none, or holds only those of TensorRT's own entropy method.
    """
    state = read_state(Path(path))
    found = mergeable_of(state.observation.of_all(state.plan))
    if not found:
        raise QdqError(path, "holds no histogram that can be drawn", "calibrate with another method than entropy")
    return found


def measure_report(model: ModelSource, reference: Model, options: ReportOptions, *, plain: bool) -> MeasuredReport:
    """Run the data.

    Raises:
        QdqError: data or labels that do not fit; what onnxruntime refuses.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    assert options.data is not None

    loader = open_loader(options.data, inputs_of(reference.graph), options.data_options)
    if loader.once:
        raise QdqError("--data", "can be iterated only once, and a report reads it several times", "give a file")
    how = CalibrationOptions(method="mse", provider=options.provider, progress=options.progress, inner=False)
    state = count_batches(reference, loader, how)
    found = MeasuredReport(
        mergeable_of(state.observation.of_all(state.plan)),
        data=loader.description,
        samples=state.observation.samples,
        notes=loader.notes,
    )
    if plain:
        return found if options.labels is None else _evaluated(found, model, None, options)
    source = reference.proto if options.reference is None else options.reference
    found = _diagnosed(_compared(found, model, source, options), model, options)
    return _pictured(_evaluated(found, model, source, options), model, source, options)


def _diagnosed(found: MeasuredReport, model: ModelSource, options: ReportOptions) -> MeasuredReport:
    assert options.data is not None
    how = DiagnosisOptions(
        provider=options.provider,
        progress=options.progress,
        target=options.target,
        trt_version=options.trt_version,
        data_options=options.data_options,
    )
    source = None if options.reference is None else open_model(options.reference)
    try:
        evidence, said = look(open_model(model), options.data, how, source)
        causes = with_brought(causes_of(evidence, said), evidence)
    except QdqError as error:
        return replace(found, notes=(*found.notes, f"the cause of the loss is not known: {error.reason}"))
    return replace(found, causes=causes, notes=(*found.notes, *causes.notes))


def _compared(found: MeasuredReport, model: ModelSource, source: ModelSource, options: ReportOptions) -> MeasuredReport:

    assert options.data is not None
    how = CompareOptions(provider=options.provider, progress=options.progress)
    result = compare(source, model, options.data, how, options.data_options)
    return replace(found, measures={one.tensor: one for one in result.tensors}, outputs=result.outputs)


def _evaluated(
    found: MeasuredReport, model: ModelSource, source: ModelSource | None, options: ReportOptions
) -> MeasuredReport:
    """The task's figures, beside those of `source` where there is one.

    Where the user gave no labels, a model without a task metric is no fault.
    """
    assert options.data is not None
    how = EvaluateOptions(
        source,
        decoder=options.decoder,
        postprocess=options.postprocess,
        names=options.names,
        provider=options.provider,
        progress=options.progress,
    )
    try:
        return replace(found, evaluation=evaluate(model, options.data, options.labels, how, options.data_options))
    except QdqError as error:
        if options.labels is not None:
            raise
        reason = error.reason.partition(" (")[0]  # what each decoder says of the outputs, evaluate tells
        return replace(found, notes=(*found.notes, f"no task metric: {reason}"))


def _pictured(found: MeasuredReport, model: ModelSource, source: ModelSource, options: ReportOptions) -> MeasuredReport:
    """The worst images: of a detector by boxes lost and spurious, of a classifier those with another best class."""
    if found.evaluation is None or options.pictures < 1:
        return found

    draw = worst_classes if found.evaluation.of_classes else worst_boxes
    images, drawn = draw(model, source, options)
    return replace(found, images=images, drawn=drawn)


def main_figure(result: Evaluation) -> tuple[str, Figure, bool]:
    """The first metric over all: its name, the loss where there is a baseline's, else the figure; whether a loss."""
    table = result.losses or result.figures
    name = next(iter(table))
    return name, table[name][0], bool(result.losses)
