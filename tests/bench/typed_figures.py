# SPDX-License-Identifier: Apache-2.0
"""How much two files of one network differ by their task, over several calibrations: means and a paired interval.

INT8 networks tremble: a scale that is moved by a thousandth tips codes, and an agreement of 128 images moves by up to
.02. So both files are judged with the same scales moved at random, seed by seed, and the difference is that of the
means. Its interval comes from the project's own paired bootstrap over the images, the same draw for every file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.data.loader import DataOptions, inputs_of
from qdqtool.evaluation.agreement import agreement
from qdqtool.evaluation.bootstrap import SEED, Interval, bootstrap, interval
from qdqtool.evaluation.class_names import Names, parse_names
from qdqtool.evaluation.classification import classified, ranks
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.detection_ap import coco
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.labels import box_labels, class_labels
from qdqtool.evaluation.metrics import MeasuredModel, with_drawn_classes
from qdqtool.evaluation.samples import LabeledSamples, open_samples
from qdqtool.graph.model import Model
from qdqtool.precision.rounded import as_run
from qdqtool.runtime.executor import Executor
from tests.bench.accuracy_subjects import AccuracySubject

MOVED = 1e-3  # by which share a scale is moved at most
RESAMPLES = 300


@dataclass(frozen=True)
class Difference:
    """What one metric is, on average over the seeds.

    Attributes:
        before, after: of the first and of the second file.
        change: of `after - before`, with 95 % confidence.
        unmoved: `after - before` with the scales as they were calibrated.
    """

    before: float
    after: float
    change: Interval
    unmoved: float


class Figures:
    """One labeled data set and its model in FP32."""

    def __init__(self, subject: AccuracySubject, corpus: Path, limit: int | None) -> None:
        self.subject, self.data = subject, corpus / "datasets" / subject.data[1]
        self._limit = limit
        self.plain = onnx.load(corpus / "models" / f"{subject.name}.onnx")
        labels = subject.data[2]
        self.labels = None if labels is None else corpus / "datasets" / labels if subject.detector else labels
        self._sure = self._detections(self.plain) if subject.detector else []

    def samples(self) -> LabeledSamples:
        """The images, as the model takes them."""
        options = DataOptions(preprocess=self.subject.preprocess, limit=self._limit)
        return open_samples(self.data, inputs_of(self.plain.graph), options)

    def measured(self, model: onnx.ModelProto) -> list[MeasuredModel]:
        """A model by its task: top-1, or mean average precision and agreement with the model in FP32."""
        if not self.subject.detector:
            return [self._classified(model)]
        found = self._detections(model)
        return [coco(found, self._truths), agreement(found, self._sure)]

    def _classified(self, model: onnx.ModelProto) -> MeasuredModel:
        samples, run = self.samples(), Executor(as_run(Model(model)))
        truth, seen, found = class_labels(self.labels, samples, None).numbers, 0, []
        for chunk in samples.chunks():
            count = len(chunk.geometries)
            scores = next(iter(run.run(chunk.batch).values())).reshape(count, -1)
            found.append(ranks(self.subject.name, scores, truth[seen : seen + count]))
            seen += count
        return classified(found)

    def _detections(self, model: onnx.ModelProto) -> list[Detections]:
        """The boxes of every image; the first call, of the model in FP32, finds the decoder and reads the labels."""
        samples, run = self.samples(), Executor(as_run(Model(model)))
        found, geometries = list[Detections](), []
        for chunk in samples.chunks():
            outputs = run.run(chunk.batch)
            if not geometries and model is self.plain:
                selection = Selection(self.subject.score, self.subject.iou)
                self._decoder = find_decoder("auto", outputs, chunk.geometries[0].input_size, selection)
            found.extend(self._decoder(outputs, chunk.geometries))
            geometries.extend(chunk.geometries)
        if model is self.plain:
            form = box_labels(self.labels, samples, _names(self.subject))
            self._truths = [form.truth(at, one.width, one.height) for at, one in enumerate(geometries)]
        return found


def _names(subject: AccuracySubject) -> Names:
    if subject.data[3] != "coco":
        return parse_names(str(subject.data[3]))
    shown = shown_names("coco")
    return Names(shown, {word: number for number, word in enumerate(shown)})


def differences(figures: Figures, before: onnx.ModelProto, after: onnx.ModelProto, seeds: int) -> dict[str, Difference]:
    """The first metric of each kind for two files whose scales have the same names; seed 0 moves nothing."""
    runs = [[figures.measured(moved(model, seed)) for model in (before, after)] for seed in range(seeds)]
    found = {}
    for kind in range(len(runs[0][0])):
        pairs = [(one[kind], other[kind]) for one, other in runs]
        name = pairs[0][0].metrics[0]
        first, second = (float(np.mean([pair[at].value(name) for pair in pairs])) for at in (0, 1))
        drawn = bootstrap(lambda weights, pairs=pairs: _change(pairs, weights), pairs[0][0].images, RESAMPLES)  # type: ignore[misc]
        drawn = with_drawn_classes(drawn, pairs[0][0].images_of, SEED)[:, 0]
        unmoved = pairs[0][1].value(name) - pairs[0][0].value(name)
        found[name] = Difference(first, second, interval(second - first, drawn), unmoved)
    return found


def _change(pairs: Sequence[tuple[MeasuredModel, MeasuredModel]], weights: np.ndarray) -> np.ndarray:
    """The mean change of the first metric for each draw of the images, over all and of each class."""
    return np.mean([other.resampled(weights)[:, 0] - one.resampled(weights)[:, 0] for one, other in pairs], axis=0)


def moved(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """A model whose activation scales are moved at random, by at most MOVED; alike for files with the same names."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if not seed:
        return made
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    values = np.random.default_rng(seed)
    for name in sorted(set(_activation_scales(made))):
        scale = numpy_helper.to_array(stored[name])
        factor = np.float32(1 + values.uniform(-MOVED, MOVED))
        stored[name].CopyFrom(numpy_helper.from_array((scale * factor).astype(np.float32), name))
    return made


def _activation_scales(model: onnx.ModelProto) -> Iterator[str]:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in stored and not stored[node.input[1]].dims:
            yield node.input[1]
