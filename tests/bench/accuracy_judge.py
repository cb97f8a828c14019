# SPDX-License-Identifier: Apache-2.0
"""The accuracy bench's judgment: one model over one labeled set, its figures on the same resamples for every tool.

Figures are those of `qdqtool evaluate`. What it does not do is hold two INT8 models against each other: here every
figure keeps its 1000 resamples, so that the difference of any two models has its paired interval without a run more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_subjects import AccuracySubject

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qdqtool.evaluation.detections import Detections
    from qdqtool.evaluation.metrics import MeasuredModel
    from qdqtool.evaluation.samples import LabeledSamples

    Array = npt.NDArray[np.float64]

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
PERSON_AREA = 0.005  # of the image: smaller persons do not make an image of a person


@dataclass(frozen=True)
class Span:
    """A figure, or the difference of two, with its 95 % interval."""

    value: float
    low: float
    high: float


# ---------------------------------------------------------------- data


def prepare(subject: AccuracySubject, corpus: Path, work: Path) -> None:
    """Write the calibration samples (samples.npz) as the model takes them, and labels that no file holds as such."""
    import numpy as np

    from qdqtool.data.loader import DataOptions, inputs_of
    from qdqtool.evaluation.samples import open_samples
    from qdqtool.graph.io import open_model

    data: Path = corpus / "datasets" / subject.data[0]
    if data.suffix == ".npz":
        pixels = np.load(data)["calib"]
        data = work / "pixels.npz"
        np.savez(data, x=pixels)
    inputs = inputs_of(open_model(corpus / "models" / f"{subject.name}.onnx").proto.graph)
    samples = open_samples(data, inputs, DataOptions(preprocess=subject.preprocess))
    found = [chunk.batch[inputs[0].name] for chunk in samples.chunks()]
    np.savez(work / "samples.npz", **{inputs[0].name: np.concatenate(found)})
    if subject.data[2] == "persons":
        images = sorted((corpus / "datasets" / subject.data[1]).iterdir())[: limit_of(subject)]
        np.save(work / "persons.npy", np.array([_shows_person(image) for image in images], np.int64))


def _shows_person(image: Path) -> bool:
    """Whether the YOLO labels of an image have a person (class 0) that is large enough."""
    label = image.parents[1] / "labels" / f"{image.stem}.txt"
    rows = [line.split() for line in label.read_text().splitlines()] if label.is_file() else []
    return any(int(row[0]) == 0 and float(row[3]) * float(row[4]) > PERSON_AREA for row in rows)


def limit_of(subject: AccuracySubject) -> int | None:
    """How many images are judged: those of QDQTOOL_BENCH_IMAGES, "DETECTORS,CLASSIFIERS"; None for all."""
    asked = os.environ.get("QDQTOOL_BENCH_IMAGES")
    return None if asked is None else int(asked.split(",")[0 if subject.detector else 1])


def _samples(subject: AccuracySubject, corpus: Path, model: Any) -> LabeledSamples:
    from qdqtool.data.loader import DataOptions, inputs_of
    from qdqtool.evaluation.samples import open_samples

    options = DataOptions(preprocess=subject.preprocess, limit=limit_of(subject))
    return open_samples(corpus / "datasets" / subject.data[1], inputs_of(model.proto.graph), options)


# ---------------------------------------------------------------- one model's figures


def judge(subject: AccuracySubject, model: Path, corpus: Path, work: Path, tool: str) -> dict[str, float]:
    """Run a model over the evaluation data and keep its figures with their resamples; FP32 comes first.

    Returns:
        the figures: top1 and top5; or map and ap50, and agreement with the FP32 model where this is another one.
    """
    import numpy as np

    from qdqtool.evaluation.bootstrap import SEED, bootstrap
    from qdqtool.evaluation.metrics import with_drawn_classes

    every = _classes(subject, model, corpus, work) if not subject.detector else _boxes(subject, model, corpus, work)
    kept: dict[str, Array] = {}
    for one in every:
        drawn = with_drawn_classes(bootstrap(one.resampled, one.images), one.images_of, SEED)[:, :, 0]
        for index, metric in enumerate(one.metrics):
            kept[metric] = np.concatenate([[one.value(metric)], drawn[:, index]])
    np.savez(figures_file(work, tool), **kept)
    return {metric: round(float(values[0]), 4) for metric, values in kept.items()}


def figures_file(work: Path, tool: str) -> Path:
    """Where the figures of one tool lie."""
    return work / f"{tool.replace(' ', '_')}.figures.npz"


def _classes(subject: AccuracySubject, model: Path, corpus: Path, work: Path) -> list[MeasuredModel]:
    from qdqtool.evaluation.classification import classified, ranks
    from qdqtool.evaluation.labels import class_labels
    from qdqtool.graph.io import open_model
    from qdqtool.runtime.executor import Executor

    opened = open_model(model)
    samples, run = _samples(subject, corpus, opened), Executor(opened)
    labels = work / "persons.npy" if subject.data[2] == "persons" else subject.data[2]
    truth = class_labels(labels, samples, None).numbers
    found, seen = [], 0
    for chunk in samples.chunks():
        count = len(chunk.geometries)
        scores = next(iter(run.run(chunk.batch).values())).reshape(count, -1)
        found.append(ranks(opened.name, scores, truth[seen : seen + count]))
        seen += count
    return [classified(found)]


def _boxes(subject: AccuracySubject, model: Path, corpus: Path, work: Path) -> list[MeasuredModel]:
    from qdqtool.evaluation.agreement import agreement
    from qdqtool.evaluation.detection_ap import coco
    from qdqtool.evaluation.labels import box_labels

    plain = corpus / "models" / f"{subject.name}.onnx"
    found, samples, geometries = _detections(subject, model, plain, corpus)
    where, names = corpus / "datasets" / str(subject.data[2]), _names(subject)
    form = box_labels(where, samples, names)
    measured = coco(found, [form.truth(i, g.width, g.height) for i, g in enumerate(geometries)])
    boxes = work / "boxes.npz"
    if model == plain:
        _write_boxes(boxes, found)
        return [measured]
    return [measured, agreement(found, _read_boxes(boxes))]


def _names(subject: AccuracySubject) -> Any:
    from qdqtool.evaluation.class_names import Names, parse_names
    from qdqtool.evaluation.coco_names import shown_names

    if subject.data[3] != "coco":
        return parse_names(str(subject.data[3]))
    shown = shown_names("coco")
    return Names(shown, {word: number for number, word in enumerate(shown)})


def _detections(
    subject: AccuracySubject, model: Path, plain: Path, corpus: Path
) -> tuple[list[Detections], LabeledSamples, list[Any]]:
    """The boxes of every image. The decoder is found from what the FP32 model gives for the first."""
    from qdqtool.evaluation.decode.auto_detect import find_decoder
    from qdqtool.evaluation.decode_options import Selection
    from qdqtool.graph.io import open_model
    from qdqtool.runtime.executor import Executor

    opened, original = open_model(model), open_model(plain)
    samples, run = _samples(subject, corpus, original), Executor(opened)
    decoder, found, geometries = None, [], []
    for chunk in samples.chunks():
        if decoder is None:
            outputs = Executor(original).run(chunk.batch)
            selection = Selection(subject.score, subject.iou)
            decoder = find_decoder("auto", outputs, chunk.geometries[0].input_size, selection)
        found.extend(decoder(run.run(chunk.batch), chunk.geometries))
        geometries.extend(chunk.geometries)
    return found, samples, geometries


def _write_boxes(path: Path, found: Sequence[Detections]) -> None:
    import numpy as np

    counts = np.array([len(one) for one in found])
    parts = {key: np.concatenate([getattr(one, key) for one in found]) for key in ("boxes", "scores", "labels")}
    np.savez(path, counts=counts, **parts)


def _read_boxes(path: Path) -> list[Detections]:
    import numpy as np

    from qdqtool.evaluation.detections import Detections

    held = np.load(path)
    ends = np.cumsum(held["counts"])[:-1]
    parts = (np.split(held[key], ends) for key in ("boxes", "scores", "labels"))
    return [Detections(*one) for one in zip(*parts, strict=True)]


# ---------------------------------------------------------------- what is said of two models, and of one


def loss(work: Path, metric: str, before: str, after: str) -> Span | None:
    """What a tool's model has less than another's (above 0: it is worse), same resamples; None if unmeasured."""
    import numpy as np

    from qdqtool.evaluation.bootstrap import interval

    files = [figures_file(work, tool) for tool in (before, after)]
    if not all(file.is_file() for file in files):
        return None
    one, other = (np.load(file)[metric] for file in files)
    difference = one - other
    found = interval(float(difference[0]), difference[1:])
    return Span(float(difference[0]), found.low, found.high)


def figure(work: Path, metric: str, tool: str) -> Span:
    """One figure with its own interval, which is as wide as these images are few."""
    import numpy as np

    from qdqtool.evaluation.bootstrap import interval

    values = np.load(figures_file(work, tool))[metric]
    found = interval(float(values[0]), values[1:])
    return Span(float(values[0]), max(0.0, found.low), min(1.0, found.high))


def counts(model: Path) -> dict[str, float | None]:
    """Tensors that are rounded and no weights; operators with weights in float, and the multiply-adds they have."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    constants = {one.name for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    rounded = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    whole = [n for n in graph.node if n.op_type in WEIGHTED and not _reads_rounded(n.input[1], makers)]
    return {"pairs": len(rounded), "in_float": len(whole), "float_macs": _share(model, {n.output[0] for n in whole})}


def _share(model: Path, some: set[str]) -> float | None:
    """Of the multiply-adds of operators with weights, what some of them have; None where sizes are not known."""
    from qdqtool.engine.macs import multiply_adds
    from qdqtool.graph.io import open_model
    from qdqtool.graph.shapes import known_shapes

    view = open_model(model).view
    shapes, macs = known_shapes(view), dict[str, int | None]()
    for node in view.every:
        if node.op in WEIGHTED:
            found = [shapes.get(name) for name in (*node.inputs[:2], node.outputs[0])]
            sizes = [[side or 1 for side in one] for one in found if one is not None and None not in one[1:]]
            macs[node.outputs[0]] = multiply_adds(node, *sizes) if len(sizes) == 3 else None
    if None in macs.values():
        return None
    return round(sum(count for name, count in macs.items() if name in some) / max(1, sum(macs.values())), 4)


def _reads_rounded(name: str, makers: dict[str, Any]) -> bool:
    """Whether a weight comes out of a DequantizeLinear, straight or through what only moves values."""
    while name in makers:
        node = makers[name]
        if node.op_type == "DequantizeLinear":
            return True
        if node.op_type not in {"Transpose", "Reshape", "Identity"}:
            return False
        name = node.input[0]
    return False
