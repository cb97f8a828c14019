# SPDX-License-Identifier: Apache-2.0
"""Labeled boxes beside the samples of `--data`, in pixels of the input, and the loss of the detector that learns them.

What labels may look like, and how outputs are read, `evaluate` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.data.loader import Batch, Data, DataOptions, inputs_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import refuse_too_many
from qdqtool.evaluation.coco_names import model_names
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.detections import Float32
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.evaluation.labels import box_labels
from qdqtool.evaluation.samples import open_samples
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor, rows_of_run
from qdqtool.training.class_labels import LabeledData
from qdqtool.training.losses.box_losses import LABELED_BOXES, box_loss
from qdqtool.training.losses.options import LossOptions

_LEAST_SIDE = 1.0  # pixels of the input: of a smaller box nothing is seen


def with_box_labels(
    model: Model,
    data: Data,
    labels: str | Path,
    reading: DataOptions,
    loss: LossOptions,
    decoder: str = "auto",
    names: str | None = None,
) -> LabeledData:
    """Put the labeled boxes of samples beside them, and ask for the loss of the head that a decoder recognizes.

    Args:
        model: a detector.
        data: its samples.
        labels: as `evaluate` takes them, of boxes.
        reading: how samples are read.
        loss: what else is minimized.
        decoder: see `find_decoder`.
        names: the model's classes, where labels call them by words.

    Raises:
        QdqError: no decoder fits, or it has no loss; labels that do not fit the data or the model.
    """
    if loss.labels:
        reason = "is a loss on arrays, and --labels holds boxes, which have the loss of their decoder"
        raise QdqError(f"--label {loss.labels[0].output}:{loss.labels[0].kind}", reason, "leave one of them out")
    samples = open_samples(data, inputs_of(model.proto.graph), replace(reading, batch=1))
    known = model_names(names)
    try:
        boxes = box_labels(labels, samples, known)
    except QdqError as error:  # which names the option as `evaluate` has it
        raise QdqError(error.where, error.reason, error.todo.replace("--names", "--eval-names")) from error
    chunk = next(iter(samples.chunks()))
    size = chunk.geometries[0].input_size
    run = Executor(model, [value.name for value in model.graph.output], model.name)
    try:
        head = find_decoder(decoder, run.run(chunk.batch), size, rows=rows_of_run(run))
    except QdqError as error:
        todo = "give --eval-decoder NAME; docs/finetune.md lists the decoders that have a loss"
        raise QdqError(error.where, error.reason, todo) from error
    asked = box_loss(head, size)
    classes = head.head.classes
    refuse_too_many(0 if known is None else len(known.shown), classes)
    count = samples.count if samples.count is not None else sum(len(one.geometries) for one in samples.chunks())
    most = max((len(boxes.rows(index)) for index in range(count)), default=0)
    if not most:
        raise QdqError(labels, f"hold no box in {count} samples", "give images with objects in them")

    def walk() -> Iterator[Batch]:
        done = 0
        for chunk in samples.chunks():
            rows = []
            for place, geometry in enumerate(chunk.geometries, done):
                truth = boxes.truth(place, geometry.width, geometry.height)
                highest = int(truth.labels.max(initial=-1))
                if classes is not None and highest >= classes:
                    reason = f"has a box of class {highest}, the model has {classes} classes"
                    raise QdqError(labels, reason, "is the number of the first class 0?")
                rows.append(_in_input(truth, geometry, max(most, 1)))
            done += len(chunk.geometries)
            yield {**chunk.batch, LABELED_BOXES: np.stack(rows)}

    return LabeledData(
        walk, replace(reading, preprocess=None, part=None), replace(loss, boxes=asked, moving=(LABELED_BOXES,))
    )


def _in_input(truth: Truth, geometry: Geometry, most: int) -> Float32:
    """float32[most, 5]: class and corners in pixels of the input, -1 fills up; without crowds and difficult boxes."""
    corners = truth.boxes * np.array(geometry.scale * 2) + np.array(geometry.offset * 2)
    corners = np.clip(corners, 0, np.array(geometry.input_size * 2))
    seen = (corners[:, 2:] - corners[:, :2]).min(1, initial=np.inf) >= _LEAST_SIDE
    kept = truth.counted & (truth.labels >= 0) & seen
    rows = np.zeros((most, 5), np.float32)
    rows[:, 0] = -1
    rows[: int(kept.sum())] = np.concatenate((truth.labels[kept, None], corners[kept]), 1)
    return rows
