# SPDX-License-Identifier: Apache-2.0
"""A model that does no better than guessing by labels is told; one of use, or judged on few samples, is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.evaluation.chance import chance_warning, reference_warning
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.ground_truth import Truth
from qdqtool.evaluation.labels_boxes import BoxLabels
from qdqtool.evaluation.labels_classes import ClassLabels
from qdqtool.evaluation.tasks import LabeledBoxes, LabeledClasses, OutputSignal


@pytest.mark.parametrize(
    ("hits", "samples", "classes", "told"),
    [
        (0, 400, 1000, True),  # a Caffe model with --preprocess imagenet
        (4, 400, 1000, True),  # ten times what guessing gives, and of no use
        (60, 400, 1000, False),
        (200, 400, 2, True),
        (300, 400, 2, False),
        (0, 6, 1000, True),
        (0, 5, 1000, False),  # a model that is right half the time may be so unlucky
        (3, 6, 2, False),
        (5, 5, 1, False),
        (0, 0, 1000, False),
    ],
)
def test_what_is_taken_for_guessing(hits: int, samples: int, classes: int, told: bool) -> None:
    said = chance_warning("m.onnx", hits, samples, classes)
    assert bool(said) == told
    if told:
        rate = f"a top-1 of {hits / samples:.4f} on {samples} samples, where guessing one of {classes} classes gives"
        assert said.startswith(f"m.onnx has {rate} {1 / classes:.4f}: ")
        assert "--preprocess (imagenet, caffe, keras, color=bgr)" in said


def test_fp32_is_told_by_what_it_found() -> None:
    task = LabeledClasses(ClassLabels("filename", np.zeros(8, np.int64)), classes=10)
    assert reference_warning(task, [5] * 8).startswith("FP32 has a top-1 of 0.0000 on 8 samples")
    assert not reference_warning(task, [0] * 8)
    assert not reference_warning(OutputSignal(), [])


def test_a_detector_that_finds_nothing_is_told_with_labels_too() -> None:
    labels: Any = BoxLabels
    task = LabeledBoxes(lambda outputs, places: [], labels)
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    one = Detections(np.zeros((1, 4), np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))
    truth: Any = Truth
    assert "finds nothing" in reference_warning(task, [(none, truth), (none, truth)])
    assert not reference_warning(task, [(none, truth), (one, truth)])
