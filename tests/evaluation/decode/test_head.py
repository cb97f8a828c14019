# SPDX-License-Identifier: Apache-2.0
"""What every family of detectors asks of its outputs."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.evaluation.decode.head import HeadOutputs, are_shares, joined, softmax

SEEN = HeadOutputs(
    {"p": (1, 4), "logits": (1, 4), "absent": (1, 4)},
    {"p": np.array([[0.0, 0.5, 1.0, 0.2]], np.float32), "logits": np.array([[-9.0, 0.5, 3.0, 0.2]], np.float32)},
    size=(320, 240),
)


@pytest.mark.parametrize(
    ("names", "ready"),
    [(["p"], True), (["logits"], False), (["p", "logits"], False), (["p", "absent"], False), ([], True)],
)
def test_outputs_are_probabilities_where_all_values_are_known_and_are(names: list[str], ready: bool) -> None:
    assert SEEN.are_probabilities(names) == ready


@pytest.mark.parametrize(("columns", "rows", "same"), [(40, 30, True), (4, 3, True), (30, 40, False), (40, 31, False)])
def test_aspect_ratio_of_a_map(columns: int, rows: int, same: bool) -> None:
    assert SEEN.has_aspect_ratio(columns, rows) == same


def test_levels_stand_behind_one_another_in_their_order() -> None:
    levels = [(np.full((2, n, 4), float(n)), np.full((2, n, 3), n, np.float32)) for n in (5, 1)]
    boxes, scores = joined(iter(levels))
    assert (boxes.shape, scores.shape) == ((2, 6, 4), (2, 6, 3))
    assert boxes[0, :, 0].tolist() == [5, 5, 5, 5, 5, 1]


@pytest.mark.filterwarnings("error")
def test_rows_without_end_are_no_shares() -> None:
    logits = np.array([[np.inf, np.inf, -np.inf]], np.float32)
    assert not are_shares(logits) and np.isnan(softmax(logits)).any()


@pytest.mark.filterwarnings("error")
def test_rows_whose_sum_is_beyond_float32_are_no_shares() -> None:
    assert not are_shares(np.full((1, 2), 3e38, np.float32))
