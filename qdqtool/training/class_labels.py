# SPDX-License-Identifier: Apache-2.0
"""Classes of samples or of their pixels beside those of `--data`, and the loss that learns them.

What labels may look like, `evaluate` says; a loss on other arrays is `--label`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.data.loader import Batch, Data, DataOptions, inputs_of
from qdqtool.data.model_inputs import Array
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels import class_labels, map_labels
from qdqtool.evaluation.labels_classes import Int64
from qdqtool.evaluation.labels_maps import are_maps
from qdqtool.evaluation.samples import open_samples
from qdqtool.evaluation.segmentation import map_reader
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.options import Label, LossOptions

FOLDERS = "folders"  # the word for --labels where the data itself tell the classes
_BY_SIGMOIDS = ("bce", "sigmoid-focal", "sigmoid-dice")
_BY_NUMBER = ("ce", "focal", "dice")
_FIRST = "is the number of the first class 0?"


@dataclass(frozen=True)
class LabeledData:
    """Samples with the arrays of their classes, how they are read, and the loss.

    Attributes:
        data: walks the samples anew at each call.
        reading: what is left to be done to them: nothing.
        loss: with a term for the classes.
    """

    data: Data
    reading: DataOptions
    loss: LossOptions


def with_class_labels(
    model: Model, data: Data, labels: str | Path, reading: DataOptions, loss: LossOptions
) -> LabeledData:
    """Put the classes of samples, or of their pixels, beside them, for the losses that are asked for.

    Without any that is, on the only output, cross-entropy, or binary cross-entropy where the output is that of a
    Sigmoid or has one channel; for class maps the Dice loss is added.

    Raises:
        QdqError: labels that do not fit the data, no single output of classes, a class that it lacks.
    """
    samples = open_samples(data, inputs_of(model.proto.graph), replace(reading, batch=1))
    by_data = str(labels) == FOLDERS and not Path(labels).is_file()
    of_pixels = not by_data and are_maps(labels)
    first = next(iter(samples.chunks())).batch
    asked = loss.labels or (_map_terms(model, first) if of_pixels else (_term_of(model),))
    for one in asked:
        if one.kind not in (*_BY_NUMBER, *_BY_SIGMOIDS):
            kinds = ", ".join((*_BY_NUMBER, *_BY_SIGMOIDS))
            raise QdqError(f"--label {one.output}:{one.kind}", "is no loss of classes", f"with --labels use {kinds}")
    scores = Executor(model, [one.output for one in asked], model.name).run(first)
    shapes = {one.array: (one, scores[one.output].shape[1:]) for one in asked}
    if of_pixels:
        maps = map_labels(labels, samples, None)
    else:
        numbers = class_labels(None if by_data else labels, samples, None).numbers

    def walk() -> Iterator[Batch]:
        done = 0
        for chunk in samples.chunks():
            count = len(chunk.geometries) or len(next(iter(chunk.batch.values())))
            if of_pixels:
                truths = [(maps.truth(done + k), geometry) for k, geometry in enumerate(chunk.geometries)]
                arrays = {name: np.stack([_map(*one, *how) for one in truths]) for name, how in shapes.items()}
            else:
                arrays = {name: _array(numbers[done : done + count], *how) for name, how in shapes.items()}
            done += count
            yield {**chunk.batch, **arrays}

    moving = tuple(shapes) if of_pixels else ()
    return LabeledData(walk, replace(reading, preprocess=None, part=None), replace(loss, labels=asked, moving=moving))


def _term_of(model: Model) -> Label:
    """The loss on a classifier's only output."""
    outputs = [value.name for value in model.graph.output]
    if len(outputs) != 1:
        reason = f"has {len(outputs)} outputs, and --labels does not say which holds the classes"
        raise QdqError(model.name, reason, "give --label OUTPUT:ce, or bce")
    maker = model.view.producers.get(outputs[0])
    kind = "bce" if maker is not None and maker.op == "Sigmoid" else "ce"
    return Label(outputs[0], kind, 1.0, f"{outputs[0]}_label", {})


def _map_terms(model: Model, first: Batch) -> tuple[Label, ...]:
    """The two losses on the scores of every place."""
    outputs = [value.name for value in model.graph.output]
    found = Executor(model, outputs, model.name).run(first)
    reader = map_reader(model.name, found)
    if reader.axis is None:
        reason = f"{reader.name} holds class numbers, which have no gradient"
        raise QdqError(model.name, reason, "name the scores before it: --label TENSOR:ce --label TENSOR:dice")
    maker = model.view.producers.get(reader.name)
    sigmoid = found[reader.name].shape[reader.axis] == 1 or (maker is not None and maker.op == "Sigmoid")
    axis = {"axis": float(reader.axis)}
    kinds = (("bce", {}), ("sigmoid-dice", axis)) if sigmoid else (("ce", axis), ("dice", axis))
    return tuple(Label(reader.name, kind, 1.0, f"{reader.name}_label", numbers) for kind, numbers in kinds)


def _map(truth: Int64, geometry: Geometry, label: Label, scores: Sequence[int]) -> Array:
    """What a loss takes of one class map, for scores of a shape without the batch: the class at every place's center.

    -1 where the picture does not lie, or says nothing.
    """
    axis = int(label.numbers.get("axis", 1)) - 1
    if len(scores) != 3 or axis not in (0, 2):
        reason = f"has the shape {list(scores)} for a sample, and class maps need [classes, height, width]"
        raise QdqError(label.output, reason, "name the output of the scores: --label OUTPUT:ce")
    if truth.shape != (geometry.height, geometry.width):
        reason = f"hold a map of {truth.shape[1]}x{truth.shape[0]}, its picture has {geometry.width}x{geometry.height}"
        raise QdqError("--labels", reason, "check that these are the labels of --data")
    classes, (rows, columns) = scores[axis], np.delete(scores, axis)
    if truth.max(initial=0) >= max(classes, 2):
        raise QdqError(label.output, f"has {classes} scores, and there is a class {truth.max()}", _FIRST)
    inside = truth
    for k, (count, side) in enumerate(((rows, 1), (columns, 0))):
        places = (np.arange(count) + 0.5) * (geometry.input_size[side] / count)
        indices = np.floor((places - geometry.offset[side]) / geometry.scale[side]).astype(np.intp)
        inside = np.take(inside, np.clip(indices, 0, truth.shape[k] - 1), k)
        outside = (indices < 0) | (indices >= truth.shape[k])
        inside[(outside, slice(None)) if k == 0 else (slice(None), outside)] = -1
    if label.kind in _BY_NUMBER:
        return inside
    wanted = inside[None] == (np.arange(1, 2) if classes == 1 else np.arange(classes))[:, None, None]
    marked = np.where(inside[None] < 0, -1, wanted).astype(np.float32)
    return marked if axis == 0 else np.moveaxis(marked, 0, 2)


def _array(classes: Int64, label: Label, scores: Sequence[int]) -> np.ndarray:
    """What a loss takes of some class numbers, for scores of a shape without the batch."""
    rest = tuple(scores[1:])
    if not scores or any(length != 1 for length in rest):
        reason = f"has the shape {list(scores)} for a sample, and classes have one axis"
        raise QdqError(label.output, reason, "name the output of the classes: --label OUTPUT:ce")
    if label.kind in _BY_NUMBER:
        return classes.reshape(len(classes), *rest)
    most = max(scores[0], 2) - 1
    if classes.size and not 0 <= classes.min() <= classes.max() <= most:
        reason = f"has {scores[0]} scores, and there is a class {int(classes.max())}"
        raise QdqError(label.output, reason, _FIRST)
    marked = classes[:, None] if scores[0] == 1 else classes[:, None] == np.arange(scores[0])
    return marked.astype(np.float32).reshape(len(classes), scores[0], *rest)
