# SPDX-License-Identifier: Apache-2.0
"""Classes from a file, file names or folders beside the samples of `--data`, and the loss that learns them.

What labels may look like, `evaluate` says; a loss on other arrays is `--label`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqtool.data.loader import Batch, Data, DataOptions, inputs_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels import class_labels
from qdqtool.evaluation.labels_classes import Int64
from qdqtool.evaluation.samples import open_samples
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.options import Label, LossOptions

FOLDERS = "folders"  # the word for --labels where the data itself tell the classes
_BY_SIGMOIDS = ("bce", "sigmoid-focal")
_BY_NUMBER = ("ce", "focal")


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
    """Put the classes of samples beside them, for the losses that are asked for, else for one on the only output.

    That is cross-entropy, or binary cross-entropy where the output is that of a Sigmoid.

    Raises:
        QdqError: labels that do not fit the data, no single output of classes, a class that it lacks.
    """
    samples = open_samples(data, inputs_of(model.proto.graph), replace(reading, batch=1))
    by_data = str(labels) == FOLDERS and not Path(labels).is_file()
    numbers = class_labels(None if by_data else labels, samples, None).numbers
    asked = loss.labels or (_term_of(model),)
    for one in asked:
        if one.kind not in (*_BY_NUMBER, *_BY_SIGMOIDS):
            kinds = ", ".join((*_BY_NUMBER, *_BY_SIGMOIDS))
            raise QdqError(f"--label {one.output}:{one.kind}", "is no loss of classes", f"with --labels use {kinds}")
    first = next(iter(samples.chunks())).batch
    scores = Executor(model, [one.output for one in asked], model.name).run(first)
    shapes = {one.array: (one, scores[one.output].shape[1:]) for one in asked}

    def walk() -> Iterator[Batch]:
        done = 0
        for chunk in samples.chunks():
            count = len(chunk.geometries) or len(next(iter(chunk.batch.values())))
            classes = numbers[done : done + count]
            done += count
            yield {**chunk.batch, **{name: _array(classes, *how) for name, how in shapes.items()}}

    return LabeledData(walk, replace(reading, preprocess=None, part=None), replace(loss, labels=asked))


def _term_of(model: Model) -> Label:
    """The loss on a classifier's only output."""
    outputs = [value.name for value in model.graph.output]
    if len(outputs) != 1:
        reason = f"has {len(outputs)} outputs, and --labels does not say which holds the classes"
        raise QdqError(model.name, reason, "give --label OUTPUT:ce, or bce")
    maker = model.view.producers.get(outputs[0])
    kind = "bce" if maker is not None and maker.op == "Sigmoid" else "ce"
    return Label(outputs[0], kind, 1.0, f"{outputs[0]}_label", {})


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
        raise QdqError(label.output, reason, "is the number of the first class 0?")
    marked = classes[:, None] if scores[0] == 1 else classes[:, None] == np.arange(scores[0])
    return marked.astype(np.float32).reshape(len(classes), scores[0], *rest)
