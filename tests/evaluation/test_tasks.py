# SPDX-License-Identifier: Apache-2.0
"""What a model is judged by, and how much of its outputs is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.data.geometry import Geometry
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation import tasks
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from qdqtool.evaluation.tasks import BoxAgreement, ChosenTask, OutputSignal, TaskOptions, choose_task, task_of_boxes

GEOMETRY = Geometry(32, 32, (1.0, 1.0), (0.0, 0.0), (32, 32))
CHUNK = Chunk({"x": np.zeros((1, 3, 32, 32), np.float32)}, (GEOMETRY,))
SCORES = {"y": np.array([[0.1, 0.7, 0.2]], np.float32)}
MAP = {"y": np.ones((1, 7, 5, 3), np.float32)}
YOLOX = {"y": np.zeros((1, 21, 7), np.float32)}  # 16 + 4 + 1 cells of 32 x 32, two classes


def samples(**more: Any) -> LabeledSamples:
    return LabeledSamples("data", lambda: iter([CHUNK]), **more)


def chosen(outputs: dict[str, Any], options: TaskOptions | None = None, **more: Any) -> ChosenTask:
    return choose_task(outputs, CHUNK, samples(**more), options or TaskOptions())


def test_without_labels_a_classifier_is_held_against_its_own_best_class() -> None:
    task = chosen(SCORES).task
    assert task.title == "top-1 agreement with FP32" and task.compares
    other = {"y": np.array([[0.8, 0.1, 0.1]], np.float32)}
    found = task.read(other, SCORES, CHUNK, 0) + task.read(SCORES, SCORES, CHUNK, 1)
    assert [rank for rank, _ in found] == [1, 0]
    measured = task.measure(found, [0, 0])
    assert measured.metrics == ("agreement1", "agreement5", "nearness") and measured.value("agreement1") == 0.5


def test_classes_beside_the_data_are_the_truth() -> None:
    task = chosen(SCORES, classes=np.array([2])).task
    assert task.title == "top-1" and task.read(SCORES, {}, CHUNK, 0) == [1]
    with pytest.raises(QdqError, match="more samples"):
        task.read(SCORES, {}, CHUNK, 1)


def test_outputs_that_nobody_reads_are_judged_by_their_error() -> None:
    found = chosen(MAP)
    assert isinstance(found.task, OutputSignal) and "no decoder" in found.notes[0]
    assert found.task.measure(found.task.read(MAP, MAP, CHUNK, 0), []).value("outputs") == 1.0


def test_a_decoder_that_was_named_must_fit() -> None:
    with pytest.raises(QdqError, match="--decoder yolox"):
        chosen(MAP, TaskOptions(decoder="yolox"))


def test_boxes_want_pycocotools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "box_labels", lambda *_: None)
    monkeypatch.setattr(tasks, "_has_pycocotools", lambda: False)
    assert "pycocotools" in chosen(YOLOX).notes[0]
    with pytest.raises(MissingPackageError, match="pycocotools"):
        chosen(YOLOX, TaskOptions(labels="labels.json"))


def test_a_detector_is_held_against_its_own_boxes() -> None:
    found = chosen(YOLOX)
    assert isinstance(found.task, BoxAgreement)
    unsure = Detections(np.zeros((1, 4), np.float32), np.array([0.2], np.float32), np.zeros(1, np.int64))
    sure = Detections(np.zeros((1, 4), np.float32), np.array([0.9], np.float32), np.zeros(1, np.int64))
    assert task_of_boxes(found, [unsure, sure], {}) is found
    again = task_of_boxes(found, [unsure], {})
    assert isinstance(again.task, OutputSignal) and "score of 0.3" in again.notes[0]
    assert task_of_boxes(again, [unsure], {}) is again


def test_a_map_of_classes_is_not_taken_for_boxes() -> None:
    """Class numbers of a plane look like boxes to a decoder."""
    task = chosen({"y": np.ones((1, 320, 320), np.int64)})
    assert isinstance(task.task, OutputSignal) and "no float output" in task.notes[0]
