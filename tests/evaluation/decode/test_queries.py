# SPDX-License-Identifier: Apache-2.0
"""Outputs of detectors by queries that look alike, and those that are none."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode.detr import says_no_object
from qdqtool.evaluation.decode.head import HeadOutputs
from qdqtool.evaluation.decode.queries import are_fractions, boxes_and_classes, in_pixels
from tests.evaluation.decode import query_makers as queries
from tests.evaluation.decode.head_makers import boxes_in, check, identity

SIZE = (384, 256)
KNOWN = boxes_in(SIZE, 3, 1)


def test_features_of_the_queries_beside_boxes_and_classes_are_passed_over() -> None:
    outputs = queries.detr(KNOWN, SIZE, 3)
    outputs["last_hidden_state"] = np.zeros((1, queries.QUERIES, 64), np.float32)
    found = find_decoder("auto", outputs, SIZE)
    assert found.family == "detr"
    check(found(outputs, [identity(SIZE)])[0], KNOWN)
    without_words = {f"out{index}": value for index, value in enumerate(outputs.values())}
    with pytest.raises(QdqError, match="not two outputs"):
        find_decoder("detr", without_words, SIZE)


def test_boxes_and_classes_of_four_columns_are_told_by_their_names() -> None:
    def pair(*names: str) -> tuple[str, str] | None:
        return boxes_and_classes(HeadOutputs(dict.fromkeys(names, (1, 30, 4))))

    assert pair("pred_logits", "pred_boxes") == ("pred_boxes", "pred_logits")
    assert pair("a", "b") is None
    assert boxes_and_classes(HeadOutputs({"boxes": (1, 30, 4), "scores": (1, 20, 5)})) is None


@pytest.mark.parametrize("family", ["detr", "rtdetr"])
def test_shapes_alone_do_not_tell_a_softmax_from_a_sigmoid(family: str) -> None:
    shapes = {name: value.shape for name, value in queries.detr(KNOWN, SIZE, 3).items()}
    with pytest.raises(QdqError, match="do not show"):
        find_decoder(family, shapes, SIZE)
    rows = {name: value.shape for name, value in queries.rtdetr(KNOWN, SIZE, 3, form="rows").items()}
    with pytest.raises(QdqError, match=r"do not show|not two outputs"):
        find_decoder(family, rows, SIZE)


def test_rows_of_corners_are_no_rows_of_centers_and_sides() -> None:
    rows = queries.rtdetr(KNOWN, SIZE, 5, form="picked")["output0"]
    assert find_decoder("auto", {"output0": rows}, SIZE).family == "rtdetr"
    corners = rows.copy()
    corners[..., :4] = in_pixels(rows, SIZE)
    assert find_decoder("auto", {"output0": corners}, SIZE).family == "nms", "YOLO26 and YOLOv10 give these"
    with pytest.raises(QdqError, match="centers and sides"):
        find_decoder("rtdetr", {"output0": corners}, SIZE)
    with pytest.raises(QdqError, match="than probabilities"):
        find_decoder("rtdetr", {"output0": rows[..., [0, 1, 2, 3, 5]] + [0, 0, 0, 0, 2]}, SIZE)


def test_fractions_lie_within_the_input_and_are_in_no_order() -> None:
    boxes = queries.fractions(KNOWN, SIZE)
    assert are_fractions(boxes)
    assert not are_fractions(boxes * 2)
    assert not are_fractions(in_pixels(boxes, (1, 1)).astype(np.float32)), "corners are in order"


def test_no_object_is_the_likeliest_of_most_queries() -> None:
    logits = queries.detr(KNOWN, SIZE, 3)["logits"]
    assert says_no_object(logits)
    assert not says_no_object(logits[..., ::-1])
    assert not says_no_object(np.zeros((1, 9, 1), np.float32)), "one class is no choice"


def test_a_query_may_have_two_classes_and_nothing_is_suppressed() -> None:
    outputs = queries.rtdetr(KNOWN[:1] * 2, SIZE, 3)
    (row,) = queries.places(KNOWN[:1])
    other = (KNOWN[0].label + 1) % 3
    outputs["logits"][0, row, other] = 0
    found = find_decoder("rtdetr", outputs, SIZE)(outputs, [identity(SIZE)])[0]
    assert found.labels[found.scores > 0.3].tolist() == [KNOWN[0].label] * 2 + [other]
