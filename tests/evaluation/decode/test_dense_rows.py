# SPDX-License-Identifier: Apache-2.0
"""Rows of box, score and class for every cell: told from a YOLO of one class, suppressed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode_options import Selection
from tests.evaluation.decode import head_makers as make
from tests.evaluation.decode.head_makers import boxes_in, check, identity

SIZE = (384, 256)
CELLS = 2016
KNOWN = boxes_in(SIZE, 80, 5)


def dense(count: int = CELLS) -> np.ndarray:
    """Rows of nothing with the known boxes among them, each twice, the second a little weaker."""
    rows = make.ready(KNOWN, SIZE, 80)["output0"][0]
    rows = rows[rows[:, 4] > 0.1]
    found = np.zeros((1, count, 6), np.float32)
    found[..., 2:4] = 4
    found[0, : len(rows)] = rows
    found[0, len(rows) : 2 * len(rows)] = rows * (1, 1, 1, 1, 0.9, 1)
    return found


@pytest.mark.parametrize("count", [CELLS, 3 * CELLS])
def test_rows_of_eighty_classes_are_no_yolo_of_one(count: int) -> None:
    outputs = {"output": dense(count)}
    found = find_decoder("auto", outputs, SIZE, Selection(score=0.3))
    assert found.family == "rows" and found.description.endswith("NMS at IoU 0.45")
    check(found(outputs, [identity(SIZE)])[0], KNOWN)
    for family in ("yolox", "yolov5"):
        with pytest.raises(QdqError, match=r"number of a class|rows? of 5 \+ classes"):
            find_decoder(family, outputs, SIZE)


def test_nms_is_refused_for_them_with_the_reason() -> None:
    with pytest.raises(QdqError, match=r"suppressed .*output: --decoder rows"):
        find_decoder("nms", {"output": dense()}, SIZE)
    with pytest.raises(QdqError, match=r"many rows .*384x256"):
        find_decoder("nms", {"output": (1, CELLS, 6)}, SIZE)


def test_the_graph_decides_where_it_is_known_whatever_their_number() -> None:
    rows = {"output": dense(1000)}
    assert find_decoder("auto", rows, SIZE).family == "nms", "no number of cells"
    assert find_decoder("auto", rows, SIZE, rows={"output": "dense"}).family == "rows"
    assert find_decoder("auto", {"output": dense()}, SIZE, rows={"output": "picked"}).family == "nms"
    shapes = {"output": (1, CELLS, 6)}
    assert find_decoder("auto", shapes, SIZE, rows={"output": "dense"}).family == "rows"
    with pytest.raises(QdqError, match=r"picked .*: --decoder nms"):
        find_decoder("rows", rows, SIZE, rows={"output": "picked"})


def test_a_yolox_of_one_class_stays_one(tmp_path: Path) -> None:
    known = boxes_in(SIZE, 1, 2)
    outputs = make.yolox(known, SIZE, 1)
    assert find_decoder("auto", outputs, SIZE).family == "yolox"
    with pytest.raises(QdqError, match=r"six columns .*number of a class"):
        find_decoder("rows", outputs, SIZE)
    fractions = dense() * 0
    fractions[..., :4] = (0.9, 0.9, 0.1, 0.1)
    with pytest.raises(QdqError, match="centers and sides"):
        find_decoder("rows", {"output": fractions}, SIZE, rows={"output": "dense"})
