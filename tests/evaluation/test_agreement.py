# SPDX-License-Identifier: Apache-2.0
"""Agreement: the FP32 model's sure detections are the truth."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.agreement import agreement
from qdqtool.evaluation.detection_ap import coco
from qdqtool.evaluation.ground_truth import truth_of
from tests.evaluation.scenes_of_boxes import FIRST, NOWHERE, SECOND, found_of, random_scenes

pytest.importorskip("pycocotools")


def test_a_model_agrees_with_itself() -> None:
    found, _ = random_scenes(1, ties=False)
    measured = agreement(found, found)
    assert measured.metrics == ("agreement", "agreement50")
    assert measured.value("agreement") == pytest.approx(1)


def test_only_what_the_baseline_is_sure_of_is_true() -> None:
    baseline = [found_of([FIRST, SECOND, NOWHERE], [0.9, 0.31, 0.3])]
    assert agreement([found_of([FIRST, SECOND])], baseline).value("agreement") == pytest.approx(1)
    assert agreement([found_of([FIRST, SECOND])], baseline).facts == {"boxes": 2, "detections": 2}


def test_it_is_coco_with_those_boxes() -> None:
    found, _ = random_scenes(2)
    baseline, _ = random_scenes(2, classes=3)
    truths = [truth_of(one.boxes[one.scores > 0.3], one.labels[one.scores > 0.3]) for one in baseline]
    assert (agreement(found, baseline).values == coco(found, truths).values).all()


def test_a_baseline_that_is_sure_of_nothing_is_refused() -> None:
    with pytest.raises(QdqError, match=r"score of 0\.3 in 1 images"):
        agreement([found_of([FIRST])], [found_of([FIRST], [0.2])])
