# SPDX-License-Identifier: Apache-2.0
"""The best classes of a classifier, and COCO's names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.classifier_output import classifier_of
from qdqtool.evaluation.coco_names import COCO, shown_names


def test_logits_are_shown_as_shares_and_equal_ones_in_order() -> None:
    logits = np.array([[0, 3, 1, 3, -2, 0, -9]], np.float32)
    classifier = classifier_of({"y": logits})
    assert classifier is not None
    assert re.match("classifier: y, 7 classes, logits, .*Softmax$", classifier.description)
    ranked = classifier({"y": logits})[0]
    assert ranked.labels.tolist() == [1, 3, 2, 0, 5]
    np.testing.assert_allclose(
        ranked.probabilities, (np.exp(logits) / np.exp(logits).sum())[0, ranked.labels], rtol=1e-5
    )


def test_probabilities_stay_as_they_are_for_each_sample() -> None:
    shares = np.array([[0.1, 0.9], [0.8, 0.2]], np.float32)
    classifier = classifier_of({"y": shares[:, :, None, None]})
    assert classifier is not None
    assert classifier.description.endswith("2 classes, probabilities")
    ranked = classifier({"y": shares[:, :, None, None]})
    assert [one.labels.tolist() for one in ranked] == [[1, 0], [0, 1]]
    np.testing.assert_array_equal(ranked[0].probabilities, np.array([0.9, 0.1], np.float32))


@pytest.mark.parametrize("shape", [(1, 5, 4), (1, 3, 8, 8), (1, 1), (7,), (1, 4, 4, 1)])
def test_other_shapes_are_no_classifiers(shape: tuple[int, ...]) -> None:
    assert classifier_of({"y": np.zeros(shape, np.float32)}) is None
    assert classifier_of({"y": np.zeros((0, 5), np.float32)}) is None, "no box is left of an empty picture"
    assert classifier_of({"y": np.zeros((1, 5)), "z": np.zeros((1, 5))}) is None


def test_coco_has_eighty_names_and_ninety_numbers() -> None:
    assert (len(COCO), COCO[0], COCO[9], COCO[79]) == (80, "person", "traffic light", "toothbrush")
    numbered = shown_names("coco", 90)
    assert (len(numbered), numbered[0], numbered[11], numbered[12], numbered[89]) == (
        90,
        "person",
        "",
        "stop sign",
        "toothbrush",
    )
    assert shown_names("coco", 80) == shown_names("coco") == COCO
    assert shown_names("coco90") == numbered


def test_names_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("cat\ndog\n")
    assert shown_names(str(tmp_path / "n.txt")) == shown_names("cat,dog") == ("cat", "dog")
    assert shown_names(None) == ()
    with pytest.raises(QdqError, match="cannot be read"):
        shown_names("absent.txt")
