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
from qdqtool.evaluation.fidelity import error_sums, fidelity
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from qdqtool.evaluation.tasks import BoxAgreement, ChosenTask, OutputFidelity, TaskOptions, choose_task, task_of_boxes

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
    assert found.task.title.startswith("fidelity") and "no decoder" in found.notes[0]
    assert found.task.measure(found.task.read(MAP, MAP, CHUNK, 0), []).value("fidelity") == 1.0


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
    assert task_of_boxes(found, [unsure, sure]) is found
    again = task_of_boxes(found, [unsure])
    assert again.task.title.startswith("fidelity") and "score of 0.3" in again.notes[0]
    assert task_of_boxes(again, [unsure]) is again


def test_fidelity_is_one_less_the_error_at_the_worst_output() -> None:
    reference = {"a": np.array([3.0, 4.0], np.float32), "b": np.array([1.0], np.float32), "n": np.array([1])}
    found = {"a": np.array([3.0, 4.0], np.float32), "b": np.array([1.5], np.float32), "n": np.array([2])}
    sums = error_sums(reference, found)
    assert sums.tolist() == [[0.0, 25.0], [0.25, 1.0]]
    measured = fidelity([sums, error_sums(reference, reference)])
    assert measured.value("fidelity") == 1 - 0.25 / 2 and measured.images == 2
    drawn = measured.resampled(np.array([[2, 0], [0, 2]]))
    assert drawn[:, 0, 0].tolist() == [0.75, 1.0]


def test_fidelity_of_lost_and_of_silent_outputs() -> None:
    signal, none = np.array([1.0], np.float32), np.zeros(1, np.float32)
    lost = error_sums({"a": signal}, {"a": np.array([np.nan], np.float32)})
    assert fidelity([lost]).value("fidelity") == 0.0
    assert fidelity([error_sums({"a": none}, {"a": none})]).value("fidelity") == 1.0
    assert fidelity([error_sums({"a": none}, {"a": signal})]).value("fidelity") == 0.0
    with pytest.raises(QdqError, match=r"is \[2\] in INT8 and \[1\] in FP32"):
        error_sums({"a": signal}, {"a": np.zeros(2, np.float32)})


def test_a_map_of_classes_is_judged_by_the_share_that_stays() -> None:
    """A network that ends in ArgMax has no float output."""
    first = {"y": np.array([[1, 2], [3, 3]])}
    other = {"y": np.array([[1, 0], [3, 3]])}
    assert fidelity([error_sums(first, other), error_sums(first, first)]).value("fidelity") == 7 / 8
    beside = {**first, "score": np.ones((1, 2), np.float32)}
    assert len(error_sums(beside, beside)) == 1, "beside a float output integers are places or counts"
    with pytest.raises(QdqError, match="no output of numbers"):
        error_sums({"y": np.array(["a"])}, {"y": np.array(["a"])})


def test_a_map_of_classes_is_not_taken_for_boxes() -> None:
    """Class numbers of a plane look like boxes to a decoder."""
    task = chosen({"y": np.ones((1, 320, 320), np.int64)})
    assert isinstance(task.task, OutputFidelity) and "no float output" in task.notes[0]
